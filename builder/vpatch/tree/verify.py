"""Check that what is applied is complete, and that an interpreter imports and runs exactly that."""

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
from vpatch.tree import Tree, backup, bytecode, record
from vpatch.tree.locate import is_checkout
from vpatch.tree.running import imported, loaded


@dataclass(frozen=True)
class Verified:
    """The verdicts, the problems, and notes on what could not be checked."""

    verdicts: tuple[Verdict, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()


def verify(tree: Tree, overlays: Sequence[Catalogued], *, asked: bool, python: Path | None) -> Verified:
    """Check every overlay that is applied, wholly or in part.

    Args:
        tree: the tree.
        overlays: those to check.
        asked: whether they were named one by one; then all of them must be applied.
        python: an interpreter that must import exactly these files, and from them the functions that were changed. A
            module that it cannot import is a problem if changed code raised the error. If the error may come from a
            package, library, device or compiled extension that is missing, or from other code, it is a note.
    """
    seen: set[str] = set()

    def read(file: str) -> bytes | None:
        seen.add(file)
        return tree.read(file)

    verdicts = Engine(overlays).status(read)
    touched = [(v, [f for f in v.files if v.id in marks_in(tree.read(f) or b"")]) for v in verdicts]
    problems = [problem for verdict, files in touched for problem in _unapplied(tree, verdict, files, asked=asked)]
    changed = sorted({file for _, files in touched for file in files})
    if not changed and not problems and not asked:
        problems.append(Problem("nothing to verify", str(tree.root), "no overlay is applied"))
    problems.extend(p for file in changed for p in compiles(file, tree.read(file) or b""))
    if changed and not is_checkout(tree):
        problems.extend(_recorded(tree, seen))
    problems.extend(bytecode.problems(tree, changed))
    notes: tuple[str, ...] = ()
    if python:
        problems.extend(imported(tree, changed, python))
        if not problems:
            replaced, notes = loaded(tree, changed, python)
            problems.extend(replaced)
    return Verified(verdicts, tuple(problems), notes)


def _unapplied(tree: Tree, verdict: Verdict, files: Sequence[str], *, asked: bool) -> Sequence[Problem]:
    """List what is wrong with the state of an overlay that has marks in `files`, or that was named."""
    if not files and not asked:
        return ()
    if verdict.state in {State.DRIFTED, State.CONFLICT}:
        return verdict.problems
    if verdict.state is State.APPLIED or (verdict.state is State.MERGED and not files):
        return ()
    half = f"half applied ({', '.join(files)})" if files else verdict.state
    return [Problem("not applied", str(tree.root), f"{verdict.id} is {half}: {verdict.because}")]


def _recorded(tree: Tree, read: Collection[str]) -> Sequence[Problem]:
    """Check what the overlays read, and what vpatch once wrote, which may be gone."""
    try:
        wrote = backup.originals(tree)
    except Failure as failure:
        return failure.problems
    return record.problems(tree, {*wrote, *(file for file in read if tree.read(file) is not None)})


def compiles(file: str, data: bytes) -> list[Problem]:
    """List why a module does not compile with this Python, or that it is too large to."""
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
