"""Builds that are interrupted or killed: no tag points to an unfinished image, and no container is left over."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import docker
import pytest
from vpatch.image.engine import containers
from vpatch.image.engine.containers import NAME, REAPER

from tests.image.conftest import Left
from tests.image.standin import ONE
from tests.processes import UNWATCHED
from tests.tiers import deep

# What the engine is asked while a build reads its base, and while it tests the new image.
WHILE_READING, WHILE_TESTING = "create", "start"
BUILD = (sys.executable, "-m", "vpatch", "build", *ONE, "--tag", "try:never", "--base")

Events = Callable[..., Iterator[Any]]
Begin = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def events(engine: docker.DockerClient) -> Iterator[Events]:
    """`events("create")`: what of this happens in the engine from now on; silence for a minute is an error."""
    with ExitStack() as opened:

        def listen(*names: str) -> Iterator[Any]:
            stream = engine.api.events(decode=True, filters={"event": list(names)})
            opened.callback(stream.close)
            return stream

        yield listen


@pytest.fixture
def under_way(events: Events, base: str) -> Iterator[Begin]:
    """`under_way("start")`: begin a build, and return its process when the engine did that with a container."""
    with ExitStack() as started:
        environment = {**os.environ, **UNWATCHED}

        def start(event: str) -> subprocess.Popen[bytes]:
            happened = events(event)
            process = subprocess.Popen(
                [*BUILD, base], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
            )
            started.enter_context(process)
            started.callback(process.kill)
            next(happened)
            return process

        yield start


@pytest.mark.usefixtures("heeding_interrupts")
@pytest.mark.parametrize(
    ("number", "event"),
    [(signal.SIGINT, WHILE_READING), deep(signal.SIGTERM, WHILE_TESTING)],
)
def test_interrupted(under_way: Begin, left: Left, event: str, number: int) -> None:
    before = left()
    process = under_way(event)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 130
    assert err.endswith(b"interrupted\n")
    assert left() == before


@pytest.mark.parametrize("event", [deep(WHILE_READING), WHILE_TESTING])
def test_killed(under_way: Begin, left: Left, events: Events, engine: docker.DockerClient, event: str) -> None:
    before = left()
    process = under_way(event)
    gone = events("destroy", "delete")
    process.kill()
    process.wait()
    while left() != before:
        next(gone)

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
    left: Left,
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
