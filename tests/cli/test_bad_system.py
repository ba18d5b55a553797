"""Failing systems and other processes: one clear line, an unchanged tree; after a kill, the next run completes it."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from vpatch import api
from vpatch.tree.guard import lock
from vpatch.tree.locate import locate

from tests.conftest import Process, Program, Ran, Trees, contents_of, unchanged
from tests.forks import ended, output, start
from tests.hybrid import COMPANION, HYBRID, INFO, ONLY, SPECULATION, UPSTREAMS, WRITTEN
from tests.needs import root_only
from tests.tiers import deep
from tests.tree.conftest import give_away, mounted

# linux/capability.h: version 3, CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH and FOWNER
VERSION, BYPASSING = 0x20080522, 0b1111


def humble(capabilities: int = BYPASSING) -> None:
    """Drop capabilities: those by which root bypasses permissions. Another user might not reach the interpreter."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = struct.pack("Ii", VERSION, 0), ctypes.create_string_buffer(24)
    assert libc.capget(header, sets) == 0
    low, high = ((~capabilities >> bits) & 0xFFFFFFFF for bits in (0, 32))
    left = (
        word & mask for word, mask in zip(struct.unpack("6I", sets.raw), (low, low, low, high, high, high), strict=True)
    )
    assert libc.capset(header, struct.pack("6I", *left)) == 0


def humbly(command: str, tree: Path) -> Ran:
    """Run the program with the rights of an ordinary user."""
    return Ran(*output(command, "-q", tree, *ONLY, first=humble))


@pytest.fixture
def given_away(copied: Path) -> Path:
    """A tree that belongs to another user."""
    give_away(copied)
    return copied


@root_only
def test_a_tree_of_another_user(given_away: Path) -> None:
    """Reading works; writing reports what was refused. vpatch tries instead of checking permissions in advance."""
    with unchanged(given_away):
        looked, changed = humbly("status", given_away), humbly("apply", given_away)

    assert (looked.code, looked.err) == (0, "")
    assert looked.out.startswith(f"  {HYBRID}  pending")
    assert changed == Ran(1, "", f"cannot write: {INFO}/vpatch: permission denied\n")


@pytest.mark.parametrize(
    ("closed", "named", "cause"),
    [
        ("vllm/platforms", ("vllm/platforms/interface.py",), "permission denied to write in its folder"),
        ("vllm", (COMPANION, SPECULATION), "permission denied"),
        (INFO, (f"{INFO}/vpatch",), "permission denied"),
    ],
)
def test_a_read_only_folder(tree: Path, closed: str, named: tuple[str, ...], cause: str) -> None:
    (tree / closed).chmod(0o555)

    with unchanged(tree):
        assert humbly("apply", tree) == Ran(1, "", "".join(f"cannot write: {file}: {cause}\n" for file in named))


@pytest.mark.parametrize("closed", ["vllm/platforms", "vllm", "."])
def test_an_unreadable_folder(tree: Path, closed: str) -> None:
    (tree / closed).chmod(0)

    ran = humbly("status", tree)

    (tree / closed).chmod(0o755)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("cannot read: ")
    assert ran.err.endswith(": permission denied\n")
    assert ran.err.count("\n") == 1


@pytest.fixture
def small(tmp_path: Path, slim: Trees) -> Iterator[Path]:
    """A tree on a small file system of its own, in memory."""
    at = tmp_path / "mounted"
    at.mkdir()
    with mounted("vpatch", at, "-t", "tmpfs", "-o", "size=80m"):
        yield shutil.copytree(slim("0.20.2"), at, dirs_exist_ok=True)


