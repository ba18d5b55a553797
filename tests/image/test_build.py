"""`vpatch build` with a real engine: what the new image has and its base lacks."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import docker
import pytest
from docker.errors import APIError
from vpatch.core.catalogue import discover, select

from tests.conftest import Process, Program, Ran, Trees
from tests.engines import engine_of
from tests.hybrid import DEFAULT, TILES
from tests.image.conftest import Left
from tests.image.standin import BASE, CONFIG, ENTRYPOINT, NOT_RUN, ONE, SITE, archive, last_layer, layered, run_in
from tests.releases import unneeded

pytestmark = pytest.mark.usefixtures("engine")

INFO = f"{SITE}/vllm-0.20.2.dist-info"
ORDER = (*ONE, "--no-test", "--json")  # of an overlay that changes arg_utils.py, and adds one file
ARGS = f"{SITE}/vllm/engine/arg_utils.py"
CACHED = f"{SITE}/vllm/engine/__pycache__"
LOOK = f"""
import hashlib, importlib.util as u, json, os
of, folder = os.stat("/{ARGS}"), os.stat("/{SITE}/vllm/engine")
note = "/{INFO}/vpatch-image.json"
print(json.dumps({{
    "tools": [name for name in ("libcst", "vpatch", "click") if u.find_spec(name)],
    "note": os.path.exists(note) and open(note).read(),
    "hash": hashlib.sha256(open("/{ARGS}", "rb").read()).hexdigest(),
    "cached": sorted(os.listdir("/{CACHED}")) if os.path.exists("/{CACHED}") else [],
    "modes": [oct(of.st_mode), of.st_uid, of.st_gid, oct(folder.st_mode), folder.st_uid],
}}))
"""


@pytest.fixture(scope="module")
def built(child: Process, engine_address: str, base: str) -> Ran:
    """The one build of the first tier whose tests run in containers."""
    ran = child("build", "--base", base, *ONE, "--tag", "try:built", "--json", env={"DOCKER_HOST": engine_address})
    assert ran.code == 0, ran.err
    return ran


def look(client: docker.DockerClient, image: str) -> dict[str, Any]:
    ran = run_in(client, image, LOOK)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert isinstance(found, dict)
    return found


def changed(tree: Path, *overlays: str) -> dict[str, bytes]:
    """Return the files that overlays change in a tree, by their paths in the image."""
    read = lambda file: (tree / file).read_bytes() if (tree / file).is_file() else None  # noqa: E731
    found = engine_of(select(discover(), overlays or None)).plan(read).files
    return {f"{SITE}/{path}": data for path, data in found.items()}


def test_the_only_new_layer_holds_what_changed(built: Ran, engine: docker.DockerClient, sources: Path) -> None:
    said, members = built.json, last_layer(engine, "try:built")
    old, new = (engine.api.inspect_image(name)["RootFS"]["Layers"] for name in (BASE, "try:built"))
    files = {name: data for name, data in members.items() if data is not None}
    expected = changed(sources, ONE[1])

    assert new == [*old, said["layer"]["diff_id"]]
    assert sorted(files) == sorted({*expected, f"{INFO}/RECORD", f"{INFO}/vpatch-image.json"}) == said["layer"]["files"]
    assert files.items() >= expected.items()
    assert members.keys() - files.keys() == {str(parent) for name in files for parent in Path(name).parents} - {"."}


def test_the_json_matches_the_contract(built: Ran) -> None:
    said = built.json

    assert {"schema", "command", "base", "image", "layer", "overlays", "tests"} <= said.keys()
    assert (said["command"], said["vllm"], said["base"]["ref"]) == ("build", "0.20.2", BASE)
    assert said["image"]["ref"] == said["image"]["digest"]
    assert {one["id"]: one["state"] for one in said["overlays"]} == {ONE[1]: "applied"}
    passed = dict.fromkeys(("files", "compile", "bytecode", "record", "interpreter"), True)
    assert {test["name"]: test["ok"] for test in said["tests"]}.items() >= passed.items()


def test_the_configuration_is_the_bases_with_labels(built: Ran, engine: docker.DockerClient) -> None:
    old, new = (engine.api.inspect_image(name)["Config"] for name in (BASE, "try:built"))
    before, after = look(engine, BASE), look(engine, "try:built")
    labels, said = new["Labels"], json.loads(after["note"])

    assert (new["Entrypoint"], new["Env"]) == (ENTRYPOINT, CONFIG["Env"])
    ours = {key for key in labels if key.startswith(("io.vpatch.", "org.opencontainers.image."))}
    assert {key: value for key, value in labels.items() if key not in ours} == old["Labels"]
    unchanged = old.keys() - {"Labels", "Hostname", "Image"}
    assert {key: new[key] for key in unchanged} == {key: old[key] for key in unchanged}
    assert labels["io.vpatch.overlays"] == after["note"]
    assert labels["org.opencontainers.image.base.name"] == f"docker.io/{BASE}"
    assert labels["org.opencontainers.image.version"].startswith("0.20.2-vpatch")
    assert "org.opencontainers.image.created" in labels
    assert not {"org.opencontainers.image.source", "org.opencontainers.image.revision"} & labels.keys(), "the user's"
    assert (said["python"], [one["state"] for one in said["overlays"]]) == (None, ["applied"])
    assert said["files"]["vllm/engine/arg_utils.py"] == {"before": before["hash"], "after": [after["hash"]]}
    assert after["tools"] == [], "no tool is left in the image"


def test_a_patched_base_is_reported_as_nothing_to_do(built: Ran, vpatch: Program, left: Left) -> None:
    before = left()
    ran = vpatch("build", "--base", "try:built", *ONE, "--no-test")

    assert (ran.code, ran.out) == (0, f"{built.json['image']['ref']}\n")
    assert "Nothing to build: 1 overlay is applied. " in ran.err
    assert left() == before


def test_its_tests_and_its_label(built: Ran, vpatch: Program) -> None:
    ran, shown = vpatch("test", "try:built"), vpatch("inspect", "try:built", "--json").json
    first, outcome = ran.err.splitlines()

    assert (ran.code, ran.out) == (0, "  passed  5 tests\n  not run 3 tests: the image lacks torch\n")
    assert first.startswith("vLLM 0.20.2 in try:built, patched by vpatch ")
    assert outcome.startswith(f"Tested try:built: {NOT_RUN}. Run it: `docker run ")
    assert (shown["image"]["from"], [one["state"] for one in shown["overlays"]]) == ("engine", ["applied"])


@pytest.mark.deep
def test_all_default_overlays_and_more(
    vpatch: Program, engine: docker.DockerClient, built: Ran, sources: Path, linked: Trees
) -> None:
    """They fit into 400 KiB, work with every command when copied to a tree, and can be added to one that is there."""
    tag = ("--tag", "try:all")
    ran = vpatch("build", "--base", BASE, *tag, "--json")
    assert ran.code == 0, ran.err
    assert {one["id"]: one["state"] for one in ran.json["overlays"]} == {
        **dict.fromkeys(DEFAULT, "applied"),
        **dict.fromkeys(unneeded("0.20.2"), "not_applicable"),
    }
    assert ran.json["layer"]["bytes"] <= 400 * 1024
    files = {name: data for name, data in last_layer(engine, "try:all").items() if data is not None}
    assert files.items() >= changed(sources).items()
    assert vpatch("test", "try:all", "--json").json["tests"] == ran.json["tests"]

    tree = linked("0.20.2")
    for name, data in files.items():
        target = tree / name.removeprefix(f"{SITE}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(data)
    assert vpatch("verify", tree).code == 0
    applied = vpatch("apply", tree, "--json")
    assert (applied.code, applied.json["changed"]) == (0, [])
    assert (tree / "vllm-0.20.2.dist-info/RECORD").read_bytes() == files[f"{INFO}/RECORD"]
    reverted = vpatch("revert", tree)
    assert (reverted.code, "keeps no original" in reverted.err) == (1, True)

    more = vpatch("build", "--base", "try:built", "--with", TILES, "--receipt", *tag, "--no-test", "--json")
    states = {one["id"]: one["state"] for one in more.json["overlays"]}
    assert (states.keys() - {*DEFAULT}) >= {TILES, "receipt"}
    assert states[TILES] == states["receipt"] == "applied"
    note = json.loads(look(engine, "try:all")["note"])
    assert {one["id"] for one in note["overlays"] if one["state"] == "applied"} == {*DEFAULT, TILES, "receipt"}
    assert note["files"]["vllm/engine/arg_utils.py"]["before"] == look(engine, BASE)["hash"], (
        "from before the first overlay"
    )


@pytest.fixture(scope="module")
def compiled(client: docker.DockerClient, python: str, slim: Trees, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A base with old bytecode that Python would trust, and with unusual owner and modes."""
    cache = tmp_path_factory.mktemp("compiled") / "cache"
    cache.mkdir()
    for name in ("arg_utils.cpython-311.pyc", "arg_utils.cpython-312.opt-1.pyc", "other.cpython-311.pyc"):
        (cache / name).write_bytes(b"old")

    def own(member: tarfile.TarInfo) -> None:
        if member.name.startswith(SITE):
            member.uid, member.gid = 1000, 100
            member.mode = 0o2775 if member.isdir() else 0o664

    tar = archive(cache.with_name("x.tar"), (slim("0.20.2"), SITE), (cache, CACHED), edit=own)
    layered(client, tar, python, "try:compiled")
    return "try:compiled"


