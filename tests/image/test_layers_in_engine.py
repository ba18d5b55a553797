"""Old bytecode, modes and owners in the new layer, and engines that do not load a single layer."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError
from vpatch.core.catalogue import discover, select
from vpatch.image.engine.build import build
from vpatch.image.engine.containers import ScriptRunner
from vpatch.image.order import Built, Order

from tests.conftest import Program
from tests.image.standin import SITE, archive, layered

ONE = ("--overlay", "turboquant-skip-list", "--no-test")  # it changes arg_utils.py, and adds one file
CACHED = f"{SITE}/vllm/engine/__pycache__"
LOOK = f"""
import json, os
place = {f"/{SITE}/vllm/engine"!r}
of = os.stat(place + "/arg_utils.py")
print(json.dumps([sorted(os.listdir(place + "/__pycache__")), oct(of.st_mode), of.st_uid, of.st_gid,
    oct(os.stat(place).st_mode), os.stat(place).st_uid]))
"""


@pytest.fixture(scope="module")
def compiled(
    client: docker.DockerClient, python: str, slim: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> str:
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


@pytest.fixture(scope="module")
def plain(engine_address: str, compiled: str) -> Built:
    """An image of that base as an engine usually makes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine_address)
        return build(Order(compiled, tests=frozenset()), select(discover(), ONE[1:2]))


def looked(engine: docker.DockerClient, image: str) -> list[Any]:
    found = json.loads(ScriptRunner(engine, image, "python3", "the-tests").run(LOOK, seconds=60).out)
    assert isinstance(found, list)
    return found


def test_old_bytecode_is_removed_and_modes_are_kept(engine: docker.DockerClient, compiled: str, plain: Built) -> None:
    before, after = looked(engine, compiled), looked(engine, plain.image)

    assert before[0] == ["arg_utils.cpython-311.pyc", "arg_utils.cpython-312.opt-1.pyc", "other.cpython-311.pyc"]
    assert after == [["other.cpython-311.pyc"], *before[1:]]
    assert before[1:] == ["0o100664", 1000, 100, "0o42775", 1000]


def test_an_engine_that_accepts_no_single_layer(
    vpatch: Program, engine: docker.DockerClient, compiled: str, plain: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise APIError("500 Server Error", explanation="content digest sha256:12 not found")

    monkeypatch.setattr(docker.APIClient, "load_image", refuse)
    ran = vpatch("build", "--base", compiled, *ONE, "--json", "--tag", "try:committed")

    assert ran.code == 0, ran.err
    assert "its diffID is not reproducible" in ran.err
    (note,) = ran.json["notes"]
    assert note in ran.err
    old, new = (engine.api.inspect_image(name) for name in (compiled, "try:committed"))
    assert new["RootFS"]["Layers"] == [*old["RootFS"]["Layers"], ran.json["layer"]["diff_id"]]
    assert plain.layer
    assert ran.json["layer"]["diff_id"] != plain.layer.diff_id
    assert looked(engine, "try:committed") == looked(engine, plain.image)
    for key in ("Entrypoint", "Cmd", "Env", "User", "WorkingDir"):
        assert new["Config"][key] == old["Config"][key]
    labels = engine.api.inspect_image(plain.image)["Config"]["Labels"]
    assert new["Config"]["Labels"].keys() == labels.keys()
    assert new["Config"]["Labels"]["io.vpatch.overlays"] == labels["io.vpatch.overlays"]


def test_an_engine_that_accepts_neither(
    vpatch: Program, compiled: str, monkeypatch: pytest.MonkeyPatch, left: Callable[[], Any]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise APIError("500 Server Error", explanation="Out Of Order\nat line 1")

    monkeypatch.setattr(docker.APIClient, "load_image", refuse)
    monkeypatch.setattr(docker.APIClient, "commit", refuse)
    before = left()
    ran = vpatch("build", "--base", compiled, *ONE, "--tag", "try:never")

    assert (ran.code, ran.err) == (1, "cannot commit: try:compiled: out of order\n")
    assert left() == before


def test_a_base_for_another_platform(vpatch: Program, compiled: str, left: Callable[[], Any]) -> None:
    before = left()
    ran = vpatch("build", "--base", compiled, "--platform", "linux/s390x", *ONE)

    assert ran.code == 1
    assert ran.err.startswith(("no such image: try:compiled: ", "wrong platform: try:compiled: ", "cannot pull: "))
    assert left() == before


def test_a_missing_interpreter(vpatch: Program, engine: docker.DockerClient, compiled: str) -> None:
    ran = vpatch("build", "--base", compiled, "--python", "/usr/local/bin/python9", *ONE)

    assert ran.code == 1
    assert ran.err == "no interpreter: try:compiled: there is no /usr/local/bin/python9 in the image\n"