@root_only
def test_a_read_only_file_system(vpatch: Program, small: Path) -> None:
    def remount(option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", small], check=True)

    with unchanged(small):
        remount("ro")
        refused = Ran(1, "", f"cannot write: {INFO}/vpatch: read-only file system\n")
        assert vpatch("apply", "-q", small, *ONLY) == refused
        assert vpatch("apply", "--check", small, *ONLY).code == 1
    remount("rw")
    assert vpatch("apply", small, *ONLY).code == 0
    remount("ro")
    again = vpatch("apply", small, *ONLY, "--json")
    assert (again.code, again.json["changed"]) == (0, [])


@root_only
def test_a_full_disk(vpatch: Program, small: Path) -> None:
    tree, ballast = small, small / "ballast"
    before = contents_of(tree)
    space = os.statvfs(tree)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_bsize)

    for room in (1, 3, 12, 48):  # blocks
        os.truncate(ballast, ballast.stat().st_size - 4096 * room)
        ran = vpatch("apply", "-q", tree, *ONLY)

        assert (ran.code, ran.out) == (1, "")
        assert all(line.startswith("cannot write: ") for line in ran.err.splitlines())
        assert all(line.endswith(": no space left on device") for line in ran.err.splitlines())
        assert contents_of(tree).keys() == {*before, "ballast"}
    ballast.unlink()
    assert contents_of(tree) == before
    assert vpatch("apply", tree, *ONLY).code == 0


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_another_vpatch_at_work(vpatch: Program, tree: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """The clock runs fast here; the real timeout is half a minute."""
    if command == "revert":
        vpatch("apply", tree, *ONLY)
    clock = itertools.count(step=10)
    fast = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None)

    says = f"another vpatch is at work: {tree}: it did not end in 30 seconds\n"
    with unchanged(tree), lock(locate(tree)):
        monkeypatch.setattr("vpatch.locking.time", fast)
        assert vpatch(command, "-q", tree, *ONLY) == Ran(1, "", says)
    assert vpatch(command, tree, *ONLY).code == 0


@pytest.mark.deep
def test_killed_at_any_moment(vpatch: Program, tree: Path, patched: Trees) -> None:
    """The kill comes after a random part of the processor time of the run: while it plans or writes."""
    before, goal = contents_of(tree), patched("0.20.2", HYBRID)
    both = {file: (before.get(file), (goal / file).read_bytes()) for file in (*UPSTREAMS, COMPANION)}
    whole = 60.0
    chance = random.Random(20)  # noqa: S311 - for a test
    killed = 0

    while killed < 20:
        child = os.fork()  # with what this process has parsed: most of the run is writing
        if child == 0:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process, and nothing can catch
            signal.setitimer(signal.ITIMER_PROF, chance.random() * whole)
            api.apply(tree, [HYBRID])
            os._exit(0)
        _, status, used = os.wait4(child, 0)
        if status == 0:  # too late: the run was faster than the delay
            whole = used.ru_utime + used.ru_stime
        else:
            assert os.WTERMSIG(status) == signal.SIGPROF
            killed += 1
        now = contents_of(tree)
        assert [file for file in both if now.get(file) not in both[file]] == [], "only whole files, old or new"
        if chance.random() < 0.3:
            assert vpatch("apply", tree, *ONLY).code == 0
            assert vpatch("verify", tree, *ONLY).code == 0
        assert vpatch("revert", tree).code == 0
        assert contents_of(tree) == before


@pytest.mark.parametrize("count", [2, deep(8)])
def test_concurrent_runs(vpatch: Program, tree: Path, tmp_path: Path, count: int) -> None:
    """One process does the work; the others wait for it and find it done."""
    before = contents_of(tree)
    told = [tmp_path / f"told{n}" for n in range(count)]
    begin, write = os.pipe()

    def wait() -> None:
        os.close(write)
        os.read(begin, 1)  # until all of them are there

    runs = []
    for each in told:
        with each.open("wb") as out:
            streams = (begin, out.fileno(), out.fileno())
            runs.append(start("apply", tree, *ONLY, "--json", streams=streams, first=wait))
    os.close(write)

    assert [ended(run) for run in runs] == [0] * count
    os.close(begin)
    changed = [json.loads(each.read_bytes())["changed"] for each in told]
    assert sorted(changed) == [[]] * (count - 1) + [WRITTEN]
    assert vpatch("verify", tree, *ONLY).code == 0
    assert vpatch("revert", tree).code == 0
    assert contents_of(tree) == before


@pytest.mark.parametrize("late", [False, True])
def test_a_libcst_that_cannot_be_loaded(process: Process, tree: Path, tmp_path: Path, late: bool) -> None:  # noqa: FBT001
    """It is no bug of vpatch, whether libcst imports its native module at once or when it parses."""
    (tmp_path / "first/libcst").mkdir(parents=True)
    code = "def parse_module(*_): import libcst.native" if late else "import libcst.native"
    (tmp_path / "first/libcst/__init__.py").write_text(f"{code}\n")
    (tmp_path / "first/libcst/native.py").write_text("raise ImportError('native.so: file too short')\n")

    with unchanged(tree):
        ran = process("apply", "-q", tree, env={"PYTHONPATH": str(tmp_path / "first")})

    assert (ran.code, ran.out) == (1, "")
    says = f"cannot load libcst: {sys.executable}: native.so: file too short; install it again: `"
    assert ran.err.startswith(says)
    assert ran.err.count("\n") == 1
