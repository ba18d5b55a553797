"""The tests of an image, in containers of it and without, and their outcomes."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import dropwhile, islice, pairwise, takewhile
from typing import TYPE_CHECKING

from vpatch.core.overlay import Catalogued
from vpatch.image import guest
from vpatch.image.config import read_json
from vpatch.image.filesystem import Files
from vpatch.image.patch import Provenance
from vpatch.image.watch import Phase

if TYPE_CHECKING:
    from vpatch.image.engine.containers import ScriptRunner

_TRACEBACK = "Traceback (most recent call last):"
_UNRELATED = ("Exception ignored", "Exception in thread")  # their tracebacks are not why the script ended
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch.distributed's prefix of each line
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_MAX_ERROR = 500  # characters
_TIMEOUT = 600  # seconds: a cold import of vLLM from a slow disk
_GPU_TIMEOUT = 1800  # seconds: a server that compiles kernels before its first answer


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
    for answer in guest.check_tree(root, provenance.dist_info, provenance.text, files.read, files.names):
        yield Check(*answer)
    probes = [probe for item in installed if item.id in provenance.applied for probe in item.overlay.probes]
    names = (*(f"import {module}" for module in provenance.modules), *(f"probe {probe.name}" for probe in probes))
    yield from (Check(name, None, "needs a container") for name in ("interpreter", *names))


def run_checks(
    runner: ScriptRunner,
    provenance: Provenance,
    tests: frozenset[str],
    installed: Sequence[Catalogued],
    phase: Phase,
) -> Iterator[Check]:
    """Run the `tests` of an `Order`; probes are those of `installed` overlays whose changes are in the image."""
    script = (resources.files("vpatch.image") / "guest.py").read_text("utf-8")
    if tests:
        phase("testing: files")
        yield from _check_files(runner, script, provenance)
    if "containers" in tests:
        phase(f"testing: import of {len(provenance.modules)} modules")
        code, out, err = runner.run(script, ["imports", json.dumps(provenance.modules)], seconds=_TIMEOUT)
        yield from import_outcomes(provenance.modules, code, out, err, _TIMEOUT)
    for item in (item for item in installed if item.id in provenance.applied):
        for probe in item.overlay.probes:
            if ("gpus" if probe.gpu else "containers") in tests:
                phase(f"testing: probe {probe.name}")
                seconds = _GPU_TIMEOUT if probe.gpu else _TIMEOUT
                code, _, err = runner.run(probe.script, seconds=seconds, gpus=probe.gpu)
                yield outcome(f"probe {probe.name}", code, err, seconds)


def _check_files(runner: ScriptRunner, script: str, provenance: Provenance) -> Iterator[Check]:
    question = {"root": provenance.root, "dist_info": provenance.dist_info, "provenance": provenance.text}
    code, out, err = runner.run(script, ["files", json.dumps(question)], seconds=_TIMEOUT)
    try:
        yield from [Check(*answer) for answer in read_json(out.splitlines()[-1])]
    except (ValueError, IndexError, TypeError):
        why = (err.strip().splitlines() or [f"{runner.python} ends with exit code {code}"])[-1]
        yield Check("files", ok=False, because=why)


def outcome(name: str, code: int | None, stderr: str, limit_s: float) -> Check:
    """Return the outcome of a probe, whose exit status is None if it was stopped; `stderr` may include stdout."""
    if code == 0:
        return Check(name, ok=True, because="")
    if code is None:
        return Check(name, ok=False, because=f"it did not end within {limit_s:g} s")
    error = _last_error(_RANK.sub("", stderr))
    if missing := _missing(error):
        return Check(name, ok=None, because=f"the image lacks {missing}")
    return Check(name, ok=False, because=error.removeprefix("AssertionError: ") or _exit(code, stderr))


def import_outcomes(modules: Sequence[str], code: int | None, out: str, err: str, limit_s: float) -> tuple[Check, ...]:
    """Return the outcome of importing each module, which the guest script printed to `out`; else all of them failed."""
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
