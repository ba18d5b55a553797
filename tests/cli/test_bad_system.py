"""Failing systems and other processes: one clear line, an unchanged tree; after a kill, the next run completes it."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from vpatch.tree.guard import lock
from vpatch.tree.locate import locate

if TYPE_CHECKING:
    from tests.conftest import Contents, Process, Program, Trees

HYBRID = "turboquant-hybrid"
ONLY = ("--overlay", HYBRID)
CONFIG = "vllm/model_executor/layers/quantization/turboquant/config.py"
INFO = "vllm-0.20.2.dist-info"
COMPANION = "vllm/_vpatch/turboquant_hybrid.py"
ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
TARGETS = (CONFIG, "vllm/engine/arg_utils.py", "vllm/platforms/interface.py", ATTENTION)
COMPANIONS = (COMPANION, "vllm/_vpatch/turboquant_speculation.py")
WRITTEN = (f"{INFO}/RECORD", *COMPANIONS, *TARGETS)
DEVNULL = subprocess.DEVNULL
COMMAND = (sys.executable, "-m", "vpatch")
NOBODY = 65534
KILLS = 20

# Coverage writes a data file of its own, and corrupts it when its process is killed.
UNWATCHED = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
# Root bypasses permissions; without these capabilities it is an ordinary user that still finds the interpreter.
HUMBLE = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search,-fowner,-chown") if os.getuid() == 0 else ()

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root may mount, or give files away")


def humbly(command: str, tree: Path) -> subprocess.CompletedProcess[str]:
    """Run the program with the rights of an ordinary user."""
    return subprocess.run([*HUMBLE, *COMMAND, command, tree, *ONLY], capture_output=True, text=True, check=False)


@pytest.fixture
def given_away(copied: Path) -> Path:
    """A tree that belongs to another user."""
    for path in (copied, *copied.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    return copied


@root_only
def test_a_tree_of_another_user(given_away: Path, contents: Callable[[Path], Contents]) -> None:
    """Reading works; writing reports what was refused. vpatch tries instead of checking permissions in advance."""
    before = contents(given_away)

    looked, changed = humbly("status", given_away), humbly("apply", given_away)

    assert (looked.returncode, looked.stderr) == (0, "")
    assert looked.stdout.startswith(f"{HYBRID}: pending")
    assert (changed.returncode, changed.stdout) == (1, "")
    assert changed.stderr == f"cannot write: {INFO}/vpatch: permission denied\n"
    assert contents(given_away) == before


@root_only
def test_an_applied_tree_of_another_user(vpatch: Program, given_away: Path) -> None:
    """An applied tree needs no write access."""
    assert vpatch("apply", given_away, *ONLY).code == 0
    assert {(given_away / file).stat().st_uid for file in WRITTEN} == {NOBODY}

    ran = humbly("apply", given_away)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"{HYBRID}: applied")


@root_only
def test_a_file_of_another_user(copied: Path, contents: Callable[[Path], Contents]) -> None:
    """Replacing the file would change its owner."""
    os.chown(copied / CONFIG, NOBODY, NOBODY)
    before = contents(copied)

    ran = humbly("apply", copied)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"cannot write: {CONFIG}: its owner or mode cannot be kept: operation not permitted\n"
    assert contents(copied) == before


@pytest.mark.parametrize(
    ("closed", "named", "cause"),
    [
        ("vllm/platforms", ("vllm/platforms/interface.py",), "permission denied to write in its folder"),
        ("vllm", COMPANIONS, "permission denied"),
        (INFO, (f"{INFO}/vpatch",), "permission denied"),
    ],
)
def test_a_read_only_folder(
    linked: Trees, contents: Callable[[Path], Contents], closed: str, named: tuple[str, ...], cause: str
) -> None:
    tree = linked("0.20.2")
    before = contents(tree)
    (tree / closed).chmod(0o555)

    ran = humbly("apply", tree)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "".join(f"cannot write: {file}: {cause}\n" for file in named)
    assert contents(tree) == before


@pytest.mark.parametrize("closed", ["vllm/platforms", "vllm", "."])
def test_an_unreadable_folder(linked: Trees, closed: str) -> None:
    tree = linked("0.20.2")
    (tree / closed).chmod(0)

    ran = humbly("status", tree)

    (tree / closed).chmod(0o755)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("cannot read: ")
    assert ran.stderr.endswith(": permission denied\n")
    assert ran.stderr.count("\n") == 1


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a file system in memory, with these options."""
    at = tmp_path / "mounted"
    at.mkdir()
    done = []

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "vpatch", str(at)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            pytest.skip(f"mounting does not work here: {ran.stderr.strip()}")
        done.append(at)
        return at

    yield mount
    for path in done:
        subprocess.run(["umount", path], check=True)


