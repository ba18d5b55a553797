"""`vpatch inspect` of images in a registry in which a Dockerfile ran `vpatch apply`: it reads few layers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from vpatch.image.registry import recorded
from vpatch.manifest import sha256

from tests.conftest import Process, Program, Trees
from tests.hybrid import ARG_UTILS, HYBRID, INFO, ONLY
from tests.image.registry.images import COPIED, derive, last_files, put_image, tar
from tests.image.standin import ONE, SITE
from tests.tiers import deep

RAN = "RUN python3 -m vpatch apply # buildkit"
BELOW = ["RUN pip install torch", "RUN pip install vllm", COPIED]
RECORD = f"{SITE}/{INFO}/vpatch/provenance.json"

OTHER = ("--overlay", "custom-ar-expandable")

Push = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nothing")


@pytest.fixture(scope="module")
def applied(child: Process, slim: Trees, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which `vpatch apply` ran."""
    tree = shutil.copytree(slim("0.20.2"), tmp_path_factory.mktemp("applied") / "tree")
    assert child("apply", tree, *ONLY).code == 0
    return tree


def layer_between(old: Path, new: Path) -> bytes:
    """Return the layer that a RUN would make of the changes from one tree to another."""
    before, after = (
        {str(one.relative_to(at)): one.read_bytes() for one in at.rglob("*") if one.is_file()} for at in (old, new)
    )
    changed = [(f"{SITE}/{path}", data) for path, data in sorted(after.items()) if before.get(path) != data]
    gone = [PurePosixPath(SITE, path) for path in sorted(before.keys() - after.keys())]
    return tar(*changed, *((str(path.with_name(f".wh.{path.name}")), b"") for path in gone))


@pytest.fixture(scope="module")
def layer(slim: Trees, applied: Path) -> bytes:
    """What `vpatch apply` wrote."""
    return layer_between(slim("0.20.2"), applied)


@pytest.fixture
def push(registry: str, layers: list[bytes], request: pytest.FixtureRequest) -> Push:
    """`push((step, tar), ...)`: push the stand-in for vllm-openai with more layers; return its name."""

    def make(*more: tuple[str, bytes]) -> str:
        history = [{"created_by": step} for step in (*BELOW, *(step for step, _ in more))]
        name = f"recorded/{abs(hash(request.node.name))}"
        settings = {"created": "2026-05-09T10:00:00Z"}
        put_image(registry, name, "x", [*layers, *(one for _, one in more)], history=history, settings=settings)
        return f"{registry}/{name}:x"

    return make


def inspected(vpatch: Program, image: str) -> tuple[int, dict[str, Any]]:
    ran = vpatch("inspect", image, "--json")
    return ran.code, ran.json


def states(said: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["state"] for one in said["overlays"]}


def test_the_layer_that_has_the_record_is_read_and_no_other(
    vpatch: Program, push: Push, layer: bytes, applied: Path
) -> None:
    image = push((RAN, layer))
    code, said = inspected(vpatch, image)
    ran, bill = vpatch("inspect", image), vpatch("inspect", image, "--sbom")

    assert (code, said["by"], said["vllm"], said["changed_since"]) == (0, "vpatch apply", "0.20.2", {})
    assert (states(said), len(said["layers_read"])) == ({HYBRID: "applied"}, 1)
    assert said["bytes_read"] < 1_000_000
    assert said["digest"] == vpatch("status", applied, "--json").json["digest"]
    assert f"\nreceipt: {said['digest']}\n" in ran.out
    assert ran.out.endswith(f"\nread: 1 of 4 layers, {said['bytes_read'] / 1e6:.1f} MB\n")
    assert f"by `vpatch apply`, as from a Dockerfile; /{RECORD} says so" in ran.err

    assert (bill.code, JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.out)) == (0, None)
    there = {one["name"]: one["hashes"] for one in json.loads(bill.out)["components"] if one["type"] == "file"}
    assert {*there} == {f"/{RECORD}", *(f"/{SITE}/{path}" for path in said["files"])}
    for path, hashes in there.items():
        content = (applied / path.removeprefix(f"/{SITE}/")).read_bytes()
        assert hashes == [{"alg": "SHA-256", "content": sha256(content)}]


