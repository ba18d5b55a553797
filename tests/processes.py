"""Processes of the tests: that run a text, without coverage, or found by their command and waited for."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

UNWATCHED = dict.fromkeys(("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"), "")
"""For the environment of processes whose code tests in this process cover, too: coverage would take the longest."""

PATIENCE = 120  # seconds, which only what hangs needs


def printed(code: str, *arguments: str, wrapper: Sequence[str] = ()) -> str:
    """Return what a new interpreter prints, started by a wrapper; it imports from where this one does."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [*wrapper, sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


def processes(text: str) -> list[int]:
    """Return the ids of the processes whose command has this text."""
    ran = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    return [int(line.split()[0]) for line in ran.stdout.splitlines() if text in line]


@contextmanager
def ending(*running: int) -> Iterator[Callable[[], None]]:
    """Yield a function that waits until all of these processes, which still run, have ended."""
    with ExitStack() as opened:
        ends = [os.pidfd_open(process) for process in running]
        for end in ends:
            opened.callback(os.close, end)

        def wait() -> None:
            for process, end in zip(running, ends, strict=True):
                assert select.select([end], [], [], PATIENCE)[0], f"process {process} is left"

        yield wait
