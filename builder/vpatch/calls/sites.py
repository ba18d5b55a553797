"""The places in code that an overlay adds to a tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from vpatch.core.calls import inserted_by
from vpatch.core.engine import Engine, Read
from vpatch.core.landing.companions import catches
from vpatch.core.landing.flow import truth
from vpatch.core.parse import first_line
from vpatch.core.syntax import along
from vpatch.core.verdict import Landed
from vpatch.core.workspace import Workspace

Range: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""From one line and column to another, the last one not included."""

Used: TypeAlias = ast.Call | ast.Attribute | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class NewCode:
    """Code of an overlay in one file: all of a module that it adds (`ranges` None), or what edits insert."""

    overlay: str
    key: str  # in the overlay's list of calls
    file: str
    ranges: tuple[Range, ...] | None


@dataclass(frozen=True)
class Site:
    """A call, an attribute that is read, a name that is imported, or a method that may override one.

    Attributes:
        node: an `ast.Call`, `ast.Attribute`, `ast.ImportFrom` or function.
        around: what holds it, outermost first.
        guarded: it stands in a `try` that expects it to be absent.
    """

    node: Used
    around: tuple[ast.AST, ...]
    guarded: bool


def code_of(engine: Engine, read: Read) -> tuple[Workspace, list[NewCode]]:
    """Apply the pending overlays of an engine in memory; return the files, and the code that is new in them."""
    files, landed = engine.landed(read)
    found: list[NewCode] = []
    for (overlay, part, shape), findings in landed.items():
        for file in dict.fromkeys(edit.file for edit, _ in findings):
            if not file.endswith(".py"):
                continue
            if any(finding.adds for edit, finding in findings if edit.file == file):
                found.append(NewCode(overlay, file, file, None))
            else:
                places = [code for edit, finding in findings if edit.file == file for code in finding.landed]
                found.append(NewCode(overlay, inserted_by(part, shape), file, tuple(_ranges(places, files, file))))
    return files, list(dict.fromkeys(found))


def _ranges(places: Sequence[Landed], files: Workspace, file: str) -> Iterator[Range]:
    tree = files.source(file).tree
    for place in places:
        if place.reads is not None and not place.reads and not place.binds:
            continue  # where a statement went, no code is new
        node = along(tree, place.path)[-1]
        end = (node.end_lineno, node.end_col_offset)
        if place.header and node.body:  # the blocks of the statement are upstream's
            end = (node.body[0].lineno, node.body[0].col_offset)
        yield (first_line(node), node.col_offset), end


def sites(code: NewCode, files: Workspace) -> Iterator[Site]:
    """Yield the sites in a piece of code, as far as it can run."""
    tree = ast.parse(files.read(code.file) or b"")
    yield from (site for site in _walk(tree, (), guarded=False) if _inside(site.node, code.ranges))


def _inside(node: ast.AST, ranges: tuple[Range, ...] | None) -> bool:
    """Whether the name that a site ends with stands in one of the ranges."""
    at = node.func if isinstance(node, ast.Call) else node
    where = (at.lineno, at.col_offset)  # type: ignore[attr-defined]
    if isinstance(at, ast.Attribute):
        where = (at.end_lineno or 0, (at.end_col_offset or 0) - len(at.attr))
    return ranges is None or any(start <= where < end for start, end in ranges)


def _walk(node: ast.AST, around: tuple[ast.AST, ...], *, guarded: bool) -> Iterator[Site]:
    if _is_use(node, around):
        yield Site(node, around, guarded)
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "type_params"} or (name == "body" and _never_runs(node)):
            continue
        inside = guarded or (name == "body" and isinstance(node, ast.Try) and any(map(catches, node.handlers)))
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, (*around, node), guarded=inside)


def _never_runs(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and truth(node.test) is False


def _is_use(node: ast.AST, around: tuple[ast.AST, ...]) -> TypeGuard[Used]:
    match node:
        case ast.Attribute(ctx=ast.Load()):
            return not (isinstance(around[-1], ast.Call) and around[-1].func is node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return isinstance(around[-1], ast.ClassDef)
    return isinstance(node, ast.ImportFrom | ast.Call)
