"""Every step that vpatch makes on the disk, seen and faulted by the tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

STEPS = ("open", "write", "fsync", "fchmod", "fchown", "utime", "replace", "unlink", "mkdir", "rmdir")
SCENARIOS = {
    "apply": ("pristine", "first"),
    "apply more": ("first", "second"),
    "revert some": ("second", "first"),
    "revert": ("second", "pristine"),
}
"""Runs: which of `Sandbox.goals` is there, and which is desired."""


@dataclass(frozen=True)
class Step:
    """A step that is about to be made: its number from 1, its function's name, its arguments, and the function."""

    number: int
    name: str
    args: tuple[Any, ...]
    make: Callable[..., Any]

    def write_half(self) -> int:
        """Write half of what this step writes; return how much that is."""
        return int(self.make(self.args[0], bytes(self.args[1])[: len(self.args[1]) // 2]))


Fault = Callable[[Step], object]


def killed_at(number: int) -> Fault:
    """Kill this process before a step, or in the middle of a write."""

    def fault(step: Step) -> None:
        if step.number == number:
            if step.name == "write":
                step.write_half()
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


def whole(args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a step, with absolute paths instead of names in open folders."""
    folders = [options.get(key) for key in ("dir_fd", "src_dir_fd", "dst_dir_fd") if options.get(key) is not None]
    found = [f"{os.readlink(f'/proc/self/fd/{folder}')}/{args[n]}" for n, folder in enumerate(folders)]  # noqa: PTH115
    return (*found, *args[len(found) :])


@contextmanager
def at_each_step(fault: Fault) -> Iterator[list[str]]:
    """Call `fault` before each step on the disk; yield the list of steps, with "look" for an `open` for reading.

    What `fault` itself does is no step.
    """
    real = {name: getattr(os, name) for name in STEPS}
    made: list[str] = []
    at_work = False

    def wrap(name: str) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal at_work
            if not at_work:
                at_work = True
                made.append("look" if name == "open" and not args[1] & os.O_CREAT else name)
                try:
                    fault(Step(len(made), name, whole(args, kwargs), real[name]))
                finally:
                    at_work = False
            return real[name](*args, **kwargs)

        return step

    for name in STEPS:
        setattr(os, name, wrap(name))
    try:
        yield made
    finally:
        for name, function in real.items():
            setattr(os, name, function)
