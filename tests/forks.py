"""The program in a fork of the tests' process: real streams and exit codes, with all that is imported and parsed.

A new interpreter takes a fifth of a second of processor time, and seconds to parse. The fixture `process` starts one.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from vpatch.cli import run

CLOSED = -1
"""In place of the descriptor of a stream that the program does not have."""


def start(
    *arguments: str | Path,
    streams: tuple[int, int, int],
    env: Mapping[str, str] | None = None,
    first: Callable[[], object] = lambda: None,
) -> int:
    """Start the program in a fork, with these descriptors as its streams, after a call of `first`; return its id."""
    child = os.fork()
    if child == 0:
        atexit._clear()  # what the tests' process does at its end
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _redirect(streams)
        os.environ.update(env or {})
        sys.argv = ["vpatch", *map(str, arguments)]
        _run(first)
    return child


def _redirect(streams: tuple[int, int, int]) -> None:
    sources = [stream if stream == CLOSED else os.dup(stream) for stream in streams]
    for number, source in enumerate(sources):
        os.close(number) if source == CLOSED else os.dup2(source, number)

    def text(number: int, errors: str) -> TextIOWrapper | None:
        if streams[number] == CLOSED:
            return None
        return TextIOWrapper(open(number, "wb", closefd=False), "utf-8", errors, line_buffering=os.isatty(number))

    sys.stdout, sys.stderr = text(1, "strict"), text(2, "backslashreplace")


def _run(first: Callable[[], object]) -> NoReturn:
    code = 70
    try:
        first()
        run()
    except SystemExit as end:
        code = int(end.code or 0)
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a child; return its exit code, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def output(
    *arguments: str | Path, env: Mapping[str, str] | None = None, first: Callable[[], object] = lambda: None
) -> tuple[int, str, str]:
    """Run the program in a fork; return its exit code and what it wrote to standard output and standard error."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
        streams = (nothing.fileno(), out.fileno(), err.fileno())
        code = ended(start(*arguments, streams=streams, env=env, first=first))
        out.seek(0)
        err.seek(0)
        return code, out.read().decode("utf-8", "surrogateescape"), err.read().decode("utf-8", "surrogateescape")
