"""Run code of other packages, which may print, close what vpatch writes to, or end the process."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from select import select
from typing import NamedTuple, NoReturn, TextIO

PATIENCE = 60.0  # seconds: a package of overlays may import torch
_DONE = b"\0"

Note = Callable[[str], object]
"""Takes the name of what begins."""


class Death(NamedTuple):
    """How code ended the process that ran it, or did not end itself: `during` is what was noted last."""

    during: str
    how: str


def death(module: str, work: Callable[[Note], object]) -> Death | None:
    """Run `work`, which imports `module`, in a fork of this process; return how it died, None if it came to its end.

    Nothing is run if this process has the module already, or if it has threads: a fork may wait for their locks for
    ever.
    """
    if module in sys.modules or threading.active_count() > 1:
        return None
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of compiled code, about which Python 3.12 warns
        child = os.fork()
    if child == 0:
        _rehearse(work, write)
    try:
        os.close(write)
        heard, late = _heard(read)
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)  # it is a zombie, or has nothing left to do
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if heard.endswith(_DONE):
        return None
    how = f"does not end within {PATIENCE:g} seconds" if late else _how(code)
    return Death(heard.decode("utf-8", "replace").rpartition("\n")[2], how)


def _how(code: int) -> str:
    if code < 0:
        return f"ends the program by {signal.Signals(-code).name}"
    return f"ends the program with exit code {code}"


def _rehearse(work: Callable[[Note], object], write: int) -> NoReturn:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a death that is expected leaves no core
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user interrupts the process that waits, which kills this one
        write = _copy(write) or write
        _discard(0, 1, 2)
        with _streams(open(1, "w", closefd=False)):
            work(lambda name: os.write(write, f"\n{name}".encode()))
        os.write(write, _DONE)
    except KeyboardInterrupt:
        os._exit(130)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _heard(read: int) -> tuple[bytes, bool]:
    """Return what a child says until it is done or dead, and whether it takes too long."""
    heard, until = b"", time.monotonic() + PATIENCE
    while not heard.endswith(_DONE):
        if not select([read], [], [], max(0.0, until - time.monotonic()))[0]:
            return heard, True
        if not (part := os.read(read, 4096)):
            break
        heard += part
    return heard, False


@contextmanager
def apart() -> Iterator[None]:
    """Keep standard output for vpatch during the block: what others write to it goes to standard error.

    Both streams are as before afterwards, even if others closed or replaced them. This changes the whole process.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    kept = {number: _copy(number) for number in (1, 2)}
    try:
        if kept[2] is None:
            _discard(2)
        os.dup2(2, 1)
        with _streams(open(1, "w", errors="backslashreplace", closefd=False)):
            yield
    finally:
        for number, copy in kept.items():
            if copy is None:
                with suppress(OSError):
                    os.close(number)
            else:
                os.dup2(copy, number)
                os.close(copy)


def _copy(number: int) -> int | None:
    """Copy a descriptor; return None if it was closed before vpatch started. The numbers of streams are not used."""
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return None


def _discard(*numbers: int) -> None:
    """Let what is written to these descriptors be lost, and nothing be read from them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(nothing, number)
    if nothing not in numbers:
        os.close(nothing)


@contextmanager
def _streams(other: TextIO) -> Iterator[None]:
    """Let all that is printed during the block go to another stream."""
    names = ("stdout", "stderr", "__stdout__", "__stderr__")
    ours = {name: getattr(sys, name) for name in names}
    try:
        for name in names:
            setattr(sys, name, other)
        yield
        with suppress(OSError, ValueError):
            other.flush()
    finally:
        for name, stream in ours.items():
            setattr(sys, name, stream)
