"""Locks on the folder of farms: none is removed between a start's look at its farm and the command.

A command whose farm is gone would import the stock vLLM, and nothing would say so.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path


class Held(Enum):
    """Whether a command is being started with a farm of the folder, as far as its lock shows."""

    ALONE = "no command is"
    BUSY = "a command is"
    UNKNOWN = "the file system has no locks"


def share(store: Path) -> int | None:
    """Keep farms from being removed until the descriptor is closed, as it is when this process becomes the command.

    Then PYTHONPATH in the environment of the process shows that the farm is in use. While farms are removed, it waits.

    Args:
        store: the folder of the farms; it may be mounted read-only.

    Returns:
        The descriptor; None if the file system has no locks.
    """
    return _locked(store, fcntl.LOCK_SH)


@contextmanager
def alone(store: Path) -> Iterator[Held]:
    """Lock the folder against starts while farms are removed; do not wait for a start that has begun."""
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
