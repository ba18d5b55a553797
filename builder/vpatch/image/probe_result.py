"""What the scripts that ran inside an image came to, told from their exit status and what they wrote."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from vpatch.image.guest.imports import COMPILED, LIBRARY
from vpatch.image.model import Tested
from vpatch.image.shapes import read_json

TRACEBACK = "Traceback (most recent call last):"
BESIDE = ("Exception ignored", "Exception in thread")  # tracebacks that are not why the script ended
RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # what torch.distributed puts before each line
ABSENT = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
LONGEST = 500


def outcome(name: str, code: int | None, stderr: str, limit_s: float) -> Tested:
    """Say what a probe came to.

    Args:
        name: what the test is called.
        code: its exit status; None where it was stopped because it took longer than `limit_s` seconds.
        stderr: what it wrote to stderr; it may be mixed with what it wrote to stdout.
        limit_s: the seconds that it had.

    Returns:
        The test, with `ok` None if the image lacks something that the probe wants and that is not vLLM's Python code.
    """
    if code == 0:
        return Tested(name, ok=True, because="")
    if code is None:
        return Tested(name, ok=False, because=f"it did not end within {limit_s:g} s")
    error = _error(RANK.sub("", stderr))
    if lacks := _lacking(error):
        return Tested(name, ok=None, because=f"the image lacks {lacks}")
    return Tested(name, ok=False, because=error.removeprefix("AssertionError: ") or _ended(code, stderr))


def imported(modules: Sequence[str], code: int | None, stdout: str, stderr: str, limit_s: float) -> tuple[Tested, ...]:
    """Say what the script `vpatch.image.guest.imports` came to, one test for each module that it was to import.

    Where it did not answer, all of them failed, since nobody knows which; arguments are as for `outcome`.
    """
    said = [line for line in stdout.splitlines() if line.startswith("vpatch: ")]
    if code == 0 and said:
        try:
            found = read_json(said[-1].removeprefix("vpatch: "))
            return tuple(Tested(f"import {module}", **found[module]) for module in modules)
        except (ValueError, LookupError, TypeError):  # another has written to stdout
            pass
    one = outcome("", code, stderr, limit_s)
    if one.ok:
        one = Tested("", ok=False, because=f"it did not answer: {_last(stderr)}")
    return tuple(Tested(f"import {module}", one.ok, one.because) for module in modules)


def _error(stderr: str) -> str:
    """Give the last line of the traceback that a script ended with, and what is indented below; "" if it has none."""
    lines = stderr.splitlines()
    starts = [
        number
        for number, line in enumerate(lines)
        if line == TRACEBACK and not (number and lines[number - 1].startswith(BESIDE))
    ]
    if not starts:
        return ""
    error: list[str] = []
    for line in lines[starts[-1] + 1 :]:
        if error and not line.startswith(" "):
            break
        if error or not line.startswith(" "):
            error.append(line)
    return " ".join(" ".join(error).split())[:LONGEST]


def _lacking(error: str) -> str | None:
    """Give the module or library for want of which a script ended."""
    if absent := ABSENT.match(error):
        ours = absent[1].partition(".")[0] == "vllm" and not COMPILED.fullmatch(absent[1])
        return None if ours else absent[1]
    library = LIBRARY.search(error) if error.startswith(("ImportError: ", "OSError: ")) else None
    return library[1] if library else None


def _ended(code: int, stderr: str) -> str:
    """Say how a script ended that left no traceback."""
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        return f"it was ended by {signal.Signals(number).name}"
    return f"it ended with {code}: {_last(stderr)}"


def _last(stderr: str) -> str:
    """Give the last line that was written."""
    return stderr.strip().rpartition("\n")[2][:LONGEST]
