"""A fetch takes only a target that is free, and tells what the disk refuses."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.errors import Failure
from vpatch.release.fetch import fetch

if TYPE_CHECKING:
    from tests.loopback import Site

NAME = "vllm-1.0-cp38-abi3-manylinux_2_35_x86_64.whl"

Refusal = Callable[[bytes], str]


def test_refuses_a_target_that_is_taken(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "here")

    for target, line in [
        (tmp_path / "full", f"cannot fetch into: {tmp_path}/full: it is not empty"),
        (tmp_path / "full/file", f"cannot write: {tmp_path}/full/file: not a directory"),
        (tmp_path / "full/file/tree", f"cannot write: {tmp_path}/full/file/tree: not a directory"),
        (tmp_path / "loop", f"cannot write: {tmp_path}/loop: too many levels of symbolic links"),
        (Path(), f"cannot fetch into: {tmp_path}/here: it is the current folder"),
    ]:
        with pytest.raises(Failure) as caught:
            fetch("1.0", target)
        assert str(caught.value) == line
    assert site.asked == []


def test_refuses_a_target_that_was_taken_meanwhile(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: int) -> None:
        (tmp_path / "tree/file").mkdir(parents=True, exist_ok=True)

    with pytest.raises(Failure) as caught:
        fetch("1.0", tmp_path / "tree", progress=late)

    assert str(caught.value) == f"cannot write: {tmp_path}/tree: directory not empty"
    assert [path.name for path in tmp_path.iterdir()].count("tree") == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_says_that_a_folder_cannot_be_made(site: Site) -> None:
    with pytest.raises(Failure, match=r"^cannot write: /proc/vpatch/tree: no such file or directory$"):
        fetch("1.0", Path("/proc/vpatch/tree"))


def test_says_that_the_disk_is_full(
    site: Site, refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.utime
    written = []

    def utime(path: Path, times: tuple[float, float]) -> None:
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, times)

    monkeypatch.setattr(os, "utime", utime)

    line = refusal(site.files[NAME])

    assert re.fullmatch(rf"cannot write: {tmp_path}/new/tree/vllm.*: no space left on device", line)
