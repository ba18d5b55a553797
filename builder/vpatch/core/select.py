"""Find the code of edits: scopes by qualified name, statements and expressions by their syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache, partial

from vpatch.core import nesting
from vpatch.core.matching import matches, same, same_header
from vpatch.core.parse import Lost, Source, header_text, quoted
from vpatch.core.syntax import BLOCKS, DEFINITIONS, Path, Spot, along, has_block, inside, steps, walk


@cache
def block(code: str) -> tuple[ast.stmt, ...]:
    """Parse one or more statements of an edit."""
    return tuple(ast.parse(code.strip("\n")).body)


@cache
def expression(code: str) -> ast.expr:
    """Parse an expression of an edit."""
    return ast.parse(code.strip(), mode="eval").body


def headline(code: str) -> str:
    """Return the first line of an edit's code, for messages."""
    return code.strip().splitlines()[0]


def bound_name(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[str]:
    """Return the steps that a definition adds to a qualified name, none for an `@overload` stub.

    The accessors of a property are `name`, `name.setter` and `name.deleter`.
    """
    for decorator in node.decorator_list:
        match decorator:
            case ast.Name("overload") | ast.Attribute(attr="overload"):
                return []
            case ast.Attribute(value=ast.Name(owner), attr="getter" | "setter" | "deleter" as role) if (
                owner == node.name
            ):
                return [node.name, role]
    return [node.name]


def definitions(owner: Spot) -> Iterator[Spot]:
    """Yield the functions and classes defined in `owner`, its `if`, `try`, `with` and other blocks included."""
    for step, child in steps(owner.node, BLOCKS):
        spot = Spot((*owner.path, step), child)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield spot
        else:
            yield from definitions(spot)


def names(owner: Spot, prefix: str = "") -> Iterator[tuple[str, Spot]]:
    """Yield every definition below `owner` with its qualified name."""
    for spot in definitions(owner):
        if bound := bound_name(spot.node):
            name = prefix + ".".join(bound)
            yield name, spot
            yield from names(spot, f"{name}.")


def _named(source: Source) -> dict[str, list[Spot]]:
    """Return every definition by its qualified name; a module is asked for many."""
    if not source.named:
        root = Spot((), source.tree)
        source.named[""] = [root]
        for name, spot in names(root):
            source.named.setdefault(name, []).append(spot)
    return source.named


_BRANCHES = {"else": "orelse", "elif": "orelse", "except": "handlers", "finally": "finalbody"}


@cache
def header_node(code: str) -> ast.AST:
    """Parse a header, written without its colon; raises SyntaxError or Unparsable."""
    match code.partition(" ")[0]:
        case "try" | "else" | "finally" if code.isalpha():
            return nesting.parse("try: ...\nfinally: ...").body[0]
        case "except":
            (statement,) = nesting.parse(f"try: ...\n{code}: ...").body
            assert isinstance(statement, ast.Try)  # noqa: S101 - what that code is
            return statement.handlers[0]
    return nesting.parse(f"{code.removeprefix('el')}: ...").body[0]


def _branches(source: Source, owner: Spot, header: str) -> Iterator[Spot]:
    """Yield the branches of the statement `owner` that begin with `header`."""
    word = header.partition(" ")[0]
    if word == "except":
        for step, child in steps(owner.node, ["handlers"]):
            if same_header(header_node(header), child):
                yield Spot((*owner.path, step), child)
        return
    body = getattr(owner.node, _BRANCHES[word], None)
    if body and word != "finally" and source.is_elif(body[0]):
        spot = Spot((*owner.path, ("orelse", 0)), body[0])
        if word == "elif" and same_header(header_node(header), body[0]):
            yield spot
        else:
            yield from _branches(source, spot, header)
    elif body and word != "elif":
        yield Spot(owner.path, owner.node, _BRANCHES[word])


def _inner(source: Source, owner: Spot, header: str) -> Iterator[Spot]:
    if header.partition(" ")[0] in _BRANCHES:
        yield from _branches(source, owner, header)
        return
    for spot in source.block(owner):
        same_kind = isinstance(spot.node, ast.Try) if header == "try" else same_header(header_node(header), spot.node)
        if same_kind:
            yield spot


def scopes(source: Source, scope: str, within: Sequence[str] = ()) -> list[Spot]:
    """Resolve a qualified name, and then the headers in `within`, to blocks.

    Raises:
        Lost: nothing has the name; the message has the nearest one. Or a header is missing.
    """
    found = _named(source).get(scope, [])
    if not found:
        raise Lost(f"no {scope!r} here", lambda: _nearest_name(source, scope))
    for depth, header in enumerate(within):
        inner = [spot for owner in found for spot in _inner(source, owner, header)]
        if not inner:
            # The hint finds the blocks again: they would keep the syntax tree alive.
            hint = partial(_elsewhere, source, scope, within[:depth], header)
            raise Lost(f"no block `{header}:` directly in it", hint)
        found = inner
    return found


def _elsewhere(source: Source, scope: str, within: Sequence[str], header: str) -> str:
    """Return the addresses of the blocks with this header deeper in that place, or else the header most like it."""
    owners, there = scopes(source, scope, within), dict[str, int]()
    for block, here in (found for owner in owners for found in source.blocks(owner)):
        if _begins(source, block, here, header) and (address := address_of(source, here[0].path)):
            there.setdefault(f"`{spelled(*address)}`", source.line(here[0].path))
    if there:
        found = ", ".join(f"{address} (line {line})" for address, line in list(there.items())[:_MOST])
        return f"; there {'is' if len(there) == 1 else 'are'} {found}"
    if header in _BARE:
        return ""
    wanted = header_node(header)
    near = most_alike(source, owners, wanted, quoted([f"{header}: ..."], wanted))
    return f"; nearest, line {source.line(near.path)}: `{source.quoted(near.node)}`" if near else ""


_MOST = 5  # addresses in a message
_BARE = {"else": "orelse", "finally": "finalbody"}


def _begins(source: Source, block: Spot, here: Sequence[Spot], header: str) -> bool:
    """Whether a block begins with a header; an `elif` is an `if`, too."""
    if header in _BARE:
        return block.block == _BARE[header] and not source.is_elif(here[0].node)
    if block.block != "body" or not has_block(block.node):
        return False
    return isinstance(block.node, ast.Try) if header == "try" else same_header(header_node(header), block.node)


def spelled(*address: str) -> str:
    """Return an address as a hunk has it."""
    return f"@@ {' / '.join(address)}"


def address_of(source: Source, path: Path) -> tuple[str, ...]:
    """Return the address of the block that the statement at, or around, `path` stands in: its scope and headers.

    It is () where none leads there: in a `match`, and in an overload. One of the module has the scope "".
    """
    nodes, scope, headers = along(source.tree, path), list[str](), list[str]()
    for (name, _), above, below in zip(path, nodes, nodes[1:], strict=False):
        if name not in BLOCKS:
            break
        if name == "cases" or (isinstance(above, DEFINITIONS) and not bound_name(above)):
            return ()
        if isinstance(above, DEFINITIONS):
            scope, headers = [*scope, *bound_name(above)], []
        elif not isinstance(above, ast.Module):
            headers += [] if name == "orelse" and source.is_elif(above) else [spelling(source, above)]
            branch = {"orelse": "else", "finalbody": "finally"}.get(name)
            headers += [branch] if branch and not (isinstance(above, ast.If) and source.is_elif(below)) else []
    return ".".join(scope), *headers


def spelling(source: Source, node: ast.AST) -> str:
    """Return the header of a statement or handler, as an address has it."""
    text = header_text(node).removesuffix(":\n    ...")
    return f"el{text}" if source.is_elif(node) else text


def _nearest_name(source: Source, scope: str) -> str:
    import difflib

    near = difflib.get_close_matches(scope, [*_named(source)], 1, 0.6)
    return f"; nearest: {near[0]!r}" if near else ""


def runs(source: Source, owner: Spot, pattern: Sequence[ast.stmt], *, exactly: bool = False) -> list[list[Spot]]:
    """List the runs of statements directly in `owner` that match `pattern`, or equal it if `exactly`."""
    agree = same if exactly else matches
    here, size, found = source.block(owner), len(pattern), list[list[Spot]]()
    start = 0
    while start + size <= len(here):
        window = here[start : start + size]
        fits = all(agree(p, s.node) for p, s in zip(pattern, window, strict=True))
        fits = fits and source.fills_lines(window[0].node, window[-1].node)
        found.extend([window] if fits else [])
        start += size if fits else 1
    return found


def expressions(source: Source, owner: Spot, pattern: ast.expr, *, exactly: bool = True) -> list[Spot]:
    """List the outermost expressions in `owner` that match `pattern`, or equal it."""
    agree = same if exactly else matches
    found: list[Spot] = []
    for spot in source.expressions(owner).get(type(pattern), ()):
        if not (found and inside(spot.path, found[-1].path)) and agree(pattern, spot.node):
            found.append(spot)
    return found


def most_alike(source: Source, owners: Sequence[Spot], wanted: ast.AST, text: str) -> Spot | None:
    """Find the code below `owners` of the kind of `wanted` that is most similar to `text`."""
    import difflib

    candidates = [s for owner in owners for s in walk(owner) if type(s.node) is type(wanted) and s is not owner]
    by_text = {source.quoted(spot.node): spot for spot in reversed(candidates)}
    near = difflib.get_close_matches(text, by_text, 1, 0.5)
    return by_text[near[0]] if near else None
