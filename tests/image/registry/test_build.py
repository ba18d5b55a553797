"""`vpatch build --registry`: the same layer as the engine's way, out of as few bytes as hold vLLM."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
from vpatch.image import model
from vpatch.image.engine.inside import Inside

from tests.conftest import Program, Ran
from tests.image.registry.images import Built, put_image, put_index, tar
from tests.image.registry.proxy import Proxy
from tests.image.standin import CONFIG, ENTRYPOINT, SITE, archive

BASE = "vllm/vllm-openai:v0.20.2"
COPIED = "COPY examples /vllm-workspace/examples # buildkit"
BALLAST = 4 << 20


@dataclass(frozen=True)
class Base:
    """The base in its registry: its name, and what was put there."""

    name: str
    built: Built


@pytest.fixture(scope="session")
def layers(slim: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Three layers, as vllm-openai has them: all that is below vLLM, vLLM, and what is copied in above."""
    folder = tmp_path_factory.mktemp("layers")
    vllm = archive(folder / "1.tar", *parents(folder), (slim("0.20.2"), SITE)).read_bytes()
    copied = tar(("vllm-workspace", None), ("vllm-workspace/examples", None), ("vllm-workspace/examples/a.py", b"1"))
    return [tar(("opt/ballast", os.urandom(BALLAST))), vllm, copied]


def parents(folder: Path) -> list[tuple[Path, str]]:
    """Give an empty folder for each above vLLM, as the tars of real layers have them."""
    (folder / "empty").mkdir()
    above = [str(path) for path in Path(SITE).parents][-2::-1]
    return [(folder / "empty", path) for path in above]


def put_base(host: str, layers: list[bytes], name: str = BASE, **more: Any) -> Base:
    repository, _, tag = name.rpartition(":")
    history = [{"created_by": "RUN pip install torch"}, {"created_by": "RUN pip install vllm"}, {"created_by": COPIED}]
    settings = {"config": dict(CONFIG), "created": "2026-05-09T10:00:00.123456789Z"}
    return Base(f"{host}/{name}", put_image(host, repository, tag, layers, history=history, settings=settings, **more))


