"""Lock open files and folders. The kernel drops a lock when the process ends, even by `kill -9`."""

from __future__ import annotations

import fcntl
import time

_PAUSE = 0.05


def lock(file: int, *, shared: bool = False, patience: float | None = None) -> None:
    """Lock an open file or folder against other processes.

    Args:
        file: its descriptor.
        shared: whether other shared locks may exist beside this one.
        patience: how long to wait for other processes, in seconds; None: as long as it takes.

    Raises:
        BlockingIOError: another process has it locked.
        OSError: the file system has no locks.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if patience is None:
        fcntl.flock(file, kind)
        return
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE)