COPY = "COPY model /srv/model # buildkit"
LARGE = 3 << 20  # bytes, beside the limits of these tests


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no layer be read that is as large as a wheel of vLLM."""
    monkeypatch.setattr(recorded, "SMALL", LARGE)
    monkeypatch.setattr(recorded, "MOST", LARGE)


def ballast(path: str) -> tuple[str, bytes]:
    return path, os.urandom(LARGE)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("step", "at", "unread"),
    [
        (COPY, "srv/model/weights", False),
        ("RUN curl # buildkit", "srv/model/weights", True),
        deep(COPY, f"{SITE}/a", True),
    ],
)
def test_a_large_layer_above_is_not_downloaded(
    vpatch: Program, push: Push, layer: bytes, *, step: str, at: str, unread: bool
) -> None:
    """It counts as elsewhere only if its history and its first file say so. Otherwise nothing is said to hold."""
    image = push((RAN, layer), (step, tar(ballast(at))))
    code, said = inspected(vpatch, image)
    ran, bill = vpatch("inspect", image), vpatch("inspect", image, "--sbom")

    assert said["bytes_read"] < LARGE / 2
    assert (code, bill.code, bool(bill.out)) == ((1, 1, False) if unread else (0, 0, True))
    assert states(said) == {HYBRID: "unknown" if unread else "applied"}
    assert (said["digest"] is None, said["changed_since"]) == (unread, {})
    how = f": 3.1 MB, and vpatch reads at most 3.1 MB of an image; `docker pull {image}`, then inspect it again\n"
    assert (how in ran.err) is unread
    assert ("vpatch recorded these overlays; a later layer may" in ran.err) is unread


@pytest.mark.parametrize(("step", "found"), [(RAN, True), ("RUN ./patch.sh", False)])
def test_a_large_layer_is_searched_if_vpatch_ran_there(
    vpatch: Program, push: Push, layer: bytes, monkeypatch: pytest.MonkeyPatch, *, step: str, found: bool
) -> None:
    monkeypatch.setattr(recorded, "SMALL", 1000)
    image = push((step, layer))
    ran = vpatch("inspect", image)

    assert ran.code == (0 if found else 1)
    assert (f"`docker pull {image}`, then inspect it again" in ran.err) is not found
    assert ("(1 of 4, 0.0 MB) have no record of `vpatch apply`; the others have " in ran.err) is not found


def test_an_image_without_a_record(vpatch: Program, push: Push) -> None:
    image = push()
    ran = vpatch("inspect", image)

    assert (ran.code, ran.out) == (1, "")
    assert (
        f"not patched: {image}: the image has no label io.vpatch.overlays, and the layers that were read (3 of 3, "
        in ran.err
    )
    assert f"have no record of `vpatch apply`; `vpatch build --base {image}` makes a patched one\n" in ran.err


REVERTED = ((f"{SITE}/{INFO}/.wh.vpatch", b""),)
UPGRADED = ((f"{SITE}/.wh.{INFO}", b""), (f"{SITE}/vllm-0.21.0.dist-info/RECORD", b""))
EDITED = ((f"{SITE}/{ARG_UTILS}", b"x = 1\n"),)


@pytest.mark.parametrize("above", [REVERTED, deep(UPGRADED)])
def test_a_record_that_a_later_layer_took_away(
    vpatch: Program, push: Push, layer: bytes, above: tuple[tuple[str, bytes], ...]
) -> None:
    ran = vpatch("inspect", push((RAN, layer), ("RUN x", tar(*above))))

    assert (ran.code, ran.out) == (1, "")
    assert "a later layer took away what `vpatch apply` recorded in it, as `vpatch revert` does" in ran.err


@pytest.mark.deep
def test_a_later_layer_that_reverted_and_applied_others(
    vpatch: Program, push: Push, layer: bytes, slim: Trees, applied: Path, tmp_path: Path
) -> None:
    tree = shutil.copytree(slim("0.20.2"), tmp_path / "tree")
    assert vpatch("apply", tree, *OTHER).code == 0
    code, said = inspected(vpatch, push((RAN, layer), (RAN, layer_between(applied, tree))))

    assert (code, states(said), said["changed_since"]) == (0, {OTHER[1]: "applied"}, {})
    assert said["digest"] == vpatch("status", tree, "--json").json["digest"]


def test_a_later_layer_that_changed_a_file(vpatch: Program, push: Push, layer: bytes) -> None:
    image = push((RAN, layer), ("RUN x", tar(*EDITED)))
    code, said = inspected(vpatch, image)

    assert (code, said["digest"], said["changed_since"]) == (1, None, {ARG_UTILS: "is another"})
    assert f"not as recorded: /{SITE}/{ARG_UTILS}: it is another" in vpatch("inspect", image).err


def test_an_upgrade_that_was_too_large_to_search(
    vpatch: Program, push: Push, layer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record below is found first; then the layer between is read, and shows that the vLLM is gone."""
    monkeypatch.setattr(recorded, "SMALL", LARGE)
    code, said = inspected(vpatch, push((RAN, layer), ("RUN x", tar(*UPGRADED, ballast("srv/a")))))

    assert (code, said["vllm"], states(said)) == (1, None, {HYBRID: "unknown"})


