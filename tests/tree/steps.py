"""Every step that vpatch makes on the disk, seen and faulted by the tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

STEPS = ("open", "write", "fsync", "fchmod", "fchown", "utime", "replace", "unlink", "mkdir", "rmdir")
Fault = Callable[[int, str, Callable[..., Any], tuple[Any, ...]], None]


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
                    fault(len(made), name, real[name], whole(args, kwargs))
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
