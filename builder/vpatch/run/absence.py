"""Find out within a minute that a command runs vLLM without a receipt, and say so.

What `vpatch run` starts may throw PYTHONPATH away where vpatch cannot read it off: a script that runs `python -I`, an
archive with a vLLM of its own. Stock vLLM then runs, and proves nothing. So a process beside the command looks at it
and at what it has started, every few seconds. It has a session of its own, is no child of the command, holds no pipe
and no terminal of it, and ends with the command, or after a minute.
"""

from __future__ import annotations

import json
import os
import select
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

LOOKS, BETWEEN_S = 12, 5.0
GRACE = 4  # looks at which vLLM's extensions may be mapped before it has loaded its plugins, the receipt among them

_PROC = Path("/proc")  # this file is also a script, which imports vpatch only when there is something to look at


def watch(process: int) -> None:
    """Start to look at a process, which is this one, before it becomes the command; where the system allows it."""
    if not (_PROC / "self/stat").exists():
        return
    try:
        end = os.pidfd_open(process)
    except (AttributeError, OSError):  # an old kernel, or a sandbox
        return
    # The child of a child, which has ended, is not this process's: the command would find one that it has not started.
    # The first process of a container is what the system makes its parent; that one has to expect others' children.
    with suppress(OSError):  # there may be no more processes; or SIGCHLD is ignored, and nobody is to be waited for
        between = os.fork()
        if between == 0:
            with suppress(Exception):
                _start(process, end)
            os._exit(0)
        os.waitpid(between, 0)
    os.close(end)


def _start(process: int, end: int) -> None:
    about = json.dumps([process, end, LOOKS, BETWEEN_S, GRACE, sys.path])
    subprocess.Popen(
        [sys.executable, "-I", __file__, about],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=2 if _stays_open(2) else subprocess.DEVNULL,
        pass_fds=[end],
        start_new_session=True,
        cwd="/",
    )


def _stays_open(err: int) -> bool:
    """Whether to keep the command's descriptor for errors: a socket or a file, as of a journal or a log.

    Who reads from a pipe would wait for this process, too; it and a terminal are opened again by the command's name.
    A file would have another offset then, and the command would write over the line.
    """
    try:
        kind = os.fstat(err).st_mode
        return stat.S_ISSOCK(kind) or stat.S_ISREG(kind)
    except OSError:
        return False


def _look(process: int, end: int, looks: int, between_s: float, grace: int) -> None:
    """Look at a process until it ends, holds a receipt, or has had vLLM mapped without one for `grace` looks."""
    mapped = 0
    named = False
    ends = select.poll()
    ends.register(end, select.POLLIN)
    for number in range(1, looks + 1):
        if ends.poll(between_s * 1000):
            return
        now, named, proves = states(process)
        if proves:
            return
        mapped = mapped + 1 if now else 0
        if mapped == grace or (named and number == looks):
            _say(process, number * between_s)
            return


def states(process: int) -> tuple[bool, bool, bool]:
    """Return whether a process, or one that it has started, has vLLM mapped, has vLLM's name, and holds a receipt."""
    from vpatch import processes
    from vpatch.processes.servers import receipt_of

    mapped = named = proves = False
    for number in family(process):
        with suppress(OSError):  # it has ended
            one = processes.process(number)
            proves = proves or receipt_of(one) is not None
            named = named or processes.names_vllm(one.words)
            mapped = mapped or one.has_extension
    return mapped, named, proves


def family(process: int) -> Iterator[int]:
    """Yield a process, and all that it and its children have started."""
    rest = [process]
    while rest:
        one = rest.pop()
        yield one
        for path in _PROC.glob(f"{one}/task/*/children"):
            with suppress(OSError):  # it has ended
                rest += map(int, path.read_text().split())


def _say(process: int, after_s: float) -> None:
    """Write a line to where the command writes its errors."""
    line = (
        f"vpatch: process {process} runs vLLM and has no receipt {after_s:.0f} seconds after its start: "
        "it may not run the overlays. `vpatch ps` shows which processes do.\n"
    )
    err = 2
    with suppress(OSError):
        if not _stays_open(err):
            how = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            err = os.open(f"{_PROC}/{process}/fd/2", how)
    with suppress(OSError):
        os.write(err, line.encode())


def main(arguments: Sequence[str]) -> None:
    """Look at a process, as `watch` has started it."""
    process, end, looks, between_s, grace, path = json.loads(arguments[1])
    sys.path[:] = path
    _look(process, end, looks, between_s, grace)


if __name__ == "__main__":
    main(sys.argv)
