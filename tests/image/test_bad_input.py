"""A bad base or engine: nothing is built, nothing is left over, and the error has the reason."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.conftest import Program
from tests.image.servers import ENGINE, docker_engine
from tests.image.standin import SITE, archive, imported
from tests.needs import need

Left = Callable[[], Any]
Small = Callable[..., str]

ONE = ("--overlay", "turboquant-skip-list")  # the one of the fewest files, where any would do


def test_no_engine(vpatch: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    ran = vpatch("build", "--base", "vllm/vllm-openai:v0.20.2")

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


def test_an_engine_that_does_not_let_us_in(
    vpatch: Program, monkeypatch: pytest.MonkeyPatch, engine: docker.DockerClient
) -> None:
    """Only the connection is made as another user, who may not be able to read this environment."""
    connect = socket.socket.connect

    def connect_as_nobody(self: socket.socket, address: Any) -> None:
        with nobody():
            connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_as_nobody)
    ran = vpatch("build", "--base", "vllm/vllm-openai:v0.20.2")

    assert ran.code == 1
    assert ran.err.startswith("no permission: docker engine: permission denied")


def test_a_base_without_vllm(vpatch: Program, small: Small, left: Left) -> None:
    small("try:none", (Path(__file__).parent, "opt/venv/lib/python3.12/site-packages/other"))
    before = left()
    ran = vpatch("build", "--base", "try:none")

    assert ran.code == 1
    assert ran.err.startswith("no vllm: try:none: looked in ")
    assert "/opt/venv/lib/python3.12/site-packages, " in ran.err
    assert left() == before


def test_a_base_with_two_vllms(vpatch: Program, small: Small, left: Left) -> None:
    folders = ("opt/venv/lib/python3.12/site-packages", "usr/lib/python3.12/site-packages")
    small("try:two", ("0.20.2", folders[0]), ("0.21.0", folders[1]))
    before = left()
    ran = vpatch("build", "--base", "try:two", "--json")

    assert ran.code == 1
    (problem,) = ran.json["problems"]
    assert problem["what"] == "more than one vllm"
    assert all(f"/{folder}/vllm" in problem["cause"] for folder in folders)
    assert left() == before


@pytest.mark.parametrize("path", ["vllm/engine/arg_utils.py", "vllm/engine"])
def test_a_link_in_the_tree_is_refused(
    vpatch: Program, small: Small, left: Left, linked: Callable[..., Path], path: str
) -> None:
    tree = linked("0.20.2")
    elsewhere = tree / f"{path}.real"
    (tree / path).rename(elsewhere)
    (tree / path).symlink_to(elsewhere.name)
    small("try:link", (tree, SITE))
    before = left()
    ran = vpatch("build", *ONE, "--base", "try:link")

    assert ran.code == 1
    assert f"/{SITE}/{path}: " in ran.err
    assert "symbolic link" in ran.err
    assert left() == before


def test_an_image_that_fails_its_tests_keeps_no_tag(vpatch: Program, small: Small, python: str, left: Left) -> None:
    small("try:other", ("0.20.2", "usr/lib/python3.12/site-packages"), below=python)  # which it does not import
    before = left()
    ran = vpatch("build", *ONE, "--base", "try:other", "--tag", "try:never", "--json")

    assert ran.code == 1
    assert ran.json["image"] is None
    assert "interpreter" in {test["name"] for test in ran.json["tests"] if test["ok"] is False}
    assert "interpreter: FAILED: vllm/" in ran.err
    assert left() == before


def test_an_interpreter_that_does_not_run(
    vpatch: Program, small: Small, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left, except for an image that existed before."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    small("try:broken", ("0.20.2", SITE))  # its python3 is an empty file
    order = ("build", *ONE, "--base", "try:broken", "--tag")
    assert vpatch(*order, "try:untested", "--no-test").code == 0
    before = left()
    ran = vpatch(*order, "try:never")

    assert ran.code == 1
    assert ran.err.startswith("cannot run: ")
    assert left() == before


def test_an_unpatched_base_cannot_be_tested(vpatch: Program, base: str, left: Left) -> None:
    before = left()
    ran = vpatch("test", base)

    assert ran.code == 1
    assert ran.err == f"not patched: {base}: the image has no label io.vpatch.overlays\n"
    assert left() == before


def test_a_label_that_vpatch_did_not_write(vpatch: Program, engine: docker.DockerClient, small: Small) -> None:
    small("try:label", ("0.20.2", SITE))
    made = engine.api.create_container("try:label", ["true"])["Id"]
    engine.api.commit(made, "try", "label", changes=["LABEL io.vpatch.overlays=hello"])
    engine.api.remove_container(made)
    ran = vpatch("test", "try:label")

    assert ran.code == 1
    assert ran.err.startswith("cannot read provenance: try:label: not what vpatch writes")


def test_no_space_left(
    vpatch: Program, slim: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
