"""`vpatch build --registry`: the same layer as with an engine, reading only the layers that hold vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
import requests
from vpatch.image.checks import Check

from tests.conftest import Process, Program, Ran
from tests.image.registry.conftest import Refused
from tests.image.registry.images import Base, build, put_base, put_image, put_index, tar
from tests.image.registry.proxy import Proxy
from tests.image.standin import CONFIG, ENTRYPOINT, ONE, SITE, run_in
from tests.processes import UNWATCHED
from tests.tiers import deep


@pytest.fixture(scope="module")
def built(process: Process, registry: str, remote: Base) -> Ran:
    """An image with all default overlays."""
    return process(
        "build", "--registry", "--base", remote.name, "--tag", f"{registry}/me/patched:one", "--json", env=UNWATCHED
    )


def test_reads_the_one_layer_that_holds_vllm(built: Ran, remote: Base) -> None:
    assert built.code == 0, built.err
    _, vllm, copied = remote.built.manifest["layers"]

    assert built.json["layers_read"] == [copied["digest"], vllm["digest"]], "the small one is not worth a guess"
    assert built.json["bytes_read"] == vllm["size"] + copied["size"]
    assert built.json["bytes_sent"] < 400_000


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("only", [ONE, deep(())], ids=["one", "all"])
def test_the_layer_equals_the_engines(vpatch: Program, remote: Base, registry: str, only: tuple[str, ...]) -> None:
    order = ("build", "--base", remote.name, *only, "--json", "--tag")
    without = vpatch(*order, f"{registry}/me/alone:one", "--registry")
    with_engine = vpatch(*order, f"{registry}/me/engine:one", "--push", "--no-test")

    assert (without.code, with_engine.code) == (0, 0), with_engine.err
    assert with_engine.json["layer"] == without.json["layer"]
    assert with_engine.json["base"]["digest"] == without.json["base"]["digest"] == remote.built.digest
    # Pushed by the engine, pulled by digest, run.
    assert re.fullmatch(rf"{registry}/me/engine@sha256:[0-9a-f]{{64}}", with_engine.json["image"]["ref"])
    assert vpatch("test", with_engine.json["image"]["ref"]).code == 0
    for name in ("alone", "engine"):
        assert requests.get(f"http://{registry}/v2/me/{name}/manifests/one", timeout=5).ok


def test_it_pulls_and_runs(built: Ran, vpatch: Program, engine: docker.DockerClient) -> None:
    image = built.json["image"]["ref"]
    engine.images.pull(image)
    ran = run_in(engine, image, "import importlib.util as u; print(u.find_spec('vllm'))")
    config = engine.api.inspect_image(image)["Config"]

    assert SITE in ran.out
    assert (config["Entrypoint"], config["Env"]) == (ENTRYPOINT, CONFIG["Env"])
    tested = vpatch("test", image, "--json")
    assert tested.code == 0, tested.err
    outcomes = {test["name"]: test["ok"] for test in tested.json["tests"]}
    assert outcomes["files"] is outcomes["interpreter"] is True


def test_tests_that_need_a_container_are_not_run(built: Ran) -> None:
    outcomes = {test["name"]: test for test in built.json["tests"]}

    assert [outcomes[name]["ok"] for name in ("files", "compile", "bytecode", "record")] == [True] * 4
    assert outcomes["interpreter"] == {"name": "interpreter", "ok": None, "because": "needs a container"}
    assert outcomes["probe turboquant_hybrid"]["ok"] is None


def test_inspect_without_a_pull(built: Ran, vpatch: Program, engine: docker.DockerClient) -> None:
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
    refused_on: Refused, registry: str, layers: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Check("files", ok=False, because="injected")
    monkeypatch.setattr("vpatch.image.checks.check_files", lambda *_: iter([failed]))
    ran = refused_on(put_base(registry, layers, "fails/base:x").name, "--json")

    assert ran.json["image"] is None
    assert "  FAILED  files: injected" in ran.err


OTHER = "vllm-0.21.0.dist-info/RECORD"


@pytest.mark.parametrize(
    ("at", "settings"),
    [
        ("root/.local/lib/python3.12/site-packages", {}),
        ("app/src", {"Env": [*CONFIG["Env"], "PYTHONPATH=src"], "WorkingDir": "/app"}),  # type: ignore[misc]
        ("app/src", {"Env": [*CONFIG["Env"], "PYTHONPATH=/link"], "WorkingDir": "/app"}),  # type: ignore[misc]
    ],
    ids=["user", "relative", "link"],
)
def test_another_vllm_that_the_image_imports_first(
    refused_on: Refused, registry: str, layers: list[bytes], at: str, settings: dict[str, object]
) -> None:
    """It was built, with the other one patched. Where PYTHONPATH leads is in the lowest layer."""
    other = tar((f"{at}/vllm/__init__.py", b""), (f"{at}/{OTHER}", b""), ("link", f"/{at}"))
    tars = [layers[0], other, layers[1]] if settings else [*layers[:2], other]
    put_image(registry, "two/base", "x", tars, settings={"config": {**CONFIG, **settings}})

    ran = refused_on(f"{registry}/two/base:x")

    assert ran.err.startswith("more than one vllm: ")
    assert {f"/{at}/vllm", f"/{SITE}/vllm"} <= set(re.split(r"[ :]+", ran.err))


def test_pushed_by_digest_and_tagged_afterwards(
    vpatch: Program, registry: str, layers: list[bytes], nothing_is_tagged: Callable[[str], bool]
) -> None:
    target, base = f"{registry}/later/patched", put_base(registry, layers, "later/base:x")
    image = build(vpatch, base.name, "--tag", f"{target}:one", "--untagged").out.strip()
    assert image.startswith(f"{target}@sha256:")
    assert nothing_is_tagged("later/patched")

    tagged = vpatch("tag", image, f"{target}:one", f"{target}:two", "--json")
    digest = image.rpartition("@")[2]
    assert (tagged.code, tagged.json["changed"]) == (0, [f"{target}:one", f"{target}:two"])
    assert tagged.json["image"] == {"ref": image, "digest": digest}
    assert vpatch("inspect", f"{target}:two", "--json").json["image"]["digest"] == digest


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


def test_the_platform_is_chosen_from_an_index(vpatch: Program, registry: str, layers: list[bytes]) -> None:
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


def test_a_patched_base_is_reported_as_nothing_to_do(built: Ran, vpatch: Program, registry: str) -> None:
    again = (built.json["image"]["ref"], "--tag", f"{registry}/again/patched:one")
    ran = build(vpatch, *again)

    assert ran.code == 1, "it was asked for a tag"
    assert "nothing to build: " in ran.err
    untagged = build(vpatch, *again, "--untagged")
    assert (untagged.code, untagged.out.strip()) == (0, built.json["image"]["ref"])
