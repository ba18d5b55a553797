"""What the process does that removes the containers of a run that was killed."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import docker
import pytest
from vpatch.image.engine import reap
from vpatch.image.engine.containers import NAME


@pytest.mark.parametrize(("told", "left_over"), [("done\n", True), ("", False)])
def test_containers_go_unless_the_run_says_that_it_is_done(
    engine: docker.DockerClient,
    base: str,
    left: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    told: str,
    left_over: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    monkeypatch.setattr(reap, "_PAUSE", 0)
    before = left()
    ours, other = (
        engine.api.create_container(base, ["true"], name=f"{NAME}{owner}-1")["Id"] for owner in ("mine", "theirs")
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(told))
    reap.main("mine")

    assert sorted(left()[0]) == sorted([*before[0], other, *([ours] if left_over else [])])
    for container in (other, *([ours] if left_over else [])):
        engine.api.remove_container(container)


@pytest.mark.parametrize("tag", ["", "kept"])
def test_images_go_that_have_no_tag(
    engine: docker.DockerClient, base: str, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    monkeypatch.setattr(reap, "_PAUSE", 0)
    made = engine.api.create_container(base, ["true"])["Id"]
    image = engine.api.commit(made, "try" if tag else None, tag or None, changes=["LABEL a=b"])["Id"]
    engine.api.remove_container(made)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{image}\n"))
    reap.main("mine")

    assert (image in {one["Id"] for one in engine.api.images(all=True)}) is bool(tag)
    if tag:
        engine.api.remove_image(image, force=True)
