"""A bad base or engine: nothing is built, nothing is left over, and the error has the reason."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import docker
import pytest
from vpatch.image.filesystem import Limits

from tests.conftest import Program, Trees
from tests.image.conftest import Small
from tests.image.servers import ENGINE, docker_engine
from tests.image.standin import BASE, ONE, SITE, archive, imported
from tests.needs import need

VENV = "opt/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("address", "arguments", "says"),
    [
        ("unix:///nothing", ("build", "--base", BASE), "/nothing: no such file or directory; start it with "),
        ("tcp://127.0.0.1:1", ("test", "a/b:c"), "tcp://127.0.0.1:1: connection refused; set DOCKER_HOST to "),
    ],
)
def test_no_engine(
    vpatch: Program, monkeypatch: pytest.MonkeyPatch, address: str, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    ran = vpatch(*arguments)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"no engine: docker engine: {says}")
    assert ("--registry" in ran.err) is (arguments[0] == "build")
    assert ran.err.endswith("\nNot tested.\n") is (arguments[0] == "test")


@pytest.mark.usefixtures("engine")
def test_an_engine_that_does_not_let_us_in(vpatch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the connection is made as another user, who may not be able to read this environment."""
    connect = socket.socket.connect

    def connect_as_nobody(self: socket.socket, address: str) -> None:
        os.seteuid(65534)
        try:
            connect(self, address)
        finally:
            os.seteuid(0)

    monkeypatch.setattr(socket.socket, "connect", connect_as_nobody)
    ran = vpatch("build", "--base", BASE)

    place = os.environ["DOCKER_HOST"].removeprefix("unix://")
    assert (ran.code, ran.err.partition(";")[0]) == (1, f"no permission: docker engine: {place}: permission denied")


def other(small: Small, _: Trees) -> None:
    small("try:bad", (Path(__file__).parent, f"{VENV}/other"))


def link(small: Small, linked: Trees) -> None:
    tree, path = linked("0.20.2"), "vllm/engine/arg_utils.py"
    (tree / path).rename(elsewhere := tree / f"{path}.real")
    (tree / path).symlink_to(elsewhere.name)
    small("try:bad", (tree, SITE))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (other, ("no vllm: try:bad: looked in ", f"/{VENV}, ")),
        (link, (f"/{SITE}/vllm/engine/arg_utils.py: ", "symbolic link")),
    ],
)
def test_a_base_that_cannot_be_patched(
    refused: Program, small: Small, linked: Trees, make: Callable[[Small, Trees], None], says: tuple[str, ...]
) -> None:
    make(small, linked)
    ran = refused("build", *ONE, "--base", "try:bad")

    assert all(words in ran.err for words in says), ran.err


def test_more_refusals_of_one_base(
    refused: Program, small: Small, engine: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    small("try:small", ("0.20.2", SITE))
    made = engine.api.create_container("try:small", ["true"])["Id"]
    engine.api.commit(made, "try", "label", changes=["LABEL io.vpatch.overlays=hello"])
    engine.api.remove_container(made)
    build = ("build", *ONE, "--no-test", "--base", "try:small")

    assert refused(*build, "--platform", "linux/s390x").err.startswith(
        ("no such image: try:small: ", "wrong platform: try:small: ", "cannot pull: ")
    )
    missing = "no interpreter: try:small: there is no /usr/local/bin/python9 in the image\n"
    assert refused(*build, "--python", "/usr/local/bin/python9").err == missing
    why = "the image has no label io.vpatch.overlays; `vpatch build --base try:small` makes a patched one"
    assert refused("test", "try:small").err == f"not patched: try:small: {why}\n"
    assert refused("test", "try:label").err.startswith("cannot read provenance: try:label: not what vpatch writes")
    monkeypatch.setattr(Limits, "SOURCE", 3)
    large = refused(*build).err
    assert large.startswith(f"too large: /{SITE}/vllm/")
    assert large.endswith(" bytes, and may have 3 bytes\n")


@pytest.mark.deep
def test_an_interpreter_that_does_not_run(
    vpatch: Program, refused: Program, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left, except for an image that existed before."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    small("try:broken", ("0.20.2", SITE))  # its python3 is an empty file
    order = ("build", *ONE, "--base", "try:broken", "--tag")
    assert vpatch(*order, "try:untested", "--no-test").code == 0

    assert refused(*order, "try:never").err.startswith("cannot run: ")


@pytest.mark.deep
def test_no_space_left(vpatch: Program, slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(*ENGINE, "mount")
    disk, root = tmp_path / "d", tmp_path / "root"
    disk.mkdir()
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/python3").touch()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk], check=True)
    try:
        with docker_engine(disk) as address:
            client = docker.DockerClient(base_url=address)
            imported(client, archive(tmp_path / "base.tar", (root, ""), (slim("0.20.2"), SITE)), "try:full")
            before = (client.api.containers(all=True), client.api.images(all=True))
            fill(disk / "ballast")
            monkeypatch.setenv("DOCKER_HOST", address)
            ran = vpatch("build", *ONE, "--base", "try:full", "--tag", "try:never")
            (disk / "ballast").unlink()

            assert (ran.code, ran.err.startswith("no space left: ")) == (1, True)
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
