"""`vpatch build --registry`: the same layer as with an engine, reading only the layers that hold vLLM; then `tag`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
import requests
from rich.filesize import decimal
from vpatch.image.checks import Check
from vpatch.manifest import sha256

from tests.conftest import Process, Program, Ran
from tests.image.registry.conftest import Refused
from tests.image.registry.images import Base, build, put_base, put_image, tar
from tests.image.registry.proxy import Proxy
from tests.image.standin import CONFIG, ENTRYPOINT, ONE, SITE
from tests.terminals import on_terminal
from tests.tiers import deep

ID = "i586-machines"


@pytest.fixture(scope="module")
def base(registry: str, layers: list[bytes]) -> Base:
    return put_base(registry, layers, "me/base:x")


@pytest.fixture(scope="module")
def built(child: Process, registry: str, base: Base) -> Ran:
    ran = child("build", "--registry", "--base", base.name, *ONE, "--tag", f"{registry}/me/patched:one", "--json")
    assert ran.code == 0, ran.err
    return ran


def commands_in(text: str) -> list[list[str]]:
    return [shlex.split(found) for found in re.findall(r"`vpatch ([^`]*)`", text)]


def test_reads_the_one_layer_that_holds_vllm(built: Ran, base: Base) -> None:
    _, vllm, copied = base.built.manifest["layers"]
    tests = {test["name"]: test for test in built.json["tests"]}

    assert built.json["layers_read"] == [copied["digest"], vllm["digest"]], "the small one is not worth a guess"
    assert built.json["bytes_read"] == vllm["size"] + copied["size"]
    assert built.json["bytes_sent"] < 400_000
    assert [tests[name]["ok"] for name in ("files", "compile", "bytecode", "record")] == [True] * 4
    assert tests["interpreter"] == {"name": "interpreter", "ok": None, "because": "needs a container"}
    assert tests["probe turboquant_skip_list"]["ok"] is None


@pytest.mark.parametrize("kind", ["package", "project"])
def test_a_patch_file_is_built(
    vpatch: Program,
    registry: str,
    base: Base,
    third_party: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """The label and the provenance have its hash."""
    patch = third_party / f"vpatch_machine_names/{ID}.vpatch"
    if kind == "package":
        monkeypatch.syspath_prepend(str(third_party))
    else:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "vpatch.toml").write_text(f'patches = ["{patch}"]\noverlays = ["{ID}"]\n')
    named = ("--overlay", ID) if kind == "package" else ()
    ran = vpatch("build", "--registry", "--base", base.name, *named, "--tag", f"{registry}/me/{kind}:one", "--json")

    assert ran.code == 0, ran.err
    assert {test["name"]: test["ok"] for test in ran.json["tests"]}["files"]
    overlays = vpatch("inspect", ran.json["image"]["ref"], "--json").json["overlays"]
    known = sha256(patch.read_bytes())
    assert [(one["id"], one["state"], one["sha256"]) for one in overlays] == [(ID, "applied", known)]


@pytest.mark.deep
def test_the_layer_equals_the_engines(
    vpatch: Program, engine: docker.DockerClient, remote: Base, registry: str
) -> None:
    order = ("build", "--base", remote.name, "--json", "--tag")
    without = vpatch(*order, f"{registry}/me/alone:one", "--registry")
    with_engine = vpatch(*order, f"{registry}/me/engine:one", "--push", "--no-test")

    assert (without.code, with_engine.code) == (0, 0), with_engine.err
    assert with_engine.json["layer"] == without.json["layer"]
    assert with_engine.json["base"]["digest"] == without.json["base"]["digest"] == remote.built.digest
    for name, built in (("alone", without), ("engine", with_engine)):
        image = built.json["image"]["ref"]
        assert re.fullmatch(rf"{registry}/me/{name}@sha256:[0-9a-f]{{64}}", image)
        assert requests.get(f"http://{registry}/v2/me/{name}/manifests/one", timeout=5).ok
        tested = vpatch("test", image, "--json")  # it is pulled by digest, and runs
        assert tested.code == 0, tested.err
        assert {test["name"]: test["ok"] for test in tested.json["tests"]}["interpreter"]
        config = engine.api.inspect_image(image)["Config"]
        assert (config["Entrypoint"], config["Env"]) == (ENTRYPOINT, CONFIG["Env"])


@pytest.mark.parametrize("flavour", [deep("docker"), "oci"])
def test_annotations_and_labels(
    vpatch: Program, registry: str, layers: list[bytes], flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nothing")
    base = put_base(registry, layers, f"kinds/{flavour}:x", flavour=flavour)
    given = {"org.opencontainers.image.source": "https://example.com/a=b", "org.opencontainers.image.revision": "abc"}
    own = [word for pair in given.items() for word in ("--label", "=".join(pair))]
    ran = build(vpatch, base.name, "--tag", f"{registry}/kinds/patched-{flavour}:x", *own, "--json")
    place, accept = f"http://{registry}/v2/kinds/patched-{flavour}/manifests/x", base.built.manifest["mediaType"]
    manifest = requests.get(place, headers={"Accept": accept}, timeout=5).json()
    labels = vpatch("inspect", ran.json["image"]["ref"], "--json").json["labels"]

    assert manifest["mediaType"] == base.built.manifest["mediaType"]
    assert {layer["mediaType"] for layer in manifest["layers"]} == {base.built.manifest["layers"][0]["mediaType"]}
    assert labels["org.opencontainers.image.base.digest"] == base.built.digest
    assert labels["org.opencontainers.image.base.name"] == base.name
    assert given.items() <= labels.items()
    assert ("annotations" in manifest) is (flavour == "oci")
    if flavour == "oci":
        assert labels.items() <= manifest["annotations"].items()
        assert json.loads(manifest["annotations"]["io.vpatch.overlays"])["vllm"] == "0.20.2"


def test_untagged_then_tagged_then_nothing_to_do(
    vpatch: Program, proxy: Proxy, layers: list[bytes], nothing_is_tagged: Callable[[str], bool]
) -> None:
    """An image is read again before its tag is set, or before the next commands are told to test and tag it."""
    base, target = f"{proxy.host}/next/base:x", f"{proxy.host}/next/patched"
    put_base(proxy.behind, layers, "next/base:x")
    ran = build(vpatch, base, "--tag", f"{target}:one", "--untagged", "-v")
    image, outcome = ran.out.strip(), ran.err.splitlines()[-1]
    digest = image.rpartition("@")[2]

    assert "    order               applied  every change is in place, with its mark\n" in ran.err
    assert outcome.startswith(f"Pushed without a tag, built on {base}: 1 overlay applied, ")
    assert "; tests: 4 passed, 4 of 8 not run (needs a container). " in outcome
    puts = [asked.path for asked in proxy.asked if asked.method == "PUT" and "/manifests/" in asked.path]
    assert (image, puts) == (f"{target}@{digest}", [f"/v2/next/patched/manifests/{digest}"])
    assert proxy.count("GET", digest) > 0, "what was pushed is read again"
    assert nothing_is_tagged("next/patched")
    test, tag_it = commands_in(outcome)
    assert (test, tag_it) == (["test", image], ["tag", image, f"{target}:one"])
    tagged, two = vpatch(*tag_it), vpatch(*tag_it, f"{target}:two", "--json")
    short = image[: image.index(":", image.index("@")) + 13]
    assert (tagged.code, tagged.out) == (0, "")
    assert tagged.err.startswith(f"Tagged {short} as {target}:one. Run it: `docker run ")
    assert (two.code, two.json["changed"]) == (0, [f"{target}:one", f"{target}:two"])
    assert two.json["image"] == {"ref": image, "digest": digest}
    assert requests.get(f"http://{proxy.behind}/v2/next/patched/manifests/two", timeout=5).ok

    again = build(vpatch, image, "--tag", f"{target}:three")
    assert (again.code, "nothing to build: " in again.err) == (1, True), "it was asked for a tag"
    untagged = build(vpatch, image, "--tag", f"{target}:three", "--untagged")
    assert (untagged.code, untagged.out.strip()) == (0, image)


@pytest.mark.deep
def test_phases_on_a_terminal(registry: str, second_registry: str, layers: list[bytes]) -> None:
    pushed = put_base(registry, layers, "phases/base:x")
    base, size = pushed.name, sum(layer["size"] for layer in pushed.built.manifest["layers"])
    target = f"{second_registry}/phases/patched"
    seen = on_terminal("build", "--registry", *ONE, "--base", base, "--tag", f"{target}:one", columns=120)

    assert seen.code == 0
    for phase in (f"reading {base}", "applying overlays", f"pushing to {target}", f"testing: files of {target}"):
        assert phase in seen.raw
    assert f"tagging {target}:one" in seen.raw
    # How far it is, is drawn ten times a second: it may be done before.
    assert re.search(rf"pushing to \S+ .* of {decimal(size)}", seen.raw), "the base's layers are copied"
    first, table, receipt, image, *outcome = seen.screen
    assert (first, table) == (f"vLLM 0.20.2 in {base}", "  turboquant-skip-list  applied")
    assert re.fullmatch("  receipt: [0-9a-f]{64}", receipt)
    assert image.startswith(f"{target}@sha256:")
    assert outcome[0].startswith(f"Built and pushed {target}:one on {base}: 1 overlay applied, ")
    assert outcome[-1].endswith(f"`vpatch test {target}:one`.")


def test_a_tag_that_fails_is_to_be_set_again(vpatch: Program, proxy: Proxy, layers: list[bytes]) -> None:
    put_base(proxy.behind, layers, "again/base:x")
    target = f"{proxy.host}/again/patched"
    proxy.fail("PUT", "/manifests/one", status=500)
    ran = build(vpatch, f"{proxy.host}/again/base:x", "--tag", f"{target}:one")
    problem, outcome = ran.err.splitlines()[-2:]

    assert (ran.code, ran.out) == (1, "")
    assert problem.startswith(f"cannot tag: {target}:one: ")
    assert outcome.startswith(f"Pushed, but not tagged: {target}@sha256:")
    (again,) = commands_in(outcome)
    assert again[-1] == f"{target}:one"

    failed = vpatch(*again, f"{target}:two")
    assert (failed.code, commands_in(failed.err)) == (1, [[*again, f"{target}:two"]])
    proxy.faults.clear()
    assert vpatch(*again).code == 0
    assert requests.get(f"http://{proxy.behind}/v2/again/patched/manifests/one", timeout=5).ok


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("HOST/a/b:c", "HOST/a/b:d"), "HOST/a/b:c has no digest"),
        ((f"HOST/a/b@sha256:{'0' * 64}", "HOST/a/other:d"), "HOST/a/other:d is no tag of HOST/a/b"),
    ],
)
def test_tags_without_a_digest(vpatch: Program, registry: str, arguments: tuple[str, ...], says: str) -> None:
    ran = vpatch("tag", *(argument.replace("HOST", registry) for argument in arguments))

    assert ran.code == 2
    assert says.replace("HOST", registry) in ran.err


def test_an_image_that_fails_a_check_gets_no_tag(
    refused_on: Refused, registry: str, layers: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Check("files", ok=False, because="injected")
    monkeypatch.setattr("vpatch.image.checks.check_files", lambda *_: iter([failed]))
    ran = refused_on(put_base(registry, layers, "fails/base:x").name, "--json")

    assert ran.json["image"] is None
    assert "  FAILED  files: injected" in ran.err


OTHER = "vllm-0.21.0.dist-info/RECORD"


def test_another_vllm_that_the_image_imports_first(refused_on: Refused, registry: str, layers: list[bytes]) -> None:
    """It was built, with the other one patched. Where PYTHONPATH leads is in the lowest layer."""
    other = tar(("app/src/vllm/__init__.py", b""), (f"app/src/{OTHER}", b""), ("link", "/app/src"))
    settings = {**CONFIG, "Env": [*CONFIG["Env"], "PYTHONPATH=/link"], "WorkingDir": "/app"}
    put_image(registry, "two/base", "x", [layers[0], other, layers[1]], settings={"config": settings})

    ran = refused_on(f"{registry}/two/base:x")

    assert ran.err.startswith("more than one vllm: ")
    assert {"/app/src/vllm", f"/{SITE}/vllm"} <= set(re.split(r"[ :]+", ran.err))


@pytest.mark.usefixtures("engine")
def test_a_tag_that_is_not_there(vpatch: Program, registry: str, locked_registry: str) -> None:
    for name in ("v0.20.2", "v0.20.1", "nightly"):
        put_image(registry, "tags/base", name, [tar(("a", b""))])
    base, private = f"{registry}/tags/base", f"{locked_registry}/secret/base:x"
    near = f"; did you mean {base}:v0.20.2?\n"
    log_in = f"no such image: {private}: private, or not there: log in with `docker login "

    for command, name, says in (
        (("inspect",), f"{base}:v0.20.22", near),
        (("build", "--base"), f"{base}:v0.20.22", near),
        (("inspect",), f"{base}:other", f"cannot read: {base}:other: no such image; check its name and its tag\n"),
        (("build", "--base"), private, log_in),
        (("build", "--base"), f"{registry}/no/such:x", f"no such image: {registry}/no/such:x: "),
    ):
        ran = vpatch(*command, name)
        assert (ran.code, says in ran.err) == (1 if name == private else 2, True), ran.err
