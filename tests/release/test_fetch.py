"""A fetched tree has the wheel's Python files, all checked; it exists completely or not at all."""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import os
import re
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest
from vpatch.installation import how_to_add
from vpatch.net import ranges
from vpatch.release.fetch import fetch

from tests.failures import problem_of
from tests.loopback import NAME, IndexServer
from tests.processes import printed
from tests.release.conftest import DATE, Refusal, files_of


@pytest.mark.parametrize("page", ["html", "json"])
def test_puts_the_python_files_and_the_dist_info_into_the_target(index: IndexServer, tmp_path: Path, page: str) -> None:
    index.page = page

    fetched = fetch("1.0", tmp_path / "tree")

    assert files_of(tmp_path / "tree") == index.wanted()
    assert (fetched.version, fetched.wheel, fetched.tree) == ("1.0", NAME, tmp_path / "tree")
    assert fetched.files == len(index.wanted()) == 7
    assert fetched.wheel_bytes == len(index.files[NAME])
    assert fetched.bytes_read < ranges.TAIL + 2000
    assert len(index.spans()) == 3
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("kind", ["ignored", "416", "501"])
def test_fetches_the_whole_wheel_where_ranges_are_refused(index: IndexServer, tmp_path: Path, kind: str) -> None:
    index.ranges = kind
    calls: list[tuple[int, int]] = []

    fetched = fetch("1.0", tmp_path / "tree", progress=lambda done, total: calls.append((done, total)))

    size = len(index.files[NAME])
    assert files_of(tmp_path / "tree") == index.wanted()
    assert (fetched.bytes_read, fetched.wheel_bytes) == (size, size)
    assert calls[-1] == (size, size)


def test_gives_files_the_wheels_dates_and_the_users_modes(index: IndexServer, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        fetch("1.0", tmp_path / "tree")
    finally:
        os.umask(old)

    core = (tmp_path / "tree/vllm/engine/core.py").stat()
    assert (core.st_mtime, stat.S_IMODE(core.st_mode)) == (DATE, 0o640)
    assert stat.S_IMODE((tmp_path / "tree").stat().st_mode) == 0o750


@pytest.mark.parametrize("there", [True, False])
def test_takes_an_empty_folder_or_a_new_path(index: IndexServer, tmp_path: Path, there: bool) -> None:  # noqa: FBT001
    target = tmp_path / "a/b/tree"
    if there:
        target.mkdir(parents=True)
        (tmp_path / "link").symlink_to(target)

    fetched = fetch("1.0", tmp_path / "link" if there else target)

    assert fetched.tree == target
    assert (target / "vllm/__init__.py").is_file()


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        ({"cuts": 99}, "cut off 3 times"),
        ({"cuts": 99, "ranges": "ignored"}, "cut off 3 times"),
        ({"ranges": "elsewhere"}, "another range"),
        ({"login": "me:secret"}, "401 unauthorized"),
        ({"page": "500"}, "500 internal server error"),
        ({"page": "404"}, "no such project"),
        ({"page": "garbage"}, "no such project"),
    ],
)
def test_leaves_nothing_behind_when_the_server_fails(
    index: IndexServer, refusal: Refusal, trouble: dict[str, object], text: str
) -> None:
    for name, value in trouble.items():
        setattr(index, name, value)

    assert text in refusal(index.files[NAME])


def test_knows_no_such_release(index: IndexServer, tmp_path: Path) -> None:
    line = str(problem_of(fetch, "9.9.9", tmp_path / "tree"))
    assert line == "no such release: vllm 9.9.9: the index has 1.0"


# --- targets and disks -----------------------------------------------------------------------------------------


def test_refuses_a_target_that_is_taken(index: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert str(problem_of(fetch, "1.0", target)) == line
    assert index.asked == []


def test_refuses_a_target_that_was_taken_meanwhile(
    index: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: int) -> None:
        (tmp_path / "tree/file").mkdir(parents=True, exist_ok=True)

    problem = problem_of(fetch, "1.0", tmp_path / "tree", progress=late)

    assert str(problem) == f"cannot write: {tmp_path}/tree: directory not empty"
    assert [path.name for path in tmp_path.iterdir()].count("tree") == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_says_that_a_folder_cannot_be_made(index: IndexServer) -> None:
    line = str(problem_of(fetch, "1.0", Path("/proc/vpatch/tree")))
    assert line == "cannot write: /proc/vpatch/tree: no such file or directory"


def test_says_that_the_disk_is_full(
    index: IndexServer, refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "utime", Mock(side_effect=[None, None, full]))

    line = refusal(index.files[NAME])

    assert re.fullmatch(rf"cannot write: {tmp_path}/new/tree/vllm.*: no space left on device", line)


# --- the extra, and the real index -----------------------------------------------------------------------------


def test_says_that_the_extra_is_not_installed() -> None:
    missing = "requests"
    code = f"""
import sys
from vpatch.errors import Failure
sys.modules[{missing!r}] = None
try:
    import vpatch.release.fetch
except Failure as failure:
    print(failure)
"""
    assert printed(code) == f"cannot fetch: {missing}: not installed: {how_to_add('fetch')}\n"


def test_fetches_a_real_release(tmp_path: Path) -> None:
    """The only test here that asks the user's own package index."""
    target = tmp_path / "tree"
    code = f"""
import re, pathlib
from vpatch.release.fetch import fetch
fetched = fetch("0.20.2", pathlib.Path({str(target)!r}))
status = pathlib.Path("/proc/self/status").read_text()  # the peak in getrusage may be the parent's
peak = re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]
print(fetched.version, fetched.files, fetched.bytes_read, fetched.wheel_bytes, peak)
"""
    version, *numbers = printed(code).split()
    files, bytes_read, wheel_bytes, peak = map(int, numbers)
    assert version == "0.20.2"
    assert bytes_read < 0.05 * wheel_bytes
    assert peak < 100 * 1024  # KiB
    with (target / "vllm-0.20.2.dist-info/RECORD").open(newline="") as record:
        sums = {name: digest for name, digest, _ in csv.reader(record)}
    expected = {name for name in sums if name.endswith(".py") or ".dist-info/" in name}
    found = files_of(target)
    assert files == len(found) > 1500
    assert set(found) == expected
    for name, data in found.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert sums[name] in ("", f"sha256={digest}")
