"""A bad base or engine: nothing is built, nothing is left over, and the error has the reason."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker
import pytest
from vpatch.image.filesystem import Limits

from tests.conftest import Program, Trees
from tests.image.conftest import Small
from tests.image.servers import ENGINE, docker_engine
from tests.image.standin import BASE, ONE, SITE, archive, imported
from tests.needs import need
from tests.tiers import deep


def test_no_engine(vpatch: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    ran = vpatch("build", "--base", BASE)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"no engine: docker engine: {tmp_path}/nothing: no such file or directory; ")
    assert "--registry" in ran.err


@contextmanager
def nobody() -> Iterator[None]:
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.usefixtures("engine")
def test_an_engine_that_does_not_let_us_in(vpatch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the connection is made as another user, who may not be able to read this environment."""
    connect = socket.socket.connect

    def connect_as_nobody(self: socket.socket, address: str) -> None:
        with nobody():
            connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_as_nobody)
    ran = vpatch("build", "--base", BASE)

    assert ran.code == 1
    assert ran.err.startswith(
        f"no permission: docker engine: {os.environ['DOCKER_HOST'].removeprefix('unix://')}: permission denied; "
    )


def test_a_base_without_vllm(refused: Program, small: Small) -> None:
    small("try:none", (Path(__file__).parent, "opt/venv/lib/python3.12/site-packages/other"))
    ran = refused("build", "--base", "try:none")

    assert ran.err.startswith("no vllm: try:none: looked in ")
    assert "/opt/venv/lib/python3.12/site-packages, " in ran.err


def test_a_base_with_two_vllms(refused: Program, small: Small) -> None:
    folders = ("opt/venv/lib/python3.12/site-packages", "usr/lib/python3.12/site-packages")
    small("try:two", ("0.20.2", folders[0]), ("0.21.0", folders[1]))
    (problem,) = refused("build", "--base", "try:two", "--json").json["problems"]

    assert problem["what"] == "more than one vllm"
    assert all(f"/{folder}/vllm" in problem["cause"] for folder in folders)


@pytest.mark.parametrize("path", ["vllm/engine/arg_utils.py", deep("vllm/engine")])
def test_a_link_in_the_tree_is_refused(refused: Program, small: Small, linked: Trees, path: str) -> None:
    tree = linked("0.20.2")
    elsewhere = tree / f"{path}.real"
    (tree / path).rename(elsewhere)
    (tree / path).symlink_to(elsewhere.name)
    small("try:link", (tree, SITE))
    ran = refused("build", *ONE, "--base", "try:link")

    assert f"/{SITE}/{path}: " in ran.err
    assert "symbolic link" in ran.err


def test_an_image_that_fails_its_tests_keeps_no_tag(refused: Program, small: Small, python: str) -> None:
    small("try:other", ("0.20.2", "usr/lib/python3.12/site-packages"), below=python)  # which it does not import
    ran = refused("build", *ONE, "--base", "try:other", "--tag", "try:never", "--json")

    assert ran.json["image"] is None
    assert "interpreter" in {test["name"] for test in ran.json["tests"] if test["ok"] is False}
    assert "  FAILED  interpreter: vllm/" in ran.err


def test_an_interpreter_that_does_not_run(
    vpatch: Program, refused: Program, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left, except for an image that existed before."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    small("try:broken", ("0.20.2", SITE))  # its python3 is an empty file
    order = ("build", *ONE, "--base", "try:broken", "--tag")
    assert vpatch(*order, "try:untested", "--no-test").code == 0

    assert refused(*order, "try:never").err.startswith("cannot run: ")


def test_a_large_file(refused: Program, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    small("try:large", ("0.20.2", SITE))
    monkeypatch.setattr(Limits, "SOURCE", 3)
    ran = refused("build", "--base", "try:large")

    assert ran.err.startswith(f"too large: /{SITE}/vllm/")
    assert ran.err.endswith(" bytes, and may have 3 bytes\n")


def test_an_unpatched_base_cannot_be_tested(refused: Program, base: str) -> None:
    why = f"the image has no label io.vpatch.overlays; `vpatch build --base {base}` makes a patched one"

    assert refused("test", base).err == f"not patched: {base}: {why}\n"


def test_a_label_that_vpatch_did_not_write(refused: Program, engine: docker.DockerClient, small: Small) -> None:
    small("try:label", ("0.20.2", SITE))
    made = engine.api.create_container("try:label", ["true"])["Id"]
    engine.api.commit(made, "try", "label", changes=["LABEL io.vpatch.overlays=hello"])
    engine.api.remove_container(made)

    assert refused("test", "try:label").err.startswith("cannot read provenance: try:label: not what vpatch writes")


def test_no_space_left(vpatch: Program, slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(*ENGINE, "mount")
    disk = tmp_path / "d"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk], check=True)
    try:
        with docker_engine(disk) as address:
            client = docker.DockerClient(base_url=address)
            root = tmp_path / "root"
            (root / "usr/bin").mkdir(parents=True)
            (root / "usr/bin/python3").touch()
            imported(client, archive(tmp_path / "base.tar", (root, ""), (slim("0.20.2"), SITE)), "try:full")
            before = (client.api.containers(all=True), client.api.images(all=True))
            fill(disk / "ballast")
            monkeypatch.setenv("DOCKER_HOST", address)
            ran = vpatch("build", *ONE, "--base", "try:full", "--tag", "try:never")
            (disk / "ballast").unlink()

            assert ran.code == 1
            assert ran.err.startswith("no space left: ")
            assert (client.api.containers(all=True), client.api.images(all=True)) == before
            client.close()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill(ballast: Path) -> None:
    """Leave only the space that the engine needs to answer."""
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            continue
    os.truncate(ballast, ballast.stat().st_size - (96 << 10))
