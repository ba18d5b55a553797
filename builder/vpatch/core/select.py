"""Find the code of edits: scopes by qualified name, statements and expressions by their syntax."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TypeAlias

from vpatch.core import cst
from vpatch.core.parse import Lost, Source
from vpatch.core.syntax import BLOCKS, Path, Spot, kind_of, matches, same, steps, walk

Change: TypeAlias = "Callable[[cst.CSTNode], cst.CSTNode]"


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


def headline(code: str) -> str:
    """Return the first line of an edit's code, for messages."""
    return code.strip().splitlines()[0]


def _bound_name(node: cst.FunctionDef | cst.ClassDef) -> list[str]:
    """Return the steps that a definition adds to a qualified name, none for an `@overload` stub.

    The accessors of a property are `name`, `name.setter` and `name.deleter`.
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
    """Yield the functions and classes defined in `owner`, its `if`, `try`, `with` and other blocks included."""
    for step, child in steps(owner.node, BLOCKS):
        if type(child) in (cst.FunctionDef, cst.ClassDef):
            yield Spot((*owner.path, step), child)
        elif type(child) not in (cst.SimpleStatementLine, cst.SimpleStatementSuite):
            yield from definitions(Spot((*owner.path, step), child))


def names(owner: Spot, prefix: str = "") -> Iterator[tuple[str, Spot]]:
    """Yield every definition below `owner` with its qualified name."""
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


_BRANCHES = {"else": "orelse", "elif": "orelse", "except": "handlers", "finally": "finalbody"}


def _header(code: str) -> cst.CSTNode:
    match code.partition(" ")[0]:
        case "try":
            return block("try: ...\nfinally: ...")[0]
        case "except":
            return block(f"try: ...\n{code}: ...")[0].handlers[0]  # type: ignore[attr-defined,no-any-return]
    return block(f"{code.removeprefix('el')}: ...")[0]


def _branches(owner: Spot, header: str) -> Iterator[Spot]:
    """Yield the branches of the statement `owner` that begin with `header`."""
    word = header.partition(" ")[0]
    for step, child in steps(owner.node, [_BRANCHES[word]]):
        spot = Spot((*owner.path, step), child)
        if isinstance(child, cst.If):
            if word == "elif" and matches(_header(header).test, child.test):  # type: ignore[attr-defined]
                yield spot
            else:
                yield from _branches(spot, header)
        elif word in {"else", "finally"} or (word == "except" and matches(_header(header), _bare(child))):
            yield spot


def _inner(owner: Spot, header: str) -> Iterator[Spot]:
    if header.partition(" ")[0] in _BRANCHES:
        yield from _branches(owner, header)
        return
    pattern = _header(header)
    for spot in lines(owner):
        if type(spot.node) is type(pattern) and matches(pattern, _bare(spot.node)):
            yield spot


def scopes(source: Source, scope: str, within: Sequence[str] = ()) -> list[Spot]:
    """Resolve a qualified name, and then the headers in `within`, to blocks.

    Raises:
        Lost: nothing has the name; the message has the nearest one. Or a header is missing.
    """
    root = Spot((), source.module)
    found = list(_resolve(root, scope.split(".") if scope else ()))
    if not found:
        raise Lost(f"no {scope!r} here", lambda: _nearest_name(source, scope))
    for header in within:
        inner = [spot for owner in found for spot in _inner(owner, header)]
        if not inner:
            raise Lost(f"no block `{header}:` directly in it", nearest(source, found, _header(header)))
        found = inner
    return found


def _nearest_name(source: Source, scope: str) -> str:
    import difflib

    if not source.names:  # each edit and predicate that looks for the name would parse the whole module again
        data = source.bytes  # without placeholders
        try:
            tree = ast.parse(data)  # takes a seventh of the time that libcst takes
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            source.names.extend(name for name, _ in names(Spot((), cst.parse_module(data))))
        else:
            source.names.extend(_names_below(tree))
    near = difflib.get_close_matches(scope, source.names, 1, 0.6)
    return f"; nearest: {near[0]!r}" if near else ""


def _names_below(owner: ast.AST, prefix: str = "") -> Iterator[str]:
    """Yield what `names` does, of Python's own syntax tree."""
    for child in ast.iter_child_nodes(owner):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if bound := _bound_in(child):
                name = prefix + ".".join(bound)
                yield name
                yield from _names_below(child, f"{name}.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _names_below(child, prefix)


def _bound_in(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[str]:
    """Return what `_bound_name` does, of Python's own syntax tree."""
    for decorator in node.decorator_list:
        match decorator:
            case ast.Name("overload") | ast.Attribute(attr="overload"):
                return []
            case ast.Attribute(value=ast.Name(owner), attr="getter" | "setter" | "deleter" as role) if (
                owner == node.name
            ):
                return [node.name, role]
    return [node.name]


def lines(owner: Spot) -> list[Spot]:
    """List the lines and compound statements directly in a block; none for a one-line suite."""
    path, node = owner.path, owner.node
    if not isinstance(node, cst.Module):
        path, node = (*path, ("body", -1)), getattr(node, "body", node)
    if isinstance(node, cst.SimpleStatementSuite):
        return []
    return [Spot((*path, ("body", index)), child) for index, child in enumerate(node.body)]  # type: ignore[attr-defined]


def runs(owner: Spot, pattern: Sequence[cst.CSTNode], *, exactly: bool = False) -> list[list[Spot]]:
    """List the runs of statements directly in `owner` that match `pattern`, or equal it if `exactly`."""
    agree = same if exactly else matches
    here, size, found = lines(owner), len(pattern), list[list[Spot]]()
    start = 0
    while start + size <= len(here):
        window = here[start : start + size]
        fits = all(agree(p, s.node) for p, s in zip(pattern, window, strict=True))
        found.extend([window] if fits else [])
        start += size if fits else 1
    return found


def expressions(
    source: Source, owner: Spot, pattern: cst.CSTNode, *, exactly: bool = True, seen: Change = lambda node: node
) -> list[Spot]:
    """List the outermost expressions in `owner` that match `pattern`, or equal it; `seen` changes them first."""
    agree = same if exactly else matches
    found: list[Spot] = []
    for spot in source.expressions(owner).get(kind_of(pattern), ()):
        if not (found and inside(spot.path, found[-1].path)) and agree(pattern, seen(spot.node)):
            found.append(spot)
    return found


def inside(path: Path, other: Path) -> bool:
    """Whether `path` is `other` or lies below it."""
    return path[: len(other)] == other


def _bare(node: cst.CSTNode) -> cst.CSTNode:
    """Return a statement without comments above it and without its blocks."""
    if isinstance(node, cst.Try):
        return _header("try")
    changes: dict[str, object] = {"leading_lines": ()} if hasattr(node, "leading_lines") else {}
    if isinstance(getattr(node, "body", None), cst.BaseSuite):
        changes["body"] = cst.SimpleStatementSuite([cst.Expr(cst.Ellipsis())])
    if getattr(node, "orelse", None) and isinstance(node, cst.BaseStatement):
        changes["orelse"] = None
    return node.with_changes(**changes)


def nearest(source: Source, owners: Sequence[Spot], pattern: cst.CSTNode | Sequence[cst.CSTNode]) -> Callable[[], str]:
    """Return the hint of a `Lost`: the code below `owners` that is most similar to `pattern`."""

    def hint() -> str:
        import difflib

        first = pattern if isinstance(pattern, cst.CSTNode) else pattern[0]
        candidates = [s for o in owners for s in walk(o) if type(s.node) is type(first) and s is not o]
        by_text = {source.text(_bare(spot.node)): spot.path for spot in reversed(candidates)}
        near = difflib.get_close_matches(source.text(_bare(first)), by_text, 1, 0.5)
        return f"; nearest, line {source.line(by_text[near[0]])}: `{near[0]}`" if near else ""

    return hint
