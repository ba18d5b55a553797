"""Prove that what is applied is whole."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from vpatch.core import nesting
from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State, Verdict
from vpatch.errors import Failure, Problem
from vpatch.tree.locate import is_checkout
from vpatch.tree.running import imported, loaded
from vpatch.tree.tree import Site
from vpatch.tree.writer import originals, record_problems, stale_bytecode


@dataclass(frozen=True)
class Verified:
    """The verdicts, what is wrong, and what could not be looked at, in words."""

    verdicts: tuple[Verdict, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()


def verify(site: Site, overlays: Sequence[Catalogued], *, asked: bool, python: Path | None) -> Verified:
    """Check every overlay that is applied, wholly or in part; with `asked`, all of `overlays` must be.

    Args:
        site: the tree.
        overlays: those to look for.
        asked: whether they were named one by one.
        python: an interpreter that must import exactly these files, and from them the functions that were changed. A
            module that it cannot import is a problem if changed code raised the error, and a note otherwise, or if the
            error may come from a package, library, device or compiled extension that is missing.
    """
    seen: set[str] = set()

    def read(file: str) -> bytes | None:
        seen.add(file)
        return site.read(file)

    verdicts = Engine(overlays).status(read)
    touched = [(v, [f for f in _files(v) if v.id in marks_in(site.read(f) or b"")]) for v in verdicts]
    problems: list[Problem] = []
    for verdict, files in touched:
        if verdict.state in {State.DRIFTED, State.CONFLICT}:
            problems.extend(verdict.problems if files or asked else ())
        elif verdict.state is not State.APPLIED and (files or (asked and verdict.state is not State.MERGED)):
            half = f"half applied ({', '.join(files)})" if files else verdict.state
            problems.append(Problem("not applied", str(site.root), f"{verdict.id} is {half}: {verdict.because}"))
    changed = sorted({file for _, files in touched for file in files})
    if not changed and not problems and not asked:
        problems.append(Problem("nothing to verify", str(site.root), "no overlay is applied"))
    problems.extend(p for file in changed for p in compiles(file, site.read(file) or b""))
    if changed and not is_checkout(site):
        problems.extend(_recorded(site, seen))
    problems.extend(stale_bytecode(site, changed))
    notes: tuple[str, ...] = ()
    if python:
        problems.extend(imported(site, changed, python))
        if not problems:
            replaced, notes = loaded(site, changed, python)
            problems.extend(replaced)
    return Verified(verdicts, tuple(problems), notes)


def _files(verdict: Verdict) -> list[str]:
    return sorted({file for part in verdict.parts for file in part.files})


def _recorded(site: Site, read: Collection[str]) -> list[Problem]:
    """Look at what the overlays read, and at what vpatch once wrote, which may be gone."""
    try:
        wrote = originals(site)
    except Failure as failure:
        return list(failure.problems)
    return list(record_problems(site, {*wrote, *(file for file in read if site.read(file) is not None)}))


def compiles(file: str, data: bytes) -> list[Problem]:
    """List why a module does not compile: what this Python says against it, or that it is too large."""
    try:
        nesting.bound(nesting.decode(data)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, file, "exec", dont_inherit=True)
    except (nesting.Refused, SyntaxError, ValueError) as error:
        return [Problem("does not compile", file, str(error))]
    except (RecursionError, MemoryError):
        return [Problem("does not compile", file, "nested too deeply")]
    return []
