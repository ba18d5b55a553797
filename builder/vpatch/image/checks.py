"""The tests of an image: their outcomes, and those that need no container."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vpatch.core.overlay import Catalogued
from vpatch.image.config import read_json
from vpatch.image.filesystem import Files
from vpatch.image.guest import checks as guest
from vpatch.image.patch import Provenance

_TRACEBACK = "Traceback (most recent call last):"
_UNRELATED = ("Exception ignored", "Exception in thread")  # their tracebacks are not why the script ended
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch.distributed's prefix of each line
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_MAX_ERROR = 500  # characters


@dataclass(frozen=True)
class Check:
    """The outcome of one test of an image: `ok` is None if it was not run or cannot be decided."""

    name: str
    ok: bool | None
    because: str

    def __str__(self) -> str:
        word = "not run" if self.ok is None else "passed" if self.ok else "FAILED"
        return f"{self.name}: {word}: {self.because}"


def failed(tests: Iterable[Check]) -> bool:
    """Whether a test failed; one that was not run did not."""
    return any(test.ok is False for test in tests)


def check_files(files: Files, provenance: Provenance, installed: Sequence[Catalogued]) -> Iterator[Check]:
    """Test an image without a container; tests that need one are yielded as not run."""
    root = provenance.root.strip("/")
    answers = guest.check_tree(root, provenance.dist_info, provenance.text, files.read, files.names)
    yield from (Check(*answer) for answer in answers)
    probes = [probe for item in installed if item.id in provenance.applied for probe in item.overlay.probes]
    names = (*(f"import {module}" for module in provenance.modules), *(f"probe {probe.name}" for probe in probes))
    yield from (Check(name, None, "it needs a container") for name in ("interpreter", *names))


def outcome(name: str, code: int | None, stderr: str, limit_s: float) -> Check:
    """Return the outcome of a probe: `ok` is None if the image lacks something it needs that is not vLLM's Python code.

    `code` is the script's exit status, None if it was stopped after `limit_s` seconds; `stderr` may include stdout.
    """
    if code == 0:
        return Check(name, ok=True, because="")
    if code is None:
        return Check(name, ok=False, because=f"it did not end within {limit_s:g} s")
    error = _last_error(_RANK.sub("", stderr))
    if missing := _missing(error):
        return Check(name, ok=None, because=f"the image lacks {missing}")
    return Check(name, ok=False, because=error.removeprefix("AssertionError: ") or _exit(code, stderr))


def import_outcomes(modules: Sequence[str], code: int | None, out: str, err: str, limit_s: float) -> tuple[Check, ...]:
    """Return the outcome of importing each module, as the guest script `imports` printed it to `out`.

    If it printed none, all of them failed. The other arguments are those of `outcome`.
    """
    answers = [line for line in out.splitlines() if line.startswith("vpatch: ")]
    if code == 0 and answers:
        try:
            found = read_json(answers[-1].removeprefix("vpatch: "))
            return tuple(Check(f"import {module}", **found[module]) for module in modules)
        except (ValueError, LookupError, TypeError):  # something else has written to stdout
            pass
    one = outcome("", code, err, limit_s)
    if one.ok:
        one = Check("", ok=False, because=f"it did not answer: {_last_line(err)}")
    return tuple(Check(f"import {module}", one.ok, one.because) for module in modules)


def _last_error(stderr: str) -> str:
    """Return the error of the last traceback, with its indented lines, on one line; "" if there is no traceback."""
    lines = stderr.splitlines()
    starts = [
        number
        for number, line in enumerate(lines)
        if line == _TRACEBACK and not (number and lines[number - 1].startswith(_UNRELATED))
    ]
    if not starts:
        return ""
    error: list[str] = []
    for line in lines[starts[-1] + 1 :]:
        if error and not line.startswith(" "):
            break
        if error or not line.startswith(" "):
            error.append(line)
    return " ".join(" ".join(error).split())[:_MAX_ERROR]


def _missing(error: str) -> str | None:
    """Return the module or library that the image lacks, None if the error is vLLM's own."""
    if absent := _MISSING.match(error):
        ours = absent[1].partition(".")[0] == "vllm" and not guest.COMPILED.fullmatch(absent[1])
        return None if ours else absent[1]
    library = guest.LIBRARY.search(error) if error.startswith(("ImportError: ", "OSError: ")) else None
    return library[1] if library else None


def _exit(code: int, stderr: str) -> str:
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        return f"it was ended by {signal.Signals(number).name}"
    return f"it ended with {code}: {_last_line(stderr)}"


def _last_line(stderr: str) -> str:
    return stderr.strip().rpartition("\n")[2][:_MAX_ERROR]
