"""Builds that are interrupted or killed leave no tag and no container."""

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
