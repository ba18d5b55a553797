"""Check that what is applied is complete, and that an interpreter imports and runs exactly that."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vpatch import guest
from vpatch.core.catalogue import has_mark
from vpatch.core.engine import Engine
from vpatch.core.landing.binding import dotted
from vpatch.core.landing.definitions import accessor_role
from vpatch.core.landing.flow import Function
from vpatch.core.listing import is_folder
from vpatch.core.marks import begins_marked, marked_files, marks_in
from vpatch.core.overlay import COMPANIONS, Catalogued
from vpatch.core.verdict import MISFITS, State, Verdict
from vpatch.errors import Code, Failure, Problem, shell
from vpatch.guest import check
from vpatch.guest.ask import module_of
from vpatch.guest.loaded import Changed, is_of_code
from vpatch.guest.record import Record
from vpatch.tree import backup, bytecode, record
from vpatch.tree.interpreter import ask
from vpatch.tree.locate import Reads, Tree, is_checkout
from vpatch.wrapping import from_here

# What `check.faults` finds, in words.
_FAULTS = {
    "syntax": ("does not compile", Code.NO_PYTHON),
    "unlisted": ("not in RECORD", Code.RECORD_UNLISTED),
    "missing": ("missing file", Code.FILE_MISSING),
    "untrue": ("RECORD is not true", Code.RECORD_UNTRUE),
    "stale": ("stale bytecode", Code.STALE_BYTECODE),
    "import": ("not what is imported", Code.OTHER),
}

_PATIENCE = 600  # seconds: importing a model of vLLM imports torch, and on a busy machine that takes minutes


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
    engine = engine or Engine(overlays, once=True)
    verdicts = engine.status(seen.read, overlays)
    if any(one.state is State.CONFLICT for one in verdicts):  # with one that is not there, it is complete all the same
        there = [item for item in overlays if item.id in named or has_mark(item, seen.read)]
        judged = {one.id: one for one in engine.status(seen.read, there)}
        verdicts = tuple(judged.get(one.id, one) for one in verdicts)
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
    problems += _faults(seen, changed)
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


def _faults(seen: Reads, changed: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with the files that overlays changed, and with what vpatch keeps of them."""

    def stale(path: str, _: bytes) -> Iterator[tuple[str, bool]]:
        yield from ((twin.relative_to(tree.root).as_posix(), False) for twin in bytecode.stale(tree.root / path))

    tree, listed, ours = seen.tree, list[str](), set[str]()
    rows = None if not changed or is_checkout(tree) else record.present(tree, tree.read)
    if rows is not None:
        try:
            kept = backup.read(tree)
            # What vpatch once wrote may be gone.
            there = {path for path in seen.loaded if not is_folder(path) and seen.read(path) is not None}
            ours = {*backup.originals(tree, kept), *record.own(tree, rows, kept)}
            listed = sorted(ours | there)
        except Failure as failure:
            yield from failure.problems
    elif changed and not is_checkout(tree):
        cause = "nothing says which files belong to vLLM"
        yield Problem("no RECORD", str(tree.root), cause, code=Code.NO_RECORD)
    for fault in check.faults(seen.read, changed, listed, rows or Record(()), stale, bytecode.refusal):
        foreign = fault.kind == "untrue" and fault.path not in ours and not marks_in(seen.read(fault.path) or b"")
        yield replace(_problem(fault.kind, fault.path, fault.why), hint=_left_alone(tree) if foreign else "")


def _left_alone(tree: Tree) -> str:
    """Return what to do about a file that differs from RECORD, where vpatch changed nothing: `apply` leaves it."""
    capture, again = (shell("vpatch", name, from_here(tree.root)) for name in ("capture", "apply"))
    way = f"undo it, or {backup.REINSTALL}, then {again}"
    return f"vpatch did not change it: {capture} makes a patch file of what others did; {way}"


def compiles(file: str, data: bytes) -> list[Problem]:
    """List why a module does not compile with this Python, or that it is too large to; a data file need not."""
    return [_problem("syntax", file, why)] if (why := bytecode.refusal(data, file)) else []


def _problem(kind: str, file: str, why: str) -> Problem:
    what, code = _FAULTS[kind]
    return Problem(what, file, why, code=code)


def _imported(tree: Tree, files: Sequence[str], python: Path) -> Iterable[Problem]:
    try:
        wrong = ask(python, guest.check_script("answer_imported"), str(tree.root), json.dumps(files))
    except Failure as failure:
        return failure.problems
    return [_problem(kind, file, why) for file, (kind, why) in wrong.items()]


def _loaded(tree: Tree, changed: Sequence[str], python: Path) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    modules = {module_of(file): file for file in changed if not file.startswith(COMPANIONS)}
    wanted = [(name, changed_functions(tree.read(file) or b"")) for name, file in modules.items()]
    try:
        answers = ask(python, guest.script("answer_functions", "loaded"), json.dumps(wanted), patience=_PATIENCE)
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
            unimportable.setdefault(answer["errors"][0]["summary"], []).append(modules[name])
    for summary, (first, *others) in unimportable.items():
        which, them = (f"{first} and {len(others)} more", "them") if others else (first, "it")
        failed.append(f"{which}: {python} cannot import {them}: {summary}")
    return tuple(dict.fromkeys(problems)), tuple(f"functions not compared: {cause}" for cause in failed)


def _fault(tree: Tree, python: Path, errors: Sequence[dict[str, Any]]) -> Problem | None:
    """Find the fault of changed code that keeps a module from being imported; None if something else is missing."""
    for error in (one for one in errors if one["cause"]):
        real, line = Path(error["file"]).resolve(), error["line"]
        file = real.relative_to(tree.root).as_posix() if real.is_relative_to(tree.root) and real.is_file() else ""
        data = (file and tree.read(file)) or b""
        if begins_marked(data) or line in _changed_lines(data):
            cause = f"{python} fails in line {line}, in code that an overlay changed: {error['summary']}"
            lacks = re.match(r"cannot import name '([^\W_]\w*)' from '(vllm\.[\w.]+)' \(", error["message"])
            its_own = not _may_have(tree, *lacks.groups()) if lacks else is_of_code(error)
            # What changed code raises because of another error is its own statement: further causes do not matter.
            return Problem("cannot be imported", file, cause) if its_own else None
    return None


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
