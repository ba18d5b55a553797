"""What an interpreter imports of an applied tree, and whether it runs the code that overlays changed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from vpatch.core.landing.binding import dotted
from vpatch.core.landing.flow import Function
from vpatch.core.landing.overriding import accessor_role
from vpatch.core.marks import marks_in
from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Failure, Problem
from vpatch.tree import Tree
from vpatch.tree.loaded import Changed
from vpatch.tree.locate import ask

# Errors that code makes. Others, as of libraries, devices and memory, come from where it runs.
_FAULTS = frozenset({"NameError", "AttributeError", "TypeError", "ValueError", "LookupError", "ArithmeticError"})

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


def imported(tree: Tree, files: Sequence[str], python: Path) -> list[Problem]:
    """List the files that an interpreter would not import, or not compile. vLLM is not imported for it."""
    names = {_module(file): file for file in files}
    try:
        answers = ask(python, _PROBE, json.dumps(list(names)))
    except Failure as failure:
        return list(failure.problems)
    problems = []
    for name, file in names.items():
        origin, bad = answers[name]
        if origin is None or Path(origin).resolve() != (tree.root / file).resolve():
            problems.append(
                Problem("not what is imported", file, f"{python} would import {origin or 'no such module'}")
            )
        elif bad:
            problems.append(Problem("does not compile", file, f"{python}: {bad}"))
    return problems


def loaded(tree: Tree, files: Sequence[str], python: Path) -> tuple[list[Problem], tuple[str, ...]]:
    """Import the changed modules in an interpreter, where it can, and compare their functions with the files."""
    modules = {_module(file): file for file in files if not file.startswith(COMPANIONS)}
    wanted = [(name, changed_functions(tree.read(file) or b"")) for name, file in modules.items()]
    script = (resources("vpatch.tree") / "loaded.py").read_text("utf-8")
    try:
        answers = ask(python, script, json.dumps(wanted), patience=_PATIENCE)
    except Failure as failure:
        return list(failure.problems), ()
    problems = [
        Problem("not what runs", modules[name], f"{python} has {there} instead of the function in this file", function)
        for name, answer in answers.items()
        for function, there in answer["replaced"].items()
    ]
    failed = []
    for name, answer in answers.items():
        failed += [f"{modules[name]} ({function}): {why}" for function, why in answer["failed"].items()]
        if fault := _fault(tree, python, answer["errors"]):
            problems.append(fault)
        elif answer["errors"]:
            failed.append(f"{modules[name]}: {python} cannot import it: {answer['errors'][0]['told']}")
    return list(dict.fromkeys(problems)), tuple(f"functions not compared: {cause}" for cause in failed)


def _fault(tree: Tree, python: Path, errors: Sequence[dict[str, Any]]) -> Problem | None:
    """Find the fault of changed code because of which a module cannot be imported; None if something else is missing.

    Args:
        tree: the tree.
        python: the interpreter that cannot import it.
        errors: the error and its causes, as `loaded.errors` describes them.
    """
    for error in errors:
        file, line = _file(tree, error["file"]), error["line"]
        if file and (file.startswith(COMPANIONS) or line in changed_lines(tree.read(file) or b"")):
            cause = f"{python} fails in line {line}, in code that an overlay changed: {error['told']}"
            # What changed code raises of an error that it caught is its own word: no further cause is looked at.
            return Problem("cannot be imported", file, cause) if _is_fault(tree, error) else None
    return None


def _file(tree: Tree, path: str) -> str:
    """Return a file's path relative to the root of the tree; "" for one that is elsewhere."""
    real = Path(path).resolve()
    return real.relative_to(tree.root).as_posix() if real.is_relative_to(tree.root) and real.is_file() else ""


def changed_lines(data: bytes) -> set[int]:
    """List the lines of a module's statements that carry marks, with all that is in their blocks."""
    marked = {number for number, line in enumerate(data.splitlines(), 1) if marks_in(line)}
    if not marked:
        return set()
    found: set[int] = set()
    for node in _blocks(ast.parse(data)):
        if not marked.isdisjoint(lines := _span(node)):
            inner = set[int]().union(*(_span(child) for child in _blocks(node) if child is not node))
            found.update(() if marked.isdisjoint(lines - inner) else lines)
    return found


def _blocks(node: ast.AST) -> list[ast.stmt | ast.ExceptHandler]:
    return [child for child in ast.walk(node) if isinstance(child, ast.stmt | ast.ExceptHandler)]


def _span(node: ast.stmt | ast.ExceptHandler) -> set[int]:
    first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
    return set(range(first, (node.end_lineno or first) + 1))


def _is_fault(tree: Tree, error: dict[str, Any]) -> bool:
    """Return whether an error, raised by changed code, is its own fault and never for want of something around it.

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
    """Return whether a module of vLLM has a name, if only on another platform."""
    path = module.replace(".", "/")
    data = next(filter(None, map(tree.read, (f"{path}.py", f"{path}/__init__.py"))), b"")
    words = re.findall(rb"\w+", data)
    return not data or name.encode() in words or b"__getattr__" in words or b"import *" in data


def changed_functions(data: bytes) -> list[Changed]:
    """List the functions of a module that carry marks, of nested ones the outermost.

    A name may have several definitions, in two branches for instance. Only the lines of those with marks are listed.
    """
    marked = {number for number, line in enumerate(data.splitlines(), 1) if marks_in(line)}
    found: dict[tuple[str, str], list[int]] = {}

    def visit(node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = f"{around}.{getattr(child, 'name', '')}".strip(".")
            if not isinstance(child, Function):
                visit(child, name if isinstance(child, ast.ClassDef) else around)
            elif not (_is_stub(child) or marked.isdisjoint(range(child.lineno, (child.end_lineno or 0) + 1))):
                first = min(node.lineno for node in (child, *child.decorator_list))
                found.setdefault((name, accessor_role(child)), []).append(first)

    visit(ast.parse(data), "")
    return [(name, accessor, lines) for (name, accessor), lines in found.items()]


def _is_stub(function: Function) -> bool:
    return any(dotted(decorator).rpartition(".")[2] == "overload" for decorator in function.decorator_list)


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
