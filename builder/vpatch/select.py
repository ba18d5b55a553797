"""Where an edit works: scopes by qualified name, statements and expressions by their syntax."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from vpatch import cst
from vpatch.syntax import Path, Spot, matches, same, splice, steps, walk


class Lost(Exception):
    """What was looked for is not there as declared; the message says what is there instead."""

    def __init__(self, because: str, line: int | None = None) -> None:
        super().__init__(because if line is None else f"{because} (line {line})")


@dataclass(frozen=True)
class Source:
    """One parsed module of the tree."""

    file: str
    module: cst.Module

    def put(self, path: Path, *new: cst.CSTNode) -> Source:
        """Give the source with `new` in the place of the node at `path`."""
        return replace(self, module=splice(self.module, path, new))

    def text(self, node: cst.CSTNode) -> str:
        """Give a node's code as it stands in the file, on one line, at most 80 characters long."""
        line = " ".join(self.module.code_for_node(node).split())
        return line if len(line) <= 80 else line[:77] + "..."

    def line(self, node: cst.CSTNode) -> int:
        """Give the line that a node of this module begins on. Slow: for messages about what went wrong."""
        import libcst.metadata as metadata

        wrapper = metadata.MetadataWrapper(self.module, unsafe_skip_copy=True)
        return wrapper.resolve(metadata.PositionProvider)[node].start.line


@cache
def expression(code: str) -> cst.BaseExpression:
    """Parse an expression of an edit."""
    return cst.parse_expression(code)


@cache
def block(code: str) -> tuple[cst.BaseStatement, ...]:
    """Parse one or more statements of an edit."""
    module = cst.parse_module(code.strip("\n"))
    head, *rest = module.body
    return (head.with_changes(leading_lines=(*module.header, *head.leading_lines)), *rest)


def _bound_name(node: cst.FunctionDef | cst.ClassDef) -> list[str]:
    """Give the qualified name's steps that a definition answers to; none for an `@overload` stub.

    A property's accessors are told apart as `name`, `name.setter` and `name.deleter`.
    """
    name = node.name.value
    for decorator in node.decorators:
        match decorator.decorator:
            case cst.Name("overload") | cst.Attribute(attr=cst.Name("overload")):
                return []
            case cst.Attribute(value=cst.Name(owner), attr=cst.Name("getter" | "setter" | "deleter" as role)) if (
                owner == name
            ):
                return [name, role]
    return [name]


def definitions(owner: Spot) -> Iterator[Spot]:
    """Give the functions and classes that are defined in `owner`, also in its `if`, `try`, `with` and other blocks."""
    for step, child in steps(owner.node):
        spot = Spot((*owner.path, step), child)
        if isinstance(child, cst.FunctionDef | cst.ClassDef):
            yield spot
        elif not isinstance(child, cst.BaseExpression | cst.BaseSmallStatement | cst.SimpleStatementLine):
            yield from definitions(spot)


def names(owner: Spot, prefix: str = "") -> Iterator[tuple[str, Spot]]:
    """Give every definition below `owner` with its qualified name."""
    for spot in definitions(owner):
        if bound := _bound_name(spot.node):  # type: ignore[arg-type]
            name = prefix + ".".join(bound)
            yield name, spot
            yield from names(spot, f"{name}.")


def _resolve(owner: Spot, parts: Sequence[str]) -> Iterator[Spot]:
    if not parts:
        yield owner
        return
    for spot in definitions(owner):
        bound = _bound_name(spot.node)  # type: ignore[arg-type]
        if bound and list(parts[: len(bound)]) == bound:
            yield from _resolve(spot, parts[len(bound) :])


def _header(code: str) -> cst.BaseStatement:
    (statement,) = block(f"{code.removeprefix('el')}: ...")
    return statement


