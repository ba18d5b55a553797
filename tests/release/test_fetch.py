"""A fetched tree has the wheel's Python files, all checked; it exists completely or not at all."""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from vpatch.installation import how_to_add
from vpatch.net import ranges
from vpatch.release.fetch import fetch

from tests.failures import problem_of
from tests.loopback import NAME, IndexServer, make_wheel
from tests.processes import PATIENCE, UNWATCHED, printed
from tests.release.conftest import DATE, Refusal, files_of


def test_the_python_files_and_the_dist_info_are_in_the_target(index: IndexServer, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        fetched = fetch("1.0", tmp_path / "tree")
    finally:
        os.umask(old)

    assert files_of(tmp_path / "tree") == index.wanted()
    assert (fetched.version, fetched.wheel, fetched.tree) == ("1.0", NAME, tmp_path / "tree")
    assert fetched.files == len(index.wanted()) == 7
    assert fetched.wheel_bytes == len(index.files[NAME])
    assert fetched.bytes_read < ranges.TAIL + 2000
    assert len(index.spans()) == 3
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    core = (tmp_path / "tree/vllm/engine/core.py").stat()
    assert (core.st_mtime, stat.S_IMODE(core.st_mode)) == (DATE, 0o640)
    assert stat.S_IMODE((tmp_path / "tree").stat().st_mode) == 0o750


def test_folders_that_are_asked_for_are_there_whole(index: IndexServer, tmp_path: Path) -> None:
    kernels = {"vllm/kernels/a.cuh": b"a", "vllm/kernels/more/b.hpp": b"b"}
    index.publish(NAME, make_wheel(kernels | {"vllm/kernels_too/c.cuh": b"c"}))
    expected = {name: data for name, data in index.wanted().items() if not name.endswith("c.cuh")}

    fetched = fetch("1.0", tmp_path / "tree", folders=["vllm/kernels/", "vllm/none/"])

    assert files_of(tmp_path / "tree") == expected
    assert expected.items() >= kernels.items()
    assert fetched.files == len(expected)


@pytest.mark.parametrize("there", [True, False])
def test_an_empty_folder_or_a_new_path_is_taken(index: IndexServer, tmp_path: Path, there: bool) -> None:  # noqa: FBT001
    target = tmp_path / "a/b/tree"
    if there:
        target.mkdir(parents=True)
        (tmp_path / "link").symlink_to(target)
        for left in (".tree.vpatch-0123abcd/vllm", ".tree.vpatch-mine"):  # by a fetch that was killed; by somebody
            (target.parent / left).mkdir(parents=True)

    assert fetch("1.0", tmp_path / "link" if there else target).tree == target
    assert (target / "vllm/__init__.py").is_file()
    assert [path.name for path in target.parent.glob(".*")] == [".tree.vpatch-mine"][:there]


@pytest.mark.parametrize(
    ("trouble", "text"), [({"cuts": 99}, "cut off 3 times"), ({"page": "garbage"}, "no such project")]
)
def test_nothing_is_left_when_the_server_fails(
    index: IndexServer, refusal: Refusal, trouble: dict[str, object], text: str
) -> None:
    vars(index).update(trouble)

    assert text in refusal(index.files[NAME])


def test_a_target_that_is_taken(index: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "here")

    for target, line in [
        (tmp_path / "full", f"cannot fetch into: {tmp_path}/full: it is not empty"),
        (tmp_path / "full/file", f"cannot write: {tmp_path}/full/file: not a directory"),
        (tmp_path / "loop", f"cannot write: {tmp_path}/loop: too many levels of symbolic links"),
        (Path(), f"cannot fetch into: {tmp_path}/here: it is the current folder"),
    ]:
        assert str(problem_of(fetch, "1.0", target)) == line
    assert index.asked == []
    line = "cannot write: /proc/vpatch/tree: no such file or directory"
    assert str(problem_of(fetch, "1.0", Path("/proc/vpatch/tree"))) == line


def test_a_target_that_was_taken_meanwhile(index: IndexServer, tmp_path: Path) -> None:
    """Another fetch does not remove the folder of this one, and this one does not replace the tree of the other."""
    began: list[bool] = []

    def slowly(*_: int) -> None:
        if not began:
            began.append(True)
            fetch("1.0", tmp_path / "tree")
            assert len(list(tmp_path.glob(".tree.vpatch-*"))) == 1

    problem = problem_of(fetch, "1.0", tmp_path / "tree", progress=slowly)

    assert str(problem) == f"cannot write: {tmp_path}/tree: directory not empty"
    assert files_of(tmp_path / "tree") == index.wanted()
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk(index: IndexServer, refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "utime", Mock(side_effect=[None, None, full]))

    line = refusal(index.files[NAME])

    assert re.fullmatch(rf"cannot write: {tmp_path}/new/tree/vllm.*: no space left on device", line)


CHILD = """
import os, select, signal, sys
from pathlib import Path
from vpatch.release.fetch import fetch
real, written = os.utime, []
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)  # so that a signal just before the wait ends it, too
def utime(path, times):
    real(path, times)
    written.append(path)
    if len(written) == 3:
        print("writing", flush=True)
        select.select([woken], [], [])
os.utime = utime
fetch("1.0", Path(sys.argv[1]))
"""


@pytest.mark.deep
@pytest.mark.usefixtures("heeding_interrupts")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_leaves_nothing_and_the_next_fetch_removes_what_a_kill_left(
    index: IndexServer, tmp_path: Path, number: signal.Signals
) -> None:
    before = sorted(tmp_path.iterdir())
    command = [sys.executable, "-c", CHILD, str(tmp_path / "new/tree")]
    environment = {**os.environ, **UNWATCHED, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout
        assert child.stdout.readline() == "writing\n"
        assert len(list((tmp_path / "new").glob(".tree.vpatch-*"))) == 1
        child.send_signal(number)
        _, errors = child.communicate(timeout=PATIENCE)
        assert child.returncode == -number

    if number == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert sorted(tmp_path.iterdir()) == before
        return
    assert not (tmp_path / "new/tree").exists()
    assert len(list((tmp_path / "new").glob(".tree.vpatch-*"))) == 1
    (tmp_path / "new/.tree.vpatch-mine").mkdir()
    fetch("1.0", tmp_path / "new/tree")
    assert files_of(tmp_path / "new/tree") == index.wanted()
    assert [path.name for path in (tmp_path / "new").glob(".tree.vpatch-*")] == [".tree.vpatch-mine"]


def test_the_extra_is_not_installed() -> None:
    code = """
import sys
from vpatch.errors import Failure
sys.modules["requests"] = None
for name in ("release.fetch", "matrix.releases"):
    try:
        __import__(f"vpatch.{name}")
    except Failure as failure:
        print(failure)
import vpatch.matrix.trees
"""
    assert printed(code) == f"cannot fetch: requests: not installed: {how_to_add('fetch')}\n" * 2


@pytest.mark.deep
def test_a_real_release(tmp_path: Path) -> None:
    """The only test here that asks the user's own package index."""
    code = f"""
import re, pathlib
from vpatch.release.fetch import fetch
fetched = fetch("0.20.2", pathlib.Path({str(tmp_path / "tree")!r}))
status = pathlib.Path("/proc/self/status").read_text()  # the peak in getrusage may be the parent's
peak = re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]
print(fetched.version, fetched.files, fetched.bytes_read, fetched.wheel_bytes, peak)
"""
    version, *numbers = printed(code).split()
    files, bytes_read, wheel_bytes, peak = map(int, numbers)
    assert version == "0.20.2"
    assert bytes_read < 0.05 * wheel_bytes
    assert peak < 100 * 1024  # KiB
    with (tmp_path / "tree/vllm-0.20.2.dist-info/RECORD").open(newline="") as record:
        sums = {name: digest for name, digest, _ in csv.reader(record)}
    found = files_of(tmp_path / "tree")
    assert files == len(found) > 1500
    assert set(found) == {name for name in sums if name.endswith(".py") or ".dist-info/" in name}
    for name, data in found.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert sums[name] in ("", f"sha256={digest}")
