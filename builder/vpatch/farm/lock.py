"""Who removes farms has their folder alone: no start is between its look at a farm and the command.

A command that finds its farm removed would import the stock vLLM without a word.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path


class Held(Enum):
    """How a folder of farms is held by who wants to remove some."""

    ALONE = "no start goes on"
    BUSY = "a start goes on"
    UNKNOWN = "the file system has no locks"


def share(store: Path) -> int | None:
    """Let nobody remove a farm until the descriptor is closed, as it is when this process becomes another program.

    Then PYTHONPATH in the environment of the process shows that the farm is in use. While farms are removed, it waits.

    Args:
        store: the folder of the farms; it may be mounted read-only.

    Returns:
        The descriptor; None if the file system has no locks.
    """
    return _locked(store, fcntl.LOCK_SH)


@contextmanager
def alone(store: Path) -> Iterator[Held]:
    """Let no start look at a farm meanwhile; do not wait for those that have."""
    try:
        lock = _locked(store, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield Held.BUSY
        return
    try:
        yield Held.UNKNOWN if lock is None else Held.ALONE
    finally:
        if lock is not None:
            os.close(lock)


def _locked(store: Path, how: int) -> int | None:
    try:
        lock = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, how)
    except BaseException as error:
        os.close(lock)
        if isinstance(error, OSError) and not isinstance(error, BlockingIOError):
            return None
        raise
    return lock
