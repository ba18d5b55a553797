"""`vpatch build` with a real engine: what the new image has and its base lacks."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import docker
import pytest
from vpatch.core.catalogue import discover, select
from vpatch.image.engine.build import build
from vpatch.image.order import Built, Order

from tests.conftest import Process, Program, Ran, Trees
from tests.engines import engine_of
from tests.hybrid import DEFAULT
from tests.image.conftest import Left
from tests.image.standin import BASE, CONFIG, ENTRYPOINT, ONE, SITE, run_in
from tests.processes import UNWATCHED

pytestmark = pytest.mark.usefixtures("engine")

INFO = f"{SITE}/vllm-0.20.2.dist-info"
ORDER = (*ONE, "--no-test")

Members = dict[str, tuple[tarfile.TarInfo, bytes]]


@pytest.fixture(scope="module")
def changed(pristine: Trees) -> dict[str, bytes]:
    """The files that the default overlays change in the release, computed outside the image."""
    tree = pristine("0.20.2")
    read = lambda file: (tree / file).read_bytes() if (tree / file).is_file() else None  # noqa: E731
    return dict(engine_of(select(discover())).plan(read).files)


@pytest.fixture(scope="module")
def built(process: Process, engine_address: str, base: str) -> Ran:
    environment = {**UNWATCHED, "DOCKER_HOST": engine_address}
    return process("build", "--base", base, "--tag", "try:built", "--json", env=environment)


@pytest.fixture(scope="module")
def members(built: Ran, client: docker.DockerClient) -> Members:
    """The members of the image's last layer, as the engine saves it, with their bytes."""
    assert built.code == 0, built.err
    with tarfile.open(fileobj=io.BytesIO(b"".join(client.api.get_image("try:built")))) as whole:
        (manifest,) = json.load(whole.extractfile("manifest.json"))  # type: ignore[arg-type]
        layer = whole.extractfile(manifest["Layers"][-1])
        assert layer
        with tarfile.open(fileobj=io.BytesIO(layer.read())) as tar:
            return {m.name: (m, file.read() if (file := tar.extractfile(m)) else b"") for m in tar}