@pytest.fixture(scope="session")
def remote(
    registry: str,
    layers: list[bytes],
    interpreter: Path,
    pristine: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Base:
    """The base with all of vLLM's Python, and an interpreter in its lowest layer, so that it runs."""
    folder = tmp_path_factory.mktemp("remote")
    lowest = archive(folder / "0.tar", (interpreter, "")).read_bytes()
    vllm = archive(folder / "1.tar", *parents(folder), (pristine("0.20.2"), SITE)).read_bytes()
    return put_base(registry, [lowest, vllm, layers[2]])


@pytest.fixture
def nothing_is_tagged(registry: str) -> Callable[[str], bool]:
    def look(repository: str) -> bool:
        tags = requests.get(f"http://{registry}/v2/{repository}/tags/list", timeout=5).json().get("tags")
        return not tags

    return look


def build(vpatch: Program, base: str, *more: str) -> Ran:
    return vpatch("build", "--registry", "--base", base, *more)


@pytest.fixture
def built(vpatch: Program, registry: str, remote: Base) -> Ran:
    return build(vpatch, remote.name, "--tag", f"{registry}/me/patched:one", "--json")


def test_reads_the_one_layer_that_holds_vllm(built: Ran, remote: Base) -> None:
    assert built.code == 0, built.err
    _, vllm, copied = remote.built.manifest["layers"]

    assert built.json["layers_read"] == [copied["digest"], vllm["digest"]], "the small one is not worth a guess"
    assert built.json["bytes_read"] == vllm["size"] + copied["size"]
    assert f"read {built.json['bytes_read'] / 1e6:.1f} MB of the base" in built.err
    assert built.json["bytes_sent"] < 400_000


def test_the_layer_is_the_engines(
    built: Ran, vpatch: Program, remote: Base, engine: docker.DockerClient, registry: str
) -> None:
    with_engine = vpatch("build", "--base", remote.name, "--tag", f"{registry}/me/engine:one", "--push", "--json")

    assert with_engine.code == 0, with_engine.err
    assert with_engine.json["layer"] == built.json["layer"]
    assert with_engine.json["base"]["digest"] == built.json["base"]["digest"] == remote.built.digest
    # Pushed by the engine, pulled by digest, run.
    assert re.fullmatch(rf"{registry}/me/engine@sha256:[0-9a-f]{{64}}", with_engine.json["image"]["ref"])
    assert vpatch("test", with_engine.json["image"]["ref"]).code == 0
    labels = [
        requests.get(f"http://{registry}/v2/me/{name}/manifests/one", timeout=5).ok for name in ("engine", "patched")
    ]
    assert labels == [True, True]


def test_it_pulls_and_runs(built: Ran, vpatch: Program, engine: docker.DockerClient) -> None:
    image = built.json["image"]["ref"]
    engine.images.pull(image)
    ran = Inside(engine, image, "python3", "the-tests").run(
        "import importlib.util as u; print(u.find_spec('vllm'))", seconds=60
    )
    config = engine.api.inspect_image(image)["Config"]

    assert SITE in ran.out
    assert (config["Entrypoint"], config["Env"]) == (ENTRYPOINT, CONFIG["Env"])
    tested = vpatch("test", image, "--json")
    assert tested.code == 0, tested.err
    outcomes = {test["name"]: test["ok"] for test in tested.json["tests"]}
    assert outcomes["files"] is outcomes["interpreter"] is True


def test_what_needs_a_container_is_told_as_not_run(built: Ran) -> None:
    outcomes = {test["name"]: test for test in built.json["tests"]}

    assert [outcomes[name]["ok"] for name in ("files", "compile", "bytecode", "record")] == [True] * 4
    assert outcomes["interpreter"] == {"name": "interpreter", "ok": None, "because": "it needs a container"}
    assert outcomes["probe turboquant_hybrid"]["ok"] is None
    assert "interpreter: not run: it needs a container" in built.err


def test_inspect_tells_it_without_a_pull(built: Ran, vpatch: Program, engine: docker.DockerClient) -> None:
    image = built.json["image"]["ref"].replace("@", ":one@")
    told = vpatch("inspect", image, "--json")

    assert told.code == 0, told.err
    assert told.json["image"]["from"] in ("registry", "engine")
    assert told.json["base"]["digest"] == built.json["base"]["digest"]
    assert {one["id"]: one["state"] for one in told.json["overlays"]}["turboquant-hybrid"] == "applied"
    assert all({"before", "after"} == hashes.keys() for hashes in told.json["files"].values())


@pytest.mark.parametrize("flavour", ["docker", "oci"])
def test_annotations_and_labels(
    vpatch: Program, registry: str, layers: list[bytes], flavour: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    base = put_base(registry, layers, f"kinds/{flavour}:x", flavour=flavour)
    ran = build(vpatch, base.name, "--tag", f"{registry}/kinds/patched-{flavour}:x", "--json")
    manifest = requests.get(
        f"http://{registry}/v2/kinds/patched-{flavour}/manifests/x",
        headers={"Accept": base.built.manifest["mediaType"]},
        timeout=5,
    ).json()
    labels = vpatch("inspect", ran.json["image"]["ref"], "--json").json["labels"]

    assert manifest["mediaType"] == base.built.manifest["mediaType"]
    assert {layer["mediaType"] for layer in manifest["layers"]} == {base.built.manifest["layers"][0]["mediaType"]}
    assert labels["org.opencontainers.image.base.digest"] == base.built.digest
    assert labels["org.opencontainers.image.base.name"] == base.name
    assert ("annotations" in manifest) is (flavour == "oci")
    if flavour == "oci":
        assert labels.items() <= manifest["annotations"].items()
        assert json.loads(manifest["annotations"]["io.vpatch.overlays"])["vllm"] == "0.20.2"


def test_the_tag_comes_last(vpatch: Program, proxy: Proxy, layers: list[bytes]) -> None:
    put_base(proxy.behind, layers, "last/base:x")
    ran = build(vpatch, f"{proxy.host}/last/base:x", "--tag", f"{proxy.host}/last/patched:one")

    assert ran.code == 0, ran.err
    puts = [asked.path for asked in proxy.asked if asked.method == "PUT" and "/manifests/" in asked.path]
    assert re.fullmatch(r"/v2/last/patched/manifests/sha256:[0-9a-f]{64}", puts[0])
    assert puts[1:] == ["/v2/last/patched/manifests/one"]
    digest = puts[0].rpartition("/")[2]
    between = [asked.path for asked in proxy.asked if asked.method == "GET"]
    assert any(path.endswith(digest) for path in between), "what was pushed is read again"


def test_an_image_that_fails_a_check_gets_no_tag(
    vpatch: Program,
    registry: str,
    remote: Base,
    monkeypatch: pytest.MonkeyPatch,
    nothing_is_tagged: Callable[[str], bool],
) -> None:
    from vpatch.image import checks

    failed = model.Tested("files", ok=False, because="injected")
    monkeypatch.setattr(checks, "on_files", lambda *_: iter([failed]))
    ran = build(vpatch, remote.name, "--tag", f"{registry}/fails/patched:one", "--json")

    assert ran.code == 1
    assert ran.json["image"] is None
    assert "files: FAILED: injected" in ran.err
    assert nothing_is_tagged("fails/patched")


def test_pushed_by_digest_and_tagged_afterwards(
    vpatch: Program, registry: str, remote: Base, nothing_is_tagged: Callable[[str], bool]
) -> None:
    target = f"{registry}/later/patched"
    image = build(vpatch, remote.name, "--tag", f"{target}:one", "--untagged").out.strip()
    assert image.startswith(f"{target}@sha256:")
    assert nothing_is_tagged("later/patched")

    tagged = vpatch("tag", image, f"{target}:one", f"{target}:two", "--json")
    assert (tagged.code, tagged.json["changed"]) == (0, [f"{target}:one", f"{target}:two"])
    assert vpatch("inspect", f"{target}:two", "--json").json["image"]["digest"] == image.rpartition("@")[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("HOST/a/b:c", "HOST/a/b:d"), "HOST/a/b:c has no digest"),
        ((f"HOST/a/b@sha256:{'0' * 64}", "HOST/a/other:d"), "HOST/a/other:d is no tag of HOST/a/b"),
    ],
)
def test_tags_of_what_was_not_named_exactly(
    vpatch: Program, registry: str, arguments: tuple[str, ...], says: str
) -> None:
    ran = vpatch("tag", *(argument.replace("HOST", registry) for argument in arguments))

    assert ran.code == 2
    assert says.replace("HOST", registry) in ran.err


