"""Processes that compile and run cases side by side, and the time that a run may take."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

STALLED = 240.0
"""Seconds without any result after which the workers are given up; one of them may have crashed."""

Job = TypeVar("Job")
Result = TypeVar("Result")


class Clock:
    """The time since the start, and until the deadline if there is one."""

    def __init__(self, deadline: float | None) -> None:
        self._start, self._deadline = time.monotonic(), deadline

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds until the deadline, at most an hour: no part takes longer."""
        return 3600.0 if self._deadline is None else self._deadline - self.elapsed

    def over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.left <= 0


class Workers:
    """Worker processes, started on first use; leaving the block ends them, whatever they do."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._pool:
            self._pool.terminate()
            self._pool.join()
            self._pool = None

    def run(
        self, function: Callable[[Job], Result], jobs: Sequence[Job], clock: Clock
    ) -> Iterator[tuple[Job, Result | None]]:
        """Yield jobs with their results in any order; with None those that did not finish in time."""
        if self._pool is None and jobs and not clock.over():
            # CUDA cannot be used after a fork.
            self._pool = multiprocessing.get_context("spawn").Pool(min(self._count, len(jobs)))
        left = dict(enumerate(jobs))
        if self._pool:
            finished = self._pool.imap_unordered(_Numbered(function), list(left.items()))
            while left and not clock.over():
                try:
                    number, result = finished.next(timeout=min(clock.left, STALLED))
                except multiprocessing.TimeoutError:
                    self._stop()
                    break
                yield left.pop(number), result
        yield from ((job, None) for job in left.values())


class _Numbered:
    """A function on a numbered job, which returns the number as well; can be pickled."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, job: tuple[int, Any]) -> tuple[int, Any]:
        return job[0], self._function(job[1])


def default_workers() -> int:
    """Return how many processes compile side by side: half of the cores, at most 8.

    Each holds half a GiB of GPU memory and 3 GiB of the machine's.
    """
    return max(1, min(8, (os.cpu_count() or 2) // 2))
