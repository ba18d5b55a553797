"""Old bytecode, modes and owners in the new layer, and engines that do not load a single layer."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from typing import Any

import docker
import pytest
from docker.errors import APIError
from vpatch.core.catalogue import discover, select
from vpatch.image.engine.build import build
from vpatch.image.order import Built, Order

from tests.conftest import Program, Trees
from tests.image.standin import ONE, SITE, archive, layered, run_in

ORDER = (*ONE, "--no-test")  # of an overlay that changes arg_utils.py, and adds one file
CACHED = f"{SITE}/vllm/engine/__pycache__"
LOOK = f"""
import json, os
place = {f"/{SITE}/vllm/engine"!r}
of = os.stat(place + "/arg_utils.py")
print(json.dumps([sorted(os.listdir(place + "/__pycache__")), oct(of.st_mode), of.st_uid, of.st_gid,
    oct(os.stat(place).st_mode), os.stat(place).st_uid]))
"""


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


@pytest.fixture(scope="module")
def plain(engine_address: str, compiled: str) -> Built:
    """An image of that base as an engine usually makes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine_address)
        return build(Order(compiled, tests=frozenset()), select(discover(), ONE[1:]))


def looked(engine: docker.DockerClient, image: str) -> list[Any]:
    found = json.loads(run_in(engine, image, LOOK).out)
    assert isinstance(found, list)
    return found


def test_old_bytecode_is_removed_and_modes_are_kept(engine: docker.DockerClient, compiled: str, plain: Built) -> None:
    before, after = looked(engine, compiled), looked(engine, plain.image)

    assert before[0] == ["arg_utils.cpython-311.pyc", "arg_utils.cpython-312.opt-1.pyc", "other.cpython-311.pyc"]
    assert after == [["other.cpython-311.pyc"], *before[1:]]
    assert before[1:] == ["0o100664", 1000, 100, "0o42775", 1000]


def failing(explanation: str) -> Callable[..., None]:
    """Return a method of an engine's client that reports an error of the server."""

    def fail(*_: object, **__: object) -> None:
        raise APIError("500 Server Error", explanation=explanation)

    return fail


def test_an_engine_that_accepts_no_single_layer(
    vpatch: Program, engine: docker.DockerClient, compiled: str, plain: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker.APIClient, "load_image", failing("content digest sha256:12 not found"))
    ran = vpatch("build", "--base", compiled, *ORDER, "--json", "--tag", "try:committed")

    assert ran.code == 0, ran.err
    (note,) = ran.json["notes"]
    assert "its diffID is not reproducible" in note
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


@pytest.mark.deep
def test_an_engine_that_accepts_neither(refused: Program, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load_image", "commit"):
        monkeypatch.setattr(docker.APIClient, name, failing("Out Of Order\nat line 1"))
    ran = refused("build", "--base", compiled, *ORDER, "--tag", "try:never")

    assert ran.err == "cannot commit: try:compiled: out of order\n"


def test_a_base_for_another_platform(refused: Program, compiled: str) -> None:
    ran = refused("build", "--base", compiled, "--platform", "linux/s390x", *ORDER)

    assert ran.err.startswith(("no such image: try:compiled: ", "wrong platform: try:compiled: ", "cannot pull: "))


def test_a_missing_interpreter(refused: Program, compiled: str) -> None:
    ran = refused("build", "--base", compiled, "--python", "/usr/local/bin/python9", *ORDER)

    assert ran.err == "no interpreter: try:compiled: there is no /usr/local/bin/python9 in the image\n"
