"""Builds that are interrupted or killed: no tag points to an unfinished image, and no container is left over."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest
from vpatch.image.engine import containers
from vpatch.image.engine.containers import NAME, REAPER

Left = Callable[[], Any]

WHILE_READING, WHILE_TESTING = "created", "running"
PATIENCE = 60


@pytest.fixture
def under_way(engine: docker.DockerClient, base: str) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """`under_way("running")`: start a build and wait until its container is in that state."""
    started: list[subprocess.Popen[bytes]] = []

    def start(state: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "vpatch", "build", "--base", base, "--tag", "try:never"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        started.append(process)
        while not engine.api.containers(all=True, filters={"name": "vpatch-", "status": state}):
            assert process.poll() is None, "it is over"
            time.sleep(0.005)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr
        process.stderr.close()


@pytest.mark.usefixtures("heeding_interrupts")
@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, WHILE_READING), (signal.SIGTERM, WHILE_TESTING)])
def test_interrupted(under_way: Callable[[str], Any], left: Left, state: str, number: int) -> None:
    before = left()
    process = under_way(state)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=PATIENCE)

    assert process.returncode == 130
    assert err.endswith(b"interrupted\n")
    assert left() == before


@pytest.mark.parametrize("state", [WHILE_READING, WHILE_TESTING])
def test_killed(under_way: Callable[[str], Any], left: Left, engine: docker.DockerClient, state: str) -> None:
    before = left()
    process = under_way(state)
    process.kill()
    process.wait()
    for _ in range(PATIENCE * 10):
        if left() == before:
            break
        time.sleep(0.1)

    assert left() == before
    assert not engine.api.images("try:never")


def reap(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    """Run the second process's script in this one."""
    monkeypatch.setattr(containers, "_PAUSE", 0)
    monkeypatch.setattr(sys, "stdin", io.StringIO(told))
    monkeypatch.setattr(sys, "argv", ["-c", "mine"])
    exec(REAPER)  # noqa: S102


@pytest.mark.parametrize(("told", "left_over"), [("done\n", True), ("", False)])
def test_containers_are_removed_unless_the_run_is_done(
    engine: docker.DockerClient,
    base: str,
    left: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    told: str,
    left_over: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    before = left()
    ours, other = (
        engine.api.create_container(base, ["true"], name=f"{NAME}{owner}-1")["Id"] for owner in ("mine", "theirs")
    )
    reap(monkeypatch, told)

    assert sorted(left()[0]) == sorted([*before[0], other, *([ours] if left_over else [])])
    for container in (other, *([ours] if left_over else [])):
        engine.api.remove_container(container)


@pytest.mark.parametrize("tag", ["", "kept"])
def test_untagged_images_are_removed(
    engine: docker.DockerClient, base: str, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    made = engine.api.create_container(base, ["true"])["Id"]
    image = engine.api.commit(made, "try" if tag else None, tag or None, changes=["LABEL a=b"])["Id"]
    engine.api.remove_container(made)
    reap(monkeypatch, f"{image}\n")

    assert (image in {one["Id"] for one in engine.api.images(all=True)}) is bool(tag)
    if tag:
        engine.api.remove_image(image, force=True)