def _inner(owner: Spot, header: str) -> Iterator[Spot]:
    """Give the blocks below `owner` that begin with `header`: `else` and `elif ...` are those of `owner` itself."""
    if header.partition(" ")[0] in {"else", "elif"}:
        branch = getattr(owner.node, "orelse", None)
        spot = Spot((*owner.path, ("orelse", -1)), branch)  # type: ignore[arg-type]
        if isinstance(branch, cst.Else):
            if header == "else":
                yield spot
        elif isinstance(branch, cst.If):
            if header == "else" or not same(_header(header).test, branch.test):  # type: ignore[attr-defined]
                yield from _inner(spot, header)
            else:
                yield spot
        return
    pattern = _header(header)
    for spot in lines(owner):
        if type(spot.node) is type(pattern) and matches(pattern, _bare(spot.node)):
            yield spot


def scopes(source: Source, scope: str, within: Sequence[str] = ()) -> list[Spot]:
    """Give the blocks that a qualified name, and then the headers in `within`, lead to.

    Raises:
        Lost: there is none; the message names the nearest qualified name, or the header that is missing.
    """
    root = Spot((), source.module)
    found = list(_resolve(root, scope.split(".") if scope else ()))
    if not found:
        known = [name for name, _ in names(root)]
        near = difflib.get_close_matches(scope, known, 1, 0.6)
        raise Lost(f"no {scope!r} here" + (f"; nearest: {near[0]!r}" if near else ""))
    for header in within:
        inner = [spot for owner in found for spot in _inner(owner, header)]
        if not inner:
            raise Lost(f"no block `{header}:` directly in it{nearest(source, found, _header(header))}")
        found = inner
    return found


def lines(owner: Spot) -> list[Spot]:
    """Give the statements that stand directly in a block, one a line or compound; none for a one-line suite."""
    path, node = owner.path, owner.node
    if not isinstance(node, cst.Module):
        path, node = (*path, ("body", -1)), getattr(node, "body", node)
    if isinstance(node, cst.SimpleStatementSuite):
        return []
    return [Spot((*path, ("body", index)), child) for index, child in enumerate(node.body)]  # type: ignore[attr-defined]


def runs(owner: Spot, pattern: Sequence[cst.CSTNode], *, exactly: bool = False) -> list[list[Spot]]:
    """Give the runs of consecutive statements directly in `owner` that match `pattern`, or are it `exactly`."""
    agree = same if exactly else matches
    found, size = lines(owner), len(pattern)
    windows = [found[start : start + size] for start in range(len(found) - size + 1)]
    return [w for w in windows if all(agree(p, s.node) for p, s in zip(pattern, w, strict=True))]


def expressions(owner: Spot, pattern: cst.CSTNode, *, exactly: bool = True) -> list[Spot]:
    """Give the places at or below `owner` that are `pattern`, not looking inside one that is."""
    agree, kind = (same if exactly else matches), type(pattern)
    found: list[Spot] = []
    for spot in walk(owner):
        if type(spot.node) is kind and agree(pattern, spot.node) and not (found and inside(spot.path, found[-1].path)):
            found.append(spot)
    return found


def inside(path: Path, other: Path) -> bool:
    """Tell whether `path` is `other` or lies below it."""
    return path[: len(other)] == other


def _bare(node: cst.CSTNode) -> cst.CSTNode:
    """Give a statement without comments above it and, where it is compound, without its blocks."""
    changes: dict[str, object] = {"leading_lines": ()} if hasattr(node, "leading_lines") else {}
    if isinstance(getattr(node, "body", None), cst.BaseSuite):
        changes["body"] = cst.SimpleStatementSuite([cst.Expr(cst.Ellipsis())])
    if getattr(node, "orelse", None) and isinstance(node, cst.BaseStatement):
        changes["orelse"] = None
    return node.with_changes(**changes)


def nearest(source: Source, owners: Sequence[Spot], pattern: cst.CSTNode | Sequence[cst.CSTNode]) -> str:
    """Give the piece of code below `owners` that looks most like `pattern`, as an ending of a message."""
    first = pattern if isinstance(pattern, cst.CSTNode) else pattern[0]
    kind = type(first)
    candidates = [s.node for owner in owners for s in walk(owner) if type(s.node) is kind and s is not owner]
    by_text = {source.text(_bare(node)): node for node in reversed(candidates)}
    near = difflib.get_close_matches(source.text(_bare(first)), by_text, 1, 0.5)
    return f"; nearest, line {source.line(by_text[near[0]])}: `{near[0]}`" if near else ""