@root_only
def test_a_read_only_file_system(
    process: Process, slim: Trees, mounted: Callable[[str], Path], contents: Callable[[Path], Contents]
) -> None:
    tree = shutil.copytree(slim("0.20.2"), mounted("size=80m"), dirs_exist_ok=True)
    before = contents(tree)
    subprocess.run(["mount", "-o", "remount,ro", tree], check=True)

    refused = process("apply", tree, *ONLY)

    assert (refused.code, refused.out) == (1, "")
    assert refused.err == f"cannot write: {INFO}/vpatch: read-only file system\n"
    assert process("apply", "--check", tree, *ONLY).code == 1
    assert contents(tree) == before
    subprocess.run(["mount", "-o", "remount,rw", tree], check=True)
    assert process("apply", tree, *ONLY).code == 0
    subprocess.run(["mount", "-o", "remount,ro", tree], check=True)
    again = process("apply", tree, *ONLY, "--json")
    assert (again.code, again.json["changed"]) == (0, [])


@root_only
def test_a_full_disk(
    process: Process, slim: Trees, mounted: Callable[[str], Path], contents: Callable[[Path], Contents]
) -> None:
    tree = shutil.copytree(slim("0.20.2"), mounted("size=80m"), dirs_exist_ok=True)
    before = contents(tree)
    subprocess.run(
        ["dd", "if=/dev/zero", "of=mounted/ballast", "bs=4096"], cwd=tree.parent, stderr=subprocess.DEVNULL, check=False
    )
    ballast = tree / "ballast"

    for room in (1, 3, 12, 48):  # blocks
        os.truncate(ballast, ballast.stat().st_size - 4096 * room)
        ran = process("apply", tree, *ONLY)

        assert (ran.code, ran.out) == (1, "")
        assert all(line.startswith("cannot write: ") for line in ran.err.splitlines())
        assert all(line.endswith(": no space left on device") for line in ran.err.splitlines())
        assert {k: v for k, v in contents(tree).items() if k != "ballast"} == before
    ballast.unlink()
    assert process("apply", tree, *ONLY).code == 0


def test_a_file_size_limit(linked: Trees, contents: Callable[[Path], Contents]) -> None:
    tree = linked("0.20.2")
    before = contents(tree)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, 20_000))

    command = [*COMMAND, "apply", str(tree), *ONLY]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit, env=UNWATCHED)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert [line.partition(": ")[0] for line in ran.stderr.splitlines()].count("cannot write") >= 3
    assert all(line.endswith(": file too large") for line in ran.stderr.splitlines())
    assert contents(tree) == before


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_another_vpatch_at_work(
    vpatch: Program, linked: Trees, monkeypatch: pytest.MonkeyPatch, contents: Callable[[Path], Contents], command: str
) -> None:
    """The clock runs fast here; the real timeout is half a minute."""
    tree = linked("0.20.2")
    if command == "revert":
        vpatch("apply", tree, *ONLY)
    before = contents(tree)
    clock = itertools.count(step=10)
    fast = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None)

    with lock(locate(tree)):
        monkeypatch.setattr("vpatch.tree.guard.time", fast)
        ran = vpatch(command, tree, *ONLY)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"another vpatch is at work: {tree}: it did not end in 30 seconds\n"
    assert contents(tree) == before
    assert vpatch(command, tree, *ONLY).code == 0


def test_killed_at_any_moment(vpatch: Program, linked: Trees, slim: Trees, patched: Trees) -> None:
    """The kill comes at a random moment of the second half of the run: while it plans or writes."""
    tree = linked("0.20.2")
    whole = 60.0
    chance = random.Random(20)  # noqa: S311 - for a test
    killed = 0

    while killed < KILLS:
        started = time.monotonic()
        with subprocess.Popen([*COMMAND, "apply", tree, *ONLY], stdout=DEVNULL, stderr=DEVNULL, env=UNWATCHED) as ran:
            try:
                ran.wait(timeout=chance.uniform(0.5, 1.0) * whole)
            except subprocess.TimeoutExpired:
                ran.kill()
        if ran.returncode == 0:  # too late: the run was faster than the delay
            whole = time.monotonic() - started
        else:
            assert ran.returncode == -signal.SIGKILL
            killed += 1
        for file in (*TARGETS, COMPANION):  # only whole files, each the old or the new
            both = [root / file for root in (slim("0.20.2"), patched("0.20.2", HYBRID))]
            assert not (tree / file).exists() or (tree / file).read_bytes() in [
                path.read_bytes() for path in both if path.exists()
            ]
        if chance.random() < 0.3:
            assert vpatch("apply", tree, *ONLY).code == 0
            assert vpatch("verify", tree, *ONLY).code == 0
        assert vpatch("revert", tree).code == 0
        subprocess.run(["diff", "-r", tree, slim("0.20.2")], check=True)


def test_eight_concurrent_runs(vpatch: Program, linked: Trees, slim: Trees) -> None:
    """One process does the work; the others wait for it and find it done."""
    tree = linked("0.20.2")
    command = [*COMMAND, "apply", str(tree), *ONLY, "--json"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(8)]
    told = [one.communicate(timeout=120) for one in runs]

    assert [one.returncode for one in runs] == [0] * 8
    assert {err for _, err in told} == {b""}
    assert sorted(json.loads(out)["changed"] for out, _ in told) == [[]] * 7 + [sorted(WRITTEN)]
    assert vpatch("verify", tree, *ONLY).code == 0
    assert vpatch("revert", tree).code == 0
    subprocess.run(["diff", "-r", tree, slim("0.20.2")], check=True)
