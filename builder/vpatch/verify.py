"""Prove that what is applied is whole."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path

from vpatch import nesting
from vpatch.engine import status
from vpatch.errors import Failure, Problem
from vpatch.marks import marks_in
from vpatch.model import COMPANIONS, Catalogued, State, Verdict
from vpatch.site.locate import ask, is_checkout
from vpatch.site.model import Site
from vpatch.site.writer import originals, record_problems, stale_bytecode

_PATIENCE = 600  # seconds: importing a model of vLLM imports torch, and on a busy machine that takes minutes

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
        python: an interpreter that must import exactly these files, and from them the functions that were changed.
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
    notes: tuple[str, ...] = ()
    if python:
        problems.extend(_imported(site, changed, python))
        if not problems:
            replaced, notes = _loaded(site, changed, python)
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
    """Say what this Python's compiler has against a module, or that the module is too large to compile."""
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


def changed_functions(data: bytes) -> list[str]:
    """List the functions with our marks in a module, by qualified name: of nested ones the outermost."""
    marked = {number for number, line in enumerate(data.splitlines(), 1) if marks_in(line)}
    found: list[str] = []

    def visit(node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = f"{around}.{getattr(child, 'name', '')}".strip(".")
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                if not marked.isdisjoint(range(child.lineno, (child.end_lineno or 0) + 1)):
                    found.append(name)
            else:
                visit(child, name if isinstance(child, ast.ClassDef) else around)

    visit(ast.parse(data), "")
    return list(dict.fromkeys(found))


def _loaded(site: Site, files: Sequence[str], python: Path) -> tuple[list[Problem], tuple[str, ...]]:
    """Import the changed modules in an interpreter, where it can, and compare their functions with the files."""
    modules = {_module(file): file for file in files if not file.startswith(COMPANIONS)}
    wanted = [(name, changed_functions(site.read(file) or b"")) for name, file in modules.items()]
    script = (resources("vpatch") / "loaded.py").read_text("utf-8")
    try:
        answers = ask(python, script, json.dumps(wanted), patience=_PATIENCE)
    except Failure as failure:
        return list(failure.problems), ()
    problems = [
        Problem("not what runs", modules[name], f"{python} has {there} instead of the function in this file", function)
        for name, answer in answers.items()
        for function, there in answer["replaced"].items()
    ]
    failed = [f"{modules[n]}: {python} cannot import it: {a['error']}" for n, a in answers.items() if a["error"]]
    return problems, tuple(f"functions not compared: {cause}" for cause in failed)


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(site: Site, files: Sequence[str], python: Path) -> list[Problem]:
    names = {_module(file): file for file in files}
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
