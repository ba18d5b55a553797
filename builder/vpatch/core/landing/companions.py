"""Companions, the modules that overlays add below `vllm/_vpatch/`, must parse, and have what code imports from them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from vpatch.core.landing.binding import absolute, dotted
from vpatch.core.landing.flow import STAR, statements
from vpatch.core.overlay import COMPANIONS
from vpatch.errors import closest

if TYPE_CHECKING:
    from vpatch.core.workspace import Workspace

FAULT = "(a fault of the overlay, whatever the vLLM)"

_PACKAGE = COMPANIONS.rstrip("/").replace("/", ".")
# "" is the module itself; the others are set by Python.
_EVERYWHERE = frozenset({"", STAR, "__builtins__", "__cached__", "__file__", *vars(ModuleType(""))})
_CATCHING = frozenset({"ModuleNotFoundError", "ImportError", "Exception", "BaseException"})


def unusable(file: str, files: Workspace) -> Iterator[str]:
    """Yield why Python cannot parse a companion."""
    if files.understood(file) is None:
        _mark, _, text = (files.read(file) or b"").partition(b"\n")
        try:
            ast.parse(text, file.rpartition("/")[2])
        except (SyntaxError, ValueError, RecursionError) as error:
            yield f"{error} {FAULT}"


def missing(code: Iterable[ast.stmt], file: str, files: Workspace) -> Iterator[str]:
    """Yield what imports take from companions, and these lack.

    Only a `try` that catches the error may import a companion that is absent: that of an overlay that is not applied.

    Args:
        code: the statements, each before those in it.
        file: the module in which they stand.
        files: the tree after the edits.
    """
    optional: set[ast.stmt] = set()
    for stmt in code:
        if isinstance(stmt, ast.Try) and any(map(catches, stmt.handlers)):
            optional.update(statements(stmt.body))
        for module, name in _imported(stmt, file):
            if module.partition(".")[0] == "vpatch" and stmt not in optional:
                yield f"`{ast.unparse(stmt)}`: vpatch is not there when vLLM runs {FAULT}"
            path = f"{module.replace('.', '/')}.py"
            if not path.startswith(COMPANIONS):
                continue
            companion = files.understood(path)
            if files.read(path) is None:
                if stmt not in optional:
                    yield f"`{ast.unparse(stmt)}`: there is no {path}, and the overlay does not add it"
            elif name not in _EVERYWHERE and companion and not companion.names & {name, STAR, "__getattr__"}:
                near = closest(name, sorted(companion.names)) if companion.names else "it defines nothing"
                cause = f"`{ast.unparse(stmt)}`: {path.rpartition('/')[2]} defines no `{name}`: {near}"
                yield f"{cause} {FAULT}"


def catches(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches the error of an import that fails."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or dotted(kind) in _CATCHING for kind in caught)


def _imported(stmt: ast.stmt, file: str) -> Iterator[tuple[str, str]]:
    """Yield the modules that a statement imports, each with the name that it takes from there, "" for the module."""
    if isinstance(stmt, ast.Import):
        yield from ((alias.name, "") for alias in stmt.names)
    elif isinstance(stmt, ast.ImportFrom):
        module = absolute(f"{'.' * stmt.level}{stmt.module or ''}", file)
        yield from ((f"{module}.{a.name}", "") if module == _PACKAGE else (module, a.name) for a in stmt.names)