def test_of_an_index_the_platform_is_chosen(vpatch: Program, registry: str, layers: list[bytes]) -> None:
    images = {
        name: put_base(registry, layers, "many/base:" + name[6:], platform=name)
        for name in ("linux/amd64", "linux/arm64")
    }
    put_index(registry, "many/base", "all", {name: base.built for name, base in images.items()})
    target = f"{registry}/many/patched:one"

    for name, base in images.items():
        ran = build(vpatch, f"{registry}/many/base:all", "--platform", name, "--tag", target, "--json")
        assert (ran.code, ran.json["base"]["digest"]) == (0, base.built.digest)
    ran = build(vpatch, f"{registry}/many/base:all", "--platform", "linux/s390x", "--tag", target)
    assert ran.code == 1
    assert "linux/amd64" in ran.err


def test_a_patched_base_is_a_no_op_that_says_so(built: Ran, vpatch: Program, registry: str) -> None:
    ran = build(vpatch, built.json["image"]["ref"], "--tag", f"{registry}/again/patched:one")

    assert ran.code == 1, "it was asked for a tag"
    assert "nothing to build: " in ran.err
    untagged = build(vpatch, built.json["image"]["ref"], "--tag", f"{registry}/again/patched:one", "--untagged")
    assert (untagged.code, untagged.out.strip()) == (0, built.json["image"]["ref"])


FAULTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "denied": ("GET", "/manifests/", {"status": 401}),
    "forbidden": ("GET", "/manifests/", {"status": 403}),
    "not there": ("GET", "/manifests/", {"status": 404}),
    "busy": ("GET", "/manifests/", {"status": 429}),
    "broken": ("GET", "/manifests/", {"status": 503}),
    "a blob is cut": ("GET", "/blobs/", {"spoil": "cut"}),
    "a blob is another": ("GET", "/blobs/", {"spoil": "corrupt"}),
    "no push": ("POST", "/blobs/uploads/", {"status": 403}),
    "no manifest": ("PUT", "/manifests/sha256", {"status": 500}),
    "no tag": ("PUT", "/manifests/one", {"status": 500}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_registry_that_fails(
    vpatch: Program, proxy: Proxy, layers: list[bytes], fault: str, nothing_is_tagged: Callable[[str], bool]
) -> None:
    put_base(proxy.behind, layers, "faulty/base:x")
    method, path, how = FAULTS[fault]
    proxy.fail(method, path, **how)
    target = f"faults/{fault.replace(' ', '-')}"
    ran = build(vpatch, f"{proxy.host}/faulty/base:x", "--tag", f"{proxy.host}/{target}:one")

    assert (ran.code, ran.out) == (1, "")
    assert re.match(rf"cannot (read|push|tag): {proxy.host}/", ran.err), ran.err
    assert "Traceback" not in ran.err
    assert nothing_is_tagged(target)


def test_a_registry_that_is_down(vpatch: Program) -> None:
    ran = build(vpatch, "127.0.0.1:1/a/b:c", "--tag", "127.0.0.1:1/a/b:d")

    assert ran.code == 1
    assert ran.err.startswith("cannot read: 127.0.0.1:1/a/b:c: ")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd"])
def test_a_tar_that_would_leave_the_tree(vpatch: Program, registry: str, layers: list[bytes], name: str) -> None:
    base = put_base(registry, [*layers[:2], tar((name, b"x"))], "leaves/base:x")
    ran = build(vpatch, base.name, "--tag", f"{registry}/leaves/patched:x")

    assert ran.code == 1
    assert "would leave the tree" in ran.err


def test_a_folder_that_is_a_link_above(vpatch: Program, registry: str, layers: list[bytes]) -> None:
    base = put_base(registry, [*layers[:2], tar((f"{SITE}/vllm/engine", "../elsewhere"))], "links/base:x")
    ran = build(vpatch, base.name, "--tag", f"{registry}/links/patched:x")

    assert ran.code == 1
    assert "vllm/engine" in ran.err


def test_no_vllm(vpatch: Program, registry: str, layers: list[bytes]) -> None:
    base = put_base(registry, [layers[0], layers[2], layers[2]], "none/base:x")
    ran = build(vpatch, base.name, "--tag", f"{registry}/none/patched:x")

    assert ran.code == 1
    assert ran.err.startswith(f"no vllm: {base.name}: ")


def test_an_overlay_that_drifts(
    vpatch: Program,
    registry: str,
    layers: list[bytes],
    slim: Callable[[str], Path],
    nothing_is_tagged: Callable[[str], bool],
) -> None:
    text = (slim("0.20.2") / "vllm/engine/arg_utils.py").read_text()
    above = text.replace("if model_config.is_hybrid:", "if not model_config.is_attention_free:").encode()
    base = put_base(registry, [*layers[:2], tar((f"{SITE}/vllm/engine/arg_utils.py", above))], "drift/base:x")
    ran = build(vpatch, base.name, "--tag", f"{registry}/drift/patched:x", "--json")

    assert ran.code == 1
    assert {one["id"]: one["state"] for one in ran.json["overlays"]}["turboquant-hybrid"] == "drifted"
    assert nothing_is_tagged("drift/patched")


def test_an_engine_that_may_not_have_the_base(
    vpatch: Program, engine: docker.DockerClient, locked_registry: str, registry: str
) -> None:
    private = vpatch("build", "--base", f"{locked_registry}/secret/base:x")
    missing = vpatch("build", "--base", f"{registry}/no/such:x")

    assert (private.code, missing.code) == (1, 1)
    assert private.err.startswith(f"no such image: {locked_registry}/secret/base:x: it is private, or not there")
    assert missing.err.startswith(f"no such image: {registry}/no/such:x: ")