FAILING = Mock(side_effect=APIError("500 Server Error", explanation="Out Of Order\nat line 1"))
"""In place of a method of an engine's client: an error of the server."""


@pytest.mark.deep
@pytest.mark.parametrize("loads", [True, False], ids=["loads", "commits"])
def test_old_bytecode_is_removed_and_modes_are_kept(
    vpatch: Program, engine: docker.DockerClient, compiled: str, monkeypatch: pytest.MonkeyPatch, *, loads: bool
) -> None:
    """Also in an engine that accepts no single layer, and has to make it of a container."""
    if not loads:
        monkeypatch.setattr(docker.APIClient, "load_image", FAILING)
    ran = vpatch("build", "--base", compiled, *ORDER, "--tag", "try:kept")

    assert ran.code == 0, ran.err
    assert ["its diffID is not reproducible" in note for note in ran.json["notes"]] == [True] * (not loads)
    old, new = (engine.api.inspect_image(name) for name in (compiled, "try:kept"))
    assert new["RootFS"]["Layers"] == [*old["RootFS"]["Layers"], ran.json["layer"]["diff_id"]]
    for key in ("Entrypoint", "Cmd", "Env", "User", "WorkingDir"):
        assert new["Config"][key] == old["Config"][key]
    before, after = look(engine, compiled), look(engine, "try:kept")
    assert before["cached"] == ["arg_utils.cpython-311.pyc", "arg_utils.cpython-312.opt-1.pyc", "other.cpython-311.pyc"]
    assert after["cached"] == ["other.cpython-311.pyc"]
    assert before["modes"] == after["modes"] == ["0o100664", 1000, 100, "0o42775", 1000]
    assert new["Config"]["Labels"]["io.vpatch.overlays"] == after["note"]


@pytest.mark.deep
def test_an_engine_that_accepts_neither(refused: Program, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load_image", "commit"):
        monkeypatch.setattr(docker.APIClient, name, FAILING)
    ran = refused("build", "--base", compiled, *ONE, "--no-test", "--tag", "try:never")

    assert ran.err == "cannot commit: try:compiled: out of order\n"