MANY = {"schema": 1, "vpatch": "1", "overlays": [{"id": f"o{n}", "files": []} for n in range(301)], "files": {}}
BARE = json.dumps({**MANY, "overlays": []}).encode()


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ({RECORD: json.dumps(MANY).encode()}, "it is too large: it has 301 overlays, and may have 300"),
        deep(
            {RECORD: BARE, RECORD.replace(SITE, "app"): BARE},
            f"more than one vllm: NAME: /{RECORD.replace(SITE, 'app')} and /",
        ),
        deep({RECORD: b"[" * 100_000}, "is not what vpatch writes: "),
        deep({RECORD: b" " * (2 << 20)}, "is not what vpatch writes: "),
    ],
    ids=["overlays", "two", "nested", "long"],
)
def test_a_record_that_vpatch_did_not_write(vpatch: Program, push: Push, records: dict[str, bytes], says: str) -> None:
    image = push((RAN, tar(*records.items())))
    ran = vpatch("inspect", image)

    assert (ran.code, ran.out) == (1, "")
    assert says.replace("NAME", image) in ran.err


@pytest.mark.parametrize("later", ["apply", deep("build")])
def test_apply_and_build_on_each_other(
    vpatch: Program, registry: str, push: Push, layer: bytes, slim: Trees, applied: Path, tmp_path: Path, later: str
) -> None:
    """Both are shown, also if no file of the label has changed; the digest is that of such a tree."""
    below = shutil.copytree(slim("0.20.2") if later == "apply" else applied, tmp_path / "below")
    base = push(*([] if later == "apply" else [(RAN, layer)]))
    target = f"{registry}/recorded/{later}:x"
    built = vpatch("build", "--registry", "--base", base, *ONE, "--tag", target, "--no-test", "--json")
    assert built.code == 0, built.err
    image, expected = built.json["image"]["ref"], {ONE[1]: "applied", HYBRID: "applied"}
    for path, data in last_files(image).items():
        (below / path).parent.mkdir(exist_ok=True)
        (below / path).write_bytes(data)
    tree = below
    assert built.json["digest"] == vpatch("status", tree, "--json").json["digest"]
    assert vpatch("inspect", image, "--json").json["digest"] == built.json["digest"]
    if later == "apply":
        tree, expected = shutil.copytree(below, tmp_path / "tree"), {ONE[1]: "applied", OTHER[1]: "applied"}
        assert vpatch("apply", tree, *OTHER).code == 0
        image = derive(image, (RAN, layer_between(below, tree)))
    code, said = inspected(vpatch, image)
    bill = vpatch("inspect", image, "--sbom")

    assert (code, said["by"], states(said), said["changed_since"]) == (0, "vpatch build", expected, {})
    assert said["digest"] == vpatch("status", tree, "--json").json["digest"]
    assert [f'"overlay:{one}"' in bill.out for one in expected] == [True, True]
