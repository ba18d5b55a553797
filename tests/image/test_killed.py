"""Builds that are interrupted or killed leave no tag and no container; the tests' own engine ends with them."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import docker
import pytest
from vpatch.image.engine import containers
from vpatch.image.engine.containers import NAME, REAPER

from tests.image.conftest import Left
from tests.image.servers import ENGINE
from tests.image.standin import ONE, archive, libraries
from tests.needs import need
from tests.processes import UNWATCHED, ending, processes

# What the engine is asked while a build reads its base, and while it tests the new image.
READING, TESTING = "create", "start"
BUILD = (sys.executable, "-m", "vpatch", "build", *ONE, "--tag", "try:killed", "--base")

Events = Callable[..., Iterator[Any]]


@pytest.fixture
def events(engine: docker.DockerClient) -> Iterator[Events]:
    """`events("create")`: what of this happens in the engine from now on; silence for a minute is an error."""
    with ExitStack() as opened:

        def listen(*names: str) -> Iterator[Any]:
            stream = engine.api.events(decode=True, filters={"event": list(names)})
            opened.callback(stream.close)
            return stream

        yield listen


@pytest.mark.deep
@pytest.mark.usefixtures("heeding_interrupts")
@pytest.mark.parametrize(
    ("number", "event"),
    [
        (signal.SIGINT, READING),
        (signal.SIGTERM, TESTING),
        (signal.SIGKILL, READING),
        (signal.SIGKILL, TESTING),
    ],
)
def test_a_build_that_ends_at_a_step(
    engine: docker.DockerClient, base: str, left: Left, events: Events, number: signal.Signals, event: str
) -> None:
    before, happened = left(), events(event)
    with subprocess.Popen(
        [*BUILD, base], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **UNWATCHED}
    ) as process:
        next(happened)
        gone = events("destroy", "delete") if number == signal.SIGKILL else iter(())
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    if number == signal.SIGKILL:
        while left() != before:
            next(gone)
    else:
        assert (process.returncode, err.endswith(b"interrupted\n")) == (130, True)

    assert left() == before
    assert not engine.api.images("try:killed")


@pytest.mark.parametrize(("told", "left_over"), [("done\n", True), ("", False)])
def test_the_reaper_removes_what_a_run_left_unless_it_is_done(
    engine: docker.DockerClient, base: str, left: Left, monkeypatch: pytest.MonkeyPatch, told: str, *, left_over: bool
) -> None:
    """Containers of this run, and images without a tag; here, the script of the second process runs in this one."""
    before = left()[0]
    ours, other = (
        engine.api.create_container(base, ["true"], name=f"{NAME}{owner}-1")["Id"] for owner in ("mine", "theirs")
    )
    images = [
        engine.api.commit(other, "try" if tag else None, tag, changes=[f"LABEL a={tag}"])["Id"]
        for tag in ("kept", None)
    ]
    monkeypatch.setattr(containers, "_PAUSE", 0)
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{image}\n" for image in images) + told))
    monkeypatch.setattr(sys, "argv", ["-c", "mine"])
    exec(REAPER)  # noqa: S102
    there = {one["Id"] for one in engine.api.images(all=True)}
    remaining = [other, *([ours] if left_over else [])]

    assert sorted(left()[0]) == sorted([*before, *remaining])
    assert [image in there for image in images] == [True, left_over]
    for container in remaining:
        engine.api.remove_container(container)
    for image in there & {*images}:
        engine.api.remove_image(image, force=True)


TESTS = """
import sys
from pathlib import Path
import docker
from tests.image.servers import docker_engine
from tests.image.standin import imported
folder, tar = map(Path, sys.argv[1:])
with docker_engine(folder) as address:
    client = docker.DockerClient(base_url=address)
    imported(client, tar, "try:sleep")
    made = client.containers.run("try:sleep", ["infinity"], entrypoint="/bin/sleep", network_mode="none", detach=True,
        stop_signal="SIGKILL")  # it heeds no other
    made.reload()
    print(made.attrs["State"]["Pid"], flush=True)
    sys.stdin.read()
"""


@pytest.mark.deep
def test_the_engine_of_the_tests_ends_with_them(tmp_path: Path) -> None:
    need(*ENGINE)
    root = tmp_path / "root"
    for file in ("/bin/sleep", *libraries("/bin/sleep")):
        (root / file.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(file).resolve(), root / file.lstrip("/"))
    tar, folder = archive(tmp_path / "tar", (root, "")), tmp_path / "e"  # a short name: it is in the paths of sockets
    folder.mkdir()
    command = [sys.executable, "-c", TESTS, str(folder), str(tar)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as tests:
        assert tests.stdout
        container = int(tests.stdout.readline())
        servers = processes(str(folder))
        servers.remove(tests.pid)
        assert len(servers) >= 3, "the engine, containerd and the container's shim"
        with ending(container, *servers) as wait:
            tests.kill()
            wait()
