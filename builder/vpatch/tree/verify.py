"""Check that what is applied is complete, and that an interpreter imports and runs exactly that."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from vpatch.core import nesting
from vpatch.core.engine import Engine
from vpatch.core.landing.binding import dotted
from vpatch.core.landing.definitions import accessor_role
from vpatch.core.landing.flow import Function
from vpatch.core.listing import is_folder
from vpatch.core.marks import marked_files, marks_in
from vpatch.core.overlay import COMPANIONS, Catalogued
from vpatch.core.verdict import MISFITS, State, Verdict
from vpatch.errors import Code, Failure, Problem
from vpatch.tree import backup, bytecode, record
from vpatch.tree.loaded import Changed
from vpatch.tree.locate import Reads, Tree, ask, is_checkout

# Errors that code makes. Others, as of libraries, devices and memory, come from the machine.
_FAULTS = frozenset({"NameError", "AttributeError", "TypeError", "ValueError", "LookupError", "ArithmeticError"})

_PATIENCE = 600  # seconds: importing a model of vLLM imports torch, and on a busy machine that takes minutes

# Finds each module level by level, as the interpreter would, without importing vLLM.
_PROBE = """
import json, os, sys, types, warnings
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
        if origin and os.path.isfile(origin) and os.path.getsize(origin) < 1 << 24:
            compile(open(origin, "rb").read(), origin, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as bad:
        error = str(bad) or "nested too deeply"
    answers[name] = [origin, error]
print(json.dumps(answers))
"""


@dataclass(frozen=True)
class Verified:
    """The verdicts, the problems, and notes on what could not be checked."""

    verdicts: tuple[Verdict, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()


def verify(
    tree: Tree,
    overlays: Sequence[Catalogued],
    *,
    named: Collection[str],
    python: Path | None,
    engine: Engine | None = None,
    others: Collection[str] = (),
) -> Verified:
    """Check every overlay of `overlays` that is applied, wholly or in part.

    Args:
        tree: the vLLM.
        overlays: the overlays.
        named: ids of those that must be applied.
        python: an interpreter that must import exactly these files, and run their functions that were changed. A module
            that it cannot import is a problem if changed code raised the error. It is a note if the error may come from
            a package, library, device or compiled extension that is missing, or from other code.
        engine: an engine that has these overlays, to share what it has parsed.
        others: more files to check as files, of overlays that are not installed.
    """
    seen = Reads(tree)
    verdicts = (engine or Engine(overlays)).status(seen.read, overlays)
    touched = [marked_files(one.id, one.files, seen.read) for one in verdicts]
    problems = [
        p
        for one, files in zip(verdicts, touched, strict=True)
        for p in _unapplied(tree, one, files, asked=one.id in named)
    ]
    changed = sorted(set(others).union(*touched))
    if not changed and not problems and overlays and not named:
        problems.append(
            Problem("nothing to verify", str(tree.root), "no overlay is applied", code=Code.NOTHING_TO_VERIFY)
        )
    problems += [problem for file in changed for problem in compiles(file, seen.read(file) or b"")]
    problems += _recorded(seen) if changed and not is_checkout(tree) else ()
    problems += bytecode.problems(tree, changed)
    if python and not (problems := [*problems, *_imported(tree, changed, python)]):
        return Verified(verdicts, *_loaded(tree, changed, python))
    return Verified(verdicts, tuple(problems))


def _unapplied(tree: Tree, verdict: Verdict, files: Sequence[str], *, asked: bool) -> Sequence[Problem]:
    if not files and not asked:
        return ()
    if verdict.state in MISFITS:
        return verdict.problems
    if verdict.state is State.APPLIED or (verdict.state is State.MERGED and not files):
        return ()
    half = f"half applied ({', '.join(files)})" if files else verdict.state
    return [Problem("not applied", str(tree.root), f"{verdict.id} is {half}: {verdict.because}", code=Code.NOT_APPLIED)]


def _recorded(seen: Reads) -> Sequence[Problem]:
    # What vpatch once wrote may be gone.
    try:
        wrote = backup.originals(seen.tree)
    except Failure as failure:
        return failure.problems
    there = (path for path in seen.loaded if not is_folder(path) and seen.read(path) is not None)
    return record.problems(seen.tree, {*wrote, *there})


def compiles(file: str, data: bytes) -> list[Problem]:
    """List why a module does not compile with this Python, or that it is too large to."""
    try:
        nesting.bound(nesting.decode(data)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, file, "exec", dont_inherit=True)
    except (nesting.Refused, SyntaxError, ValueError) as error:
        return [Problem("does not compile", file, str(error), code=Code.NO_PYTHON)]
    except (RecursionError, MemoryError):
        return [Problem("does not compile", file, "nested too deeply", code=Code.NO_PYTHON)]
    return []


def _imported(tree: Tree, files: Sequence[str], python: Path) -> Iterable[Problem]:
    names = {module_of(file): file for file in files}
    try:
        answers = ask(python, _PROBE, json.dumps(list(names)))
    except Failure as failure:
        return failure.problems
    problems = []
    for name, file in names.items():
        origin, bad = answers[name]
        if origin is None or Path(origin).resolve() != (tree.root / file).resolve():
            cause = f"{python} would import {origin or 'no such module'}"
            problems.append(Problem("not what is imported", file, cause))
        elif bad:
            problems.append(Problem("does not compile", file, f"{python}: {bad}", code=Code.NO_PYTHON))
    return problems


def _loaded(tree: Tree, files: Sequence[str], python: Path) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    modules = {module_of(file): file for file in files if not file.startswith(COMPANIONS)}
    wanted = [(name, changed_functions(tree.read(file) or b"")) for name, file in modules.items()]
    script = (resources("vpatch.tree") / "loaded.py").read_text("utf-8")
    try:
        answers = ask(python, script, json.dumps(wanted), patience=_PATIENCE)
    except Failure as failure:
        return failure.problems, ()
    problems = [
        Problem("not what runs", modules[name], f"{python} has {there} instead of the function in this file", function)
        for name, answer in answers.items()
        for function, there in answer["replaced"].items()
    ]
    failed = []
    unimportable: dict[str, list[str]] = {}  # files, by the error
    for name, answer in answers.items():
        failed += [f"{modules[name]} ({function}): {why}" for function, why in answer["failed"].items()]
        if fault := _fault(tree, python, answer["errors"]):
            problems.append(fault)
        elif answer["errors"]:
            unimportable.setdefault(answer["errors"][0]["told"], []).append(modules[name])
    for told, (first, *others) in unimportable.items():
        which = (
            f"{first} and {len(others)} more: {python} cannot import them"
            if others
            else f"{first}: {python} cannot import it"
        )
        failed.append(f"{which}: {told}")
    return tuple(dict.fromkeys(problems)), tuple(f"functions not compared: {cause}" for cause in failed)


def _fault(tree: Tree, python: Path, errors: Sequence[dict[str, Any]]) -> Problem | None:
    """Find the fault of changed code that keeps a module from being imported; None if something else is missing."""
    for error in errors:
        real, line = Path(error["file"]).resolve(), error["line"]
        file = real.relative_to(tree.root).as_posix() if real.is_relative_to(tree.root) and real.is_file() else ""
        if file and (file.startswith(COMPANIONS) or line in _changed_lines(tree.read(file) or b"")):
            cause = f"{python} fails in line {line}, in code that an overlay changed: {error['told']}"
            # What changed code raises because of another error is its own statement: further causes do not matter.
            return Problem("cannot be imported", file, cause) if _is_fault(tree, error) else None
    return None


def _is_fault(tree: Tree, error: dict[str, Any]) -> bool:
    """Whether an error, raised by changed code, is surely its own fault, and not for want of something around it.

    vLLM is also imported where no device, no Triton and no compiled extension is. What it lacks there is None, or an
    attribute of a module. Modules that import each other lack attributes, too, if another one is imported first.
    """
    message = error["message"]
    if "ImportError" in error["kinds"]:
        lacks = re.match(r"cannot import name '([^\W_]\w*)' from '(vllm\.[\w.]+)' \(", message)
        return lacks is not None and not _may_have(tree, *lacks.groups())
    if re.match(r"(partially initialized )?module '|cannot access submodule '", message) or "'NoneType'" in message:
        return False
    return not _FAULTS.isdisjoint(error["kinds"])


def _may_have(tree: Tree, name: str, module: str) -> bool:
    # On another platform, perhaps.
    path = module.replace(".", "/")
    data = next(filter(None, map(tree.read, (f"{path}.py", f"{path}/__init__.py"))), b"")
    words = re.findall(rb"\w+", data)
    return not data or name.encode() in words or b"__getattr__" in words or b"import *" in data


def _marked(data: bytes) -> set[int]:
    return {number for number, line in enumerate(data.splitlines(), 1) if marks_in(line)}


def _lines(node: ast.stmt | ast.ExceptHandler) -> set[int]:
    first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
    return set(range(first, (node.end_lineno or first) + 1))


def _changed_lines(data: bytes) -> set[int]:
    """List the lines of a module's statements that carry marks, with all that is in their blocks."""
    found: set[int] = set()
    for node in _blocks(ast.parse(data)) if (marked := _marked(data)) else ():
        if not marked.isdisjoint(lines := _lines(node)):
            inner = set[int]().union(*(_lines(child) for child in _blocks(node) if child is not node))
            found.update(() if marked.isdisjoint(lines - inner) else lines)
    return found


def _blocks(node: ast.AST) -> list[ast.stmt | ast.ExceptHandler]:
    return [child for child in ast.walk(node) if isinstance(child, ast.stmt | ast.ExceptHandler)]


def changed_functions(data: bytes) -> list[Changed]:
    """List the functions of a module that carry marks, of nested ones the outermost.

    A name may have several definitions, in two branches for instance. Only the lines of those with marks are listed.
    """
    marked = _marked(data)
    found: dict[tuple[str, str], list[int]] = {}

    def visit(node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = f"{around}.{getattr(child, 'name', '')}".strip(".")
            if not isinstance(child, Function):
                visit(child, name if isinstance(child, ast.ClassDef) else around)
                continue
            stub = any(dotted(decorator).rpartition(".")[2] == "overload" for decorator in child.decorator_list)
            if not stub and not marked.isdisjoint(range(child.lineno, (child.end_lineno or 0) + 1)):
                found.setdefault((name, accessor_role(child)), []).append(min(_lines(child)))

    visit(ast.parse(data), "")
    return [(name, accessor, lines) for (name, accessor), lines in found.items()]


def module_of(file: str) -> str:
    """Return the name by which a file of a tree is imported."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
