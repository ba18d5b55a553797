"""How a script runs by the interpreter of a vLLM, in an image or on this machine, and what its ending means."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from itertools import dropwhile, islice, pairwise, takewhile

from vpatch.guest.loaded import lacking

_TRACEBACK = "Traceback (most recent call last):"
_UNRELATED = ("Exception ignored", "Exception in thread")  # their tracebacks are not why the script ended
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch.distributed's prefix of each line
_MISSING = re.compile(r"No module named '([^']+)'")
_ASSERTION = "AssertionError: "
_MAX_ERROR = 500  # characters

# The user's site-packages stay where they are: Python has found them before it runs this.
_PREAMBLE = """\
import os, site, sys
os.environ.update(HOME={home!r}, TMPDIR={home!r}, PYTHONUSERBASE=site.getuserbase())
exec(compile(sys.argv.pop(1), "<string>", "exec", dont_inherit=True))
"""


def preamble(home: str) -> str:
    """Return the code that runs the script in the first argument with its home, and so its caches, in a folder."""
    return _PREAMBLE.format(home=home)


@dataclass(frozen=True)
class Ending:
    """How a script ended.

    Attributes:
        ok: whether it succeeded; None if it could not run, for want of a module or library.
        because: the reason, "" if it succeeded.
        asserted: whether it failed by an AssertionError, as a probe does that finds the defect.
    """

    ok: bool | None
    because: str = ""
    asserted: bool = False


def ending(code: int | None, stderr: str, limit_s: float, surroundings: str) -> Ending:
    """Return how a script ended.

    Args:
        code: its exit status; None if it was stopped.
        stderr: its output; it may include stdout.
        limit_s: the time that it had, in seconds.
        surroundings: what lacks a module that is missing, such as "the image".
    """
    if code == 0:
        return Ending(ok=True)
    if code is None:
        return Ending(ok=False, because=f"it did not end within {limit_s:g} s")
    error = _last_error(_RANK.sub("", stderr))
    if missing := _missing(error):
        return Ending(ok=None, because=f"{surroundings} lacks {missing}")
    asserted = error.partition(":")[0] == "AssertionError"
    return Ending(ok=False, because=error.removeprefix(_ASSERTION) or _exit(code, stderr), asserted=asserted)


def last_line(stderr: str) -> str:
    """Return the last line of an output, shortened."""
    return stderr.strip().rpartition("\n")[2][:_MAX_ERROR]


def _last_error(stderr: str) -> str:
    """Return the error of the last traceback, with its indented lines, on one line; "" without a traceback."""
    lines = stderr.splitlines()
    pairs = enumerate(pairwise(["", *lines]))
    starts = [number for number, (above, line) in pairs if line == _TRACEBACK and not above.startswith(_UNRELATED)]
    if not starts:
        return ""
    frames = dropwhile(lambda line: line.startswith(" "), lines[starts[-1] + 1 :])
    error = [*islice(frames, 1), *takewhile(lambda line: line.startswith(" "), frames)]
    return " ".join(" ".join(error).split())[:_MAX_ERROR]


def _missing(error: str) -> str | None:
    kind, _, message = error.partition(": ")
    kinds = [kind, *(["ImportError"] if kind == "ModuleNotFoundError" else [])]
    absent = _MISSING.match(message)
    return lacking([{"kinds": kinds, "message": message, "name": absent and absent[1]}])


def _exit(code: int, stderr: str) -> str:
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        return f"it was ended by {signal.Signals(number).name}"
    return f"it ended with {code}: {last_line(stderr)}"