@pytest.fixture(scope="module")
def once(engine_address: str, base: str) -> Built:
    """An image with one overlay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine_address)
        return build(Order(base, tests=frozenset()), select(discover(), ONE[1:]))


def run(client: docker.DockerClient, image: str, code: str) -> str:
    ran = run_in(client, image, code)
    assert ran.code == 0, ran.err
    return ran.out


def hash_of(client: docker.DockerClient, image: str) -> str:
    path = f"/{SITE}/vllm/engine/arg_utils.py"
    return run(client, image, f"import hashlib; print(hashlib.sha256(open({path!r}, 'rb').read()).hexdigest())").strip()


def test_the_only_new_layer_holds_what_changed(
    built: Ran, engine: docker.DockerClient, members: Members, changed: dict[str, bytes]
) -> None:
    said = built.json
    old, new = (engine.api.inspect_image(name)["RootFS"]["Layers"] for name in (BASE, "try:built"))
    assert new == [*old, said["layer"]["diff_id"]]

    files = {name: data for name, (member, data) in members.items() if member.isfile()}
    expected = {f"{SITE}/{path}": data for path, data in changed.items()}
    extra = {f"{INFO}/RECORD", f"{INFO}/vpatch-image.json"}
    assert sorted(files) == sorted({*expected, *extra}) == said["layer"]["files"]
    for path, data in expected.items():
        assert files[path] == data
    folders = {name for name, (member, _) in members.items() if member.isdir()}
    assert folders == {str(parent) for name in files for parent in Path(name).parents} - {"."}


def test_the_layer_is_small(built: Ran, members: Members) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, (member, data) in members.items():
            if not name.endswith("/RECORD"):
                tar.addfile(member, io.BytesIO(data))

    assert len(gzip.compress(out.getvalue())) <= 200 * 1024
    assert built.json["layer"]["bytes"] <= (200 + 140) * 1024


def test_the_json_matches_the_contract(built: Ran) -> None:
    said = built.json

    assert {"schema", "command", "base", "image", "layer", "overlays", "tests"} <= said.keys()
    assert (said["command"], said["vllm"], said["base"]["ref"]) == ("build", "0.20.2", BASE)
    assert said["image"]["ref"] == said["image"]["digest"]
    assert {one["id"]: one["state"] for one in said["overlays"]} == {
        **dict.fromkeys(DEFAULT, "applied"),
        "sm12x-deepgemm": "not_applicable",
        "turboquant-auto-dtype": "not_applicable",
    }
    assert {test["name"]: test["ok"] for test in said["tests"]}.items() >= dict.fromkeys(
        ("files", "compile", "bytecode", "record", "interpreter"), True
    ).items()


def test_the_bases_command_is_kept(built: Ran, engine: docker.DockerClient) -> None:
    old, new = (engine.api.inspect_image(name)["Config"] for name in (BASE, "try:built"))

    assert new["Entrypoint"] == ENTRYPOINT
    assert new["Env"] == CONFIG["Env"]
    ours = {key for key in new["Labels"] if key.startswith(("io.vpatch.", "org.opencontainers.image."))}
    assert {key: value for key, value in new["Labels"].items() if key not in ours} == old["Labels"]
    unchanged = old.keys() - {"Labels", "Hostname", "Image"}
    assert {key: new[key] for key in unchanged} == {key: old[key] for key in unchanged}


def test_the_labels_are_the_provenance_in_the_image(built: Ran, engine: docker.DockerClient) -> None:
    labels = engine.api.inspect_image("try:built")["Config"]["Labels"]
    inside = run(engine, "try:built", f"print(open('/{INFO}/vpatch-image.json').read(), end='')")
    said = json.loads(inside)

    assert labels["io.vpatch.overlays"] == inside
    assert labels["org.opencontainers.image.base.name"] == f"docker.io/{BASE}"
    assert labels["org.opencontainers.image.version"].startswith("0.20.2-vpatch")
    assert labels["org.opencontainers.image.source"].startswith("https://")
    assert {"org.opencontainers.image.created", "org.opencontainers.image.revision"} <= labels.keys()
    assert said["python"] is None
    assert [one["id"] for one in said["overlays"] if one["state"] == "applied"]
    hashes = said["files"]["vllm/engine/arg_utils.py"]
    assert [hash_of(engine, "try:built")] == hashes["after"]
    assert hash_of(engine, BASE) == hashes["before"]


def test_no_tool_is_left_in_the_image(built: Ran, engine: docker.DockerClient) -> None:
    code = "import importlib.util as u; print([u.find_spec(n) for n in ('libcst', 'vpatch', 'click')])"

    assert run(engine, "try:built", code) == "[None, None, None]\n"


@pytest.mark.deep
def test_a_built_image_passes_its_tests_again(built: Ran, vpatch: Program) -> None:
    ran = vpatch("test", "try:built", "--json")

    assert ran.code == 0, ran.err
    assert ran.json["tests"] == built.json["tests"]


def test_a_build_at_a_fixed_time_is_reproducible(vpatch: Program, monkeypatch: pytest.MonkeyPatch, once: Built) -> None:
    def build_again() -> dict[str, Any]:
        return vpatch("build", "--base", BASE, *ORDER, "--json").json

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    fixed = [build_again(), build_again()]

    assert once.layer
    assert fixed[0]["image"] == fixed[1]["image"]
    assert fixed[0]["layer"]["diff_id"] != once.layer.diff_id


def test_a_patched_base_is_reported_as_nothing_to_do(once: Built, vpatch: Program, left: Left) -> None:
    before = left()
    ran = vpatch("build", "--base", once.image, *ORDER)

    assert (ran.code, ran.out) == (0, f"{once.image}\n")
    assert "Nothing to build: 1 overlay is applied. " in ran.err
    assert left() == before


@pytest.mark.deep
def test_one_overlay_then_another(vpatch: Program, engine: docker.DockerClient, once: Built) -> None:
    hybrid = ("--overlay", "turboquant-hybrid", "--no-test")
    ran = vpatch("build", "--base", once.image, *hybrid, "--tag", "try:second", "--json")

    assert ran.code == 0, ran.err
    said = json.loads(engine.api.inspect_image("try:second")["Config"]["Labels"]["io.vpatch.overlays"])
    assert [one["id"] for one in said["overlays"] if one["state"] == "applied"] == [hybrid[1], ONE[1]]
    assert said["files"]["vllm/engine/arg_utils.py"]["before"] == hash_of(engine, BASE)


@pytest.mark.deep
def test_a_tree_copied_from_the_image_works_with_every_command(
    members: Members, vpatch: Program, linked: Trees
) -> None:
    tree = linked("0.20.2")
    for name, (member, data) in members.items():
        if member.isfile():
            target = tree / name.removeprefix(f"{SITE}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.write_bytes(data)
    before = hashlib.sha256((tree / "vllm-0.20.2.dist-info/RECORD").read_bytes()).hexdigest()

    assert vpatch("verify", tree).code == 0
    applied = vpatch("apply", tree, "--json")
    assert (applied.code, applied.json["changed"]) == (0, [])
    assert hashlib.sha256((tree / "vllm-0.20.2.dist-info/RECORD").read_bytes()).hexdigest() == before
    reverted = vpatch("revert", tree)
    assert reverted.code == 1
    assert "keeps no original" in reverted.err
