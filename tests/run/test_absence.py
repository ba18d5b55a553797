"""A command that runs vLLM without a receipt is found in its first minute, by a process that holds nothing of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EAGAIN
from pathlib import Path

import pytest
from vpatch.run import absence
from vpatch.run.absence import family, states

from tests.processes import ending
from tests.run.standin import LOAD, MAPS, WAITS, Farm, started

STARTS = "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {code!r}])\nchild.wait()\n"
SOON_S = 0.02
WATCHED = """
import os, sys
from vpatch.run import absence
absence.LOOKS, absence.BETWEEN_S, absence.GRACE = {looks}
absence.watch(os.getpid())
os.execv(sys.executable, [sys.executable, "-c", {code!r}])
"""


@pytest.fixture
def extension(tmp_path: Path) -> str:
    file = tmp_path / "site-packages/vllm/_C.abi3.so"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"compiled")
    return str(file)


def test_what_a_process_shows(extension: str, farm: Farm) -> None:
    """What it or a process that it has started has mapped, and its receipt."""
    code = MAPS.format(file=extension)
    for program_code, shown, count in (
        (code, (True, False, False), 1),
        (STARTS.format(code=code), (True, False, False), 2),
        (WAITS, (False, False, False), 1),
    ):
        with started(sys.executable, "-c", program_code) as program:
            assert states(program) == shown
            assert len([*family(program)]) == count
    with farm.serving() as program:
        assert states(program)[2]


@contextmanager
def watched(code: str, looks: str, err: int) -> Iterator[subprocess.Popen[str]]:
    """Run a program that a watcher looks at, and that ends with its input."""
    program = WATCHED.format(code=code, looks=looks)
    pipe = subprocess.PIPE
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=err, text=True, env={**os.environ, **path}
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process


def watcher_of(process: int) -> int:
    """Return the process that looks at another one; 0 if it has ended."""
    for about in Path("/proc").glob("[0-9]*/cmdline"):
        words = about.read_bytes().split(b"\0")
        if str(absence.__file__).encode() in words and f"[{process}, ".encode() in words[-2][:20]:
            return int(about.parent.name)
    return 0


def wait_for_watcher(process: int) -> None:
    with suppress(OSError), ending(watcher_of(process)) as wait:  # it may have ended by now
        wait()


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_it_is_said_where_the_command_writes_its_errors(kind: str, extension: str, tmp_path: Path) -> None:
    said = r"runs vLLM and has no receipt \d+ seconds after its start: it may not run the overlays\."
    looks = f"9999, {SOON_S}, 2"
    if kind == "pipe":
        with watched(MAPS.format(file=extension), looks, subprocess.PIPE) as process:
            assert process.stderr
            wait_for_watcher(process.pid)
            os.set_blocking(process.stderr.fileno(), False)
            line = process.stderr.readline()
    else:
        writes = "\nsys.stderr.write('more\\n')\n"
        with (
            (tmp_path / "log").open("w") as log,
            watched(MAPS.format(file=extension) + writes, looks, log.fileno()) as process,
        ):
            wait_for_watcher(process.pid)
            process.communicate("")
        line, more = (tmp_path / "log").read_text().splitlines()
        assert more == "more"  # behind the line, not over it
    assert re.match(f"vpatch: process {process.pid} {said}", line)


def test_nothing_is_said_of_a_process_with_a_receipt(farm: Farm) -> None:
    code = f"import sys\nsys.path[:0] = [{str(farm.path)!r}, {str(farm.root)!r}]\n{LOAD}{WAITS}"
    with tempfile.TemporaryFile() as log, watched(code, f"9999, {SOON_S}, 1", log.fileno()) as process:
        wait_for_watcher(process.pid)  # it has seen the receipt
        log.seek(0)
        assert b"has no receipt" not in log.read()


def test_it_ends_with_the_command_and_holds_nothing_of_it() -> None:
    """Nor is it the command's child, which the command would find when it waits for those that it has started."""
    childless = (
        "import os, sys\ntry:\n os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError:\n print('ready', flush=True)\n"
    )
    with watched(f"{childless}sys.stdin.read()", "12, 5.0, 4", subprocess.PIPE) as process:
        watcher = watcher_of(process.pid)
        held = set()
        for path in Path(f"/proc/{watcher}/fd").iterdir():
            with suppress(FileNotFoundError):  # it closes some by and by
                held.add(os.readlink(path))  # noqa: PTH115 - no paths
        session = os.getsid(watcher)
        with ending(watcher) as wait:
            process.communicate("")  # to the end of its pipes
            wait()

    assert not {name for name in held if name.startswith(("pipe:", "/dev/pts", "socket:"))}
    assert session == watcher


@pytest.mark.parametrize("lacks", ["pidfd_open", "fork"])
def test_where_nothing_can_look_the_command_is_started_all_the_same(
    lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, lacks, refuse)
    absence.watch(os.getpid())

    assert watcher_of(os.getpid()) == 0


def test_a_command_that_ignores_its_children() -> None:
    """The system then waits for them."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        absence.watch(os.getpid())
    finally:
        signal.signal(signal.SIGCHLD, before)
    watcher = watcher_of(os.getpid())

    assert watcher
    os.kill(watcher, signal.SIGKILL)
