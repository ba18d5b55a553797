"""Failing systems and other processes: one clear line, an unchanged tree; after a kill, the next run completes it."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from vpatch.cli.wording import MODEL
from vpatch.tree.guard import lock
from vpatch.tree.locate import locate

from tests.conftest import Process, Program, Ran, contents_of, unchanged
from tests.forks import ended, output, start
from tests.hybrid import COMPANION, HYBRID, INFO, ONLY, SPECULATION, SUMMARY, WRITTEN
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


@root_only
def test_a_tree_of_another_user(copied: Path) -> None:
    """Reading works; writing reports what was refused. vpatch tries instead of checking permissions in advance."""
    give_away(copied)
    with unchanged(copied):
        assert humbly("status", copied) == Ran(0, f"  {HYBRID}  pending  {SUMMARY}\n", "")
        assert humbly("apply", copied) == Ran(1, "", f"cannot write: {INFO}/vpatch: permission denied\n")


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


@root_only
def test_a_read_only_file_system(vpatch: Program, copied: Path, tmp_path: Path) -> None:
    at = tmp_path / "mounted"
    at.mkdir()
    with mounted(copied, at):
        subprocess.run(["mount", "-o", "remount,ro,bind", at], check=True)
        says = f"cannot write: {INFO}/vpatch: read-only file system\n"
        assert vpatch("apply", "-q", at, *ONLY) == Ran(1, "", says)
        assert vpatch("apply", at, *ONLY).err.endswith(
            f"\nTo run vLLM with these overlays without a write to its files: "
            f"`vpatch run --overlay {HYBRID} -- vllm serve {MODEL}`.\n"
        )
        found = vpatch("doctor", at, *ONLY).out
        assert "read-only file system (" in found
        assert f"→ run vLLM with the overlays without a write to its files: `vpatch run --overlay {HYBRID} --" in found
        assert vpatch("apply", "--check", at, *ONLY).code == 1
        assert vpatch("apply", copied, *ONLY).code == 0
        again = vpatch("apply", at, *ONLY, "--json")
    assert (again.code, again.json["changed"]) == (0, [])


def test_another_vpatch_at_work(vpatch: Program, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock runs fast here; the real timeout is half a minute."""
    clock = itertools.count(step=10)
    fast = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None)

    says = f"another vpatch is at work: {tree}: it did not end in 30 seconds\n"
    with unchanged(tree), lock(locate(tree)):
        monkeypatch.setattr("vpatch.locking.time", fast)
        assert vpatch("apply", "-q", tree, *ONLY) == Ran(1, "", says)
    assert vpatch("apply", tree, *ONLY).code == 0


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


@pytest.mark.parametrize("code", ["import libcst.native", deep("def parse_module(*_): import libcst.native")])
def test_a_libcst_that_cannot_be_loaded(process: Process, tree: Path, tmp_path: Path, code: str) -> None:
    """It is no bug of vpatch, whether libcst imports its native module at once or when it parses."""
    (tmp_path / "first/libcst").mkdir(parents=True)
    (tmp_path / "first/libcst/__init__.py").write_text(f"{code}\n")
    (tmp_path / "first/libcst/native.py").write_text("raise ImportError('native.so: file too short')\n")

    with unchanged(tree):
        ran = process("apply", "-q", tree, env={"PYTHONPATH": str(tmp_path / "first")})

    assert (ran.code, ran.out) == (1, "")
    says = f"cannot load libcst: {sys.executable}: native.so: file too short; install it again: `"
    assert ran.err.startswith(says)
    assert ran.err.count("\n") == 1
