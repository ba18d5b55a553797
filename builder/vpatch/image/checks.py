"""What an image is tested for: its files and modules, in containers and without, and GPUs that its code must serve."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from vpatch import guest
from vpatch.core.overlay import Catalogued
from vpatch.errors import Problem
from vpatch.foreign import parse_json
from vpatch.gpu.fatbin import parse_gpu
from vpatch.gpu.fitness import Served, fitness, lacking, survey
from vpatch.guest.check import check_tree
from vpatch.image import Phase
from vpatch.image.config import Base, extra_required
from vpatch.image.filesystem import Files, Place, read_record
from vpatch.image.patch import Label
from vpatch.script import ending, last_line
from vpatch.tree.bytecode import refusal

if TYPE_CHECKING:
    from vpatch.image.engine.containers import ScriptRunner

_TIMEOUT = 600  # seconds: a cold import of vLLM from a slow disk
_GPU_TIMEOUT = 1800  # seconds: a server that compiles kernels before its first answer


@dataclass(frozen=True)
class Check:
    """The outcome of one test of an image: `ok` is None if it was not run or cannot be decided."""

    name: str
    ok: bool | None
    because: str


def failed(tests: Iterable[Check]) -> bool:
    """Whether a test failed; one that was not run did not."""
    return any(test.ok is False for test in tests)


def check_files(files: Files, label: Label, installed: Sequence[Catalogued]) -> Iterator[Check]:
    """Test an image without a container; tests that need one are yielded as not run."""
    root = label.root.strip("/")
    about = (root, label.dist_info, label.text)
    for answer in check_tree(*about, files.read, files.names, refusal):
        yield Check(*answer)
    probes = [probe for item in installed if item.id in label.applied for probe in item.overlay.probes]
    names = (*(f"import {module}" for module in label.modules), *(f"probe {probe.name}" for probe in probes))
    yield from (Check(name, None, "needs a container") for name in ("interpreter", *names))


def run_checks(
    runner: ScriptRunner,
    label: Label,
    tests: frozenset[str],
    installed: Sequence[Catalogued],
    phase: Phase,
) -> Iterator[Check]:
    """Run the `tests` of an `Order`; probes are those of `installed` overlays whose changes are in the image."""
    if tests:
        phase("testing: files")
        yield from _check_files(runner, label)
    if "containers" in tests:
        phase(f"testing: import of {len(label.modules)} modules")
        script = guest.script("answer_imports", "loaded")
        code, out, err = runner.run(script, [json.dumps(label.modules)], seconds=_TIMEOUT)
        yield from import_outcomes(label.modules, code, out, err, _TIMEOUT)
    for item in (item for item in installed if item.id in label.applied):
        for probe in item.overlay.probes:
            if ("gpus" if probe.gpu else "containers") in tests:
                phase(f"testing: probe {probe.name}")
                seconds = _GPU_TIMEOUT if probe.gpu else _TIMEOUT
                code, _, err = runner.run(probe.script, seconds=seconds, gpus=probe.gpu)
                yield outcome(f"probe {probe.name}", code, err, seconds)


def _check_files(runner: ScriptRunner, label: Label) -> Iterator[Check]:
    question = {"root": label.root, "dist_info": label.dist_info, "provenance": label.text}
    code, out, err = runner.run(guest.check_script("answer_files"), [json.dumps(question)], seconds=_TIMEOUT)
    try:
        yield from [Check(*answer) for answer in parse_json(out.splitlines()[-1])]
    except (ValueError, IndexError, TypeError):
        why = (err.strip().splitlines() or [f"{runner.python} ends with exit code {code}"])[-1]
        yield Check("files", ok=False, because=why)


def outcome(name: str, code: int | None, stderr: str, limit_s: float) -> Check:
    """Return the outcome of a probe, whose exit status is None if it was stopped; `stderr` may include stdout."""
    end = ending(code, stderr, limit_s, "the image")
    return Check(name, end.ok, end.because)


def import_outcomes(modules: Sequence[str], code: int | None, out: str, err: str, limit_s: float) -> tuple[Check, ...]:
    """Return the outcome of importing each module, which the guest script printed to `out`; else all of them failed."""
    answers = [line for line in out.splitlines() if line.startswith("vpatch: ")]
    if code == 0 and answers:
        try:
            found = parse_json(answers[-1].removeprefix("vpatch: "))
            return tuple(Check(f"import {module}", **found[module]) for module in modules)
        except (ValueError, LookupError, TypeError):  # something else has written to stdout
            pass
    one = outcome("", code, err, limit_s)
    if one.ok:
        one = Check("", ok=False, because=f"it did not answer: {last_line(err)}")
    return tuple(Check(f"import {module}", one.ok, one.because) for module in modules)


def check_names(architectures: Sequence[str]) -> None:
    """Check, before anything is read, the names of GPU architectures, and that the ELF reader is installed."""
    for name in architectures:
        parse_gpu(name)
    if architectures:
        with extra_required("cannot look"):
            import elftools.common.exceptions  # noqa: F401


@dataclass(frozen=True)
class Support:
    """Whether an image's extensions serve the wanted architectures."""

    problems: tuple[Problem, ...] = ()
    unserved: tuple[str, ...] = ()  # the architectures that the problems are about
    notes: tuple[str, ...] = ()  # what they need
    details: tuple[str, ...] = ()  # how well each file serves each of them; what is a problem is not repeated
    extra: dict[str, Any] = field(default_factory=dict)  # for the JSON


def check_support(files: Files, vllm: Place, base: Base, architectures: Sequence[str]) -> Support:
    """Survey the extensions that RECORD lists."""
    if not architectures:
        return Support()
    metadata = files.read(f"{vllm.root}/{vllm.dist_info}/METADATA")
    found = survey(_extensions(files, vllm), metadata.decode("utf-8", "replace") if metadata else None, base.env)
    by_name = {name: fitness(found, name) for name in architectures}
    required = {
        name: [{"name": one.name, "says": one.level.value, "because": one.because} for one in of_all]
        for name, of_all in by_name.items()
    }
    served = (f"{name}: {one}" for name, of_all in by_name.items() for one in of_all if one.level is not Served.LACKS)
    *carried, needs = found.lines()
    lacks = {f"sm_{parse_gpu(name)}": lacking(found, name) for name in architectures}
    return Support(
        problems=tuple(problem for why in lacks.values() for problem in why),
        unserved=tuple(name for name, why in lacks.items() if why),
        notes=(needs,),
        details=(*carried, *served),
        extra={"cuda": {**found.as_json(), "required": required}},
    )


def _extensions(files: Files, vllm: Place) -> Iterator[tuple[str, IO[bytes]]]:
    found = read_record(files, vllm)
    rows = found.rows if found else ()
    for path in sorted(row.path for row in rows if row.path.startswith("vllm/") and row.path.endswith(".so")):
        if (file := files.open(f"{vllm.root}/{path}")) is not None:
            with closing(file):
                yield path, file
