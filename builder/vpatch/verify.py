"""Prove that what is applied is whole."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

from vpatch.engine import status
from vpatch.errors import Failure, Problem
from vpatch.marks import marks_in
from vpatch.model import Catalogued, State, Verdict
from vpatch.site.locate import ask, is_checkout
from vpatch.site.model import Site
from vpatch.site.writer import originals, record_problems, stale_bytecode

# Finds each module level by level, as the interpreter would, without importing vLLM on the way.
_PROBE = """
import sys
sys.path[:] = [p for p in sys.path if p]
import json, types, warnings
warnings.simplefilter("ignore")
answers = {}
for name in json.loads(sys.argv[1]):
    path, spec = None, None
    for index, part in enumerate(name.split(".")):
        above = ".".join(name.split(".")[: index + 1])
        spec = next(filter(None, (finder.find_spec(above, path) for finder in sys.meta_path)), None)
        if spec is None:
            break
        path = list(spec.submodule_search_locations or [])
        sys.modules[above] = types.ModuleType(above)  # namespace packages look for their parent there
        sys.modules[above].__path__ = path
    origin = spec.origin if spec else None
    error = None
    try:
        compile(open(origin, "rb").read(), origin, "exec") if origin else None
    except (SyntaxError, ValueError) as bad:
        error = str(bad)
    answers[name] = [origin, error]
print(json.dumps(answers))
"""


def verify(
    site: Site, overlays: Sequence[Catalogued], *, asked: bool, python: Path | None
) -> tuple[tuple[Verdict, ...], list[Problem]]:
    """Check every overlay that is applied, wholly or in part; with `asked`, all of `overlays` must be.

    Args:
        site: the tree.
        overlays: those to look for.
        asked: whether they were named one by one.
        python: an interpreter that must import exactly these files.
    """
    seen: set[str] = set()

    def read(file: str) -> bytes | None:
        seen.add(file)
        return site.read(file)

    verdicts = status(read, overlays)
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
    if python:
        problems.extend(_imported(site, changed, python))
    return verdicts, problems


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
    """Say what this Python's compiler has against a module, if anything."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return [Problem("does not compile", file, str(error))]
    return []


def _imported(site: Site, files: Sequence[str], python: Path) -> list[Problem]:
    names = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in files}
    try:
        answers = ask(python, _PROBE, json.dumps(list(names)))
    except Failure as failure:
        return list(failure.problems)
    problems = []
    for name, file in names.items():
        origin, bad = answers[name]
        if origin is None or Path(origin).resolve() != (site.root / file).resolve():
            problems.append(
                Problem("not what is imported", file, f"{python} would import {origin or 'no such module'}")
            )
        elif bad:
            problems.append(Problem("does not compile", file, f"{python}: {bad}"))
    return problems
