"""Mutations of a module's text at one statement, or at one name or literal in its header."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

BLOCKS = ("body", "orelse", "finalbody")
WRAPPERS = {"if": ("if True:", ""), "with": ("with vp_context:", ""), "try": ("try:", "finally:\n{indent}    pass\n")}

Steps = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Place:
    """A statement in a block, with the statements around it, outermost first."""

    node: ast.stmt
    block: list[ast.stmt]
    index: int
    around: tuple[ast.stmt, ...]


def span(node: ast.stmt) -> tuple[int, int]:
    """Return a statement's lines, decorators included, as the bounds of a slice."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return first - 1, node.end_lineno or first


def places(block: list[ast.stmt], around: tuple[ast.stmt, ...] = ()) -> Iterator[Place]:
    """Yield every statement of a block, and of the blocks in it."""
    for index, node in enumerate(block):
        yield Place(node, block, index, around)
        for inner in blocks(node):
            yield from places(inner, (*around, node))


def blocks(node: ast.AST) -> list[list[ast.stmt]]:
    """Return the blocks of a compound statement."""
    own = [inner for name in BLOCKS if isinstance(inner := getattr(node, name, None), list) and inner]
    handlers = [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]
    return own + [handler.body for handler in handlers]


def header(node: ast.AST, path: Steps = ()) -> Iterator[tuple[Steps, ast.AST]]:
    """Yield the nodes of a statement outside its blocks and f-strings, each with the path to it."""
    for name, value in ast.iter_fields(node):
        children = (
            [(-1, value)] if isinstance(value, ast.AST) else list(enumerate(value)) if type(value) is list else []
        )
        for index, child in children:
            if isinstance(child, ast.AST) and not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield (*path, (name, index)), child
                if not isinstance(child, ast.JoinedStr):
                    yield from header(child, (*path, (name, index)))


def follow(node: ast.AST, path: Steps) -> ast.AST | None:
    """Follow a path that `header` yielded, in another statement."""
    for name, index in path:
        value = getattr(node, name, None)
        value = value if index < 0 or not isinstance(value, list) else value[index] if index < len(value) else None
        if not isinstance(value, ast.AST):
            return None
        node = value
    return node


def holes(pattern: object, found: object) -> list[ast.AST] | None:
    """Return the parts of `found` that `...` stands for in `pattern`; None if `pattern` does not match.

    In a list, `...` stands for any number of statements, arguments or elements; a list may have it once.
    """
    free: list[ast.AST] = []
    if isinstance(pattern, list) and isinstance(found, list):
        if at := [index for index, one in enumerate(pattern) if _is_hole(one)]:
            (start,) = at
            end = start + len(found) - len(pattern) + 1
            free = found[start:end]
            pattern, found = [*pattern[:start], *pattern[start + 1 :]], [*found[:start], *found[max(start, end) :]]
        if len(pattern) != len(found):
            return None
        inner = zip(pattern, found, strict=True)
    elif _is_hole(pattern) and isinstance(found, ast.expr):
        return [found]
    elif isinstance(pattern, ast.AST):
        if type(pattern) is not type(found):
            return None
        inner = zip(_fields(pattern), _fields(found), strict=True)
    else:
        return [] if pattern == found else None
    for one, other in inner:
        below = holes(one, other)
        if below is None:
            return None
        free += below
    return free


def _is_hole(node: object) -> bool:
    node = node.value if isinstance(node, ast.Expr) else node
    return isinstance(node, ast.Constant) and node.value is ...


def _fields(node: ast.AST) -> list[object]:
    """List what a node's fields hold; a call's arguments are one list, whether they have keywords or not."""
    if isinstance(node, ast.Call):
        return [node.func, [*node.args, *node.keywords]]
    return [value for _, value in ast.iter_fields(node)]


def pairs(old: list[ast.stmt], new: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """Yield the pairs of corresponding statements of two versions of a block, inner blocks included."""
    matcher = SequenceMatcher(a=[ast.dump(n) for n in old], b=[ast.dump(n) for n in new], autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            twins = list(zip(old[i:j], new[k:m], strict=True))
        else:
            here = new[k:m]
            twins = [(a, b) for a in old[i:j] for b in here[:1] + here[1:] if _alike(a, b)]
        for a, b in twins:
            yield a, b
            for one, other in zip(blocks(a), blocks(b), strict=False):
                yield from pairs(one, other)


def _alike(a: ast.stmt, b: ast.stmt) -> bool:
    """Whether two different statements correspond: same name defined, same block header, or same target."""
    heads = [[ast.dump(getattr(n, f)) for f in ("test", "target", "iter") if hasattr(n, f)] for n in (a, b)]
    heads = [
        h + [getattr(n, "name", "")] + [ast.dump(t) for t in getattr(n, "targets", ())]
        for h, n in zip(heads, (a, b), strict=True)
    ]
    return type(a) is type(b) and heads[0] == heads[1] and any(heads[0])


def compiles(text: str | None) -> bool:
    """Whether a module is valid Python."""
    try:
        compile(text or "", "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def definitions(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def put(text: str, node: ast.AST, new: str, *, name: str = "") -> str:
    """Replace a name or literal by `new`; search for `name` from the node's beginning."""
    lines = text.encode().splitlines(keepends=True)
    row, column = node.lineno - 1, node.col_offset  # type: ignore[attr-defined]
    end_row, end = node.end_lineno - 1, node.end_col_offset  # type: ignore[attr-defined]
    if isinstance(node, ast.Attribute):
        row, column = end_row, end - len(name.encode())
    elif definitions(node):
        column = lines[row].index(f" {name}".encode(), column + 3) + 1  # after `def` or `class`
        end_row, end = row, column + len(name.encode())
    elif name:
        end_row, end = row, column + len(name.encode())
    lines[row : end_row + 1] = [lines[row][:column] + new.encode() + lines[end_row][end:]]
    return b"".join(lines).decode()


def delete(text: str, place: Place, _: str) -> str:
    first, last = span(place.node)
    lines = text.splitlines(keepends=True)
    stub = [] if len(place.block) > 1 else [f"{' ' * place.node.col_offset}pass\n"]
    return "".join([*lines[:first], *stub, *lines[last:]])


def duplicate(text: str, place: Place, _: str) -> str:
    first, last = span(place.node)
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:last], *lines[first:last], *lines[last:]])


def reorder(text: str, place: Place, _: str) -> str:
    first, last = span(place.node)
    then, end = span(place.block[place.index + 1])
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:first], *lines[then:end], *lines[last:then], *lines[first:last], *lines[end:]])


def wrap(text: str, place: Place, how: str) -> str:
    return indented(text, place.node, *WRAPPERS[how])


def indented(text: str, node: ast.stmt, head: str, tail: str = "") -> str:
    """Put a statement under a header, and `tail` after it; lines inside strings keep their indentation."""
    first, last = span(node)
    lines, indent = text.splitlines(keepends=True), " " * node.col_offset
    strings = [n for n in ast.walk(node) if isinstance(n, ast.Constant | ast.JoinedStr)]
    kept = {row for n in strings for row in range(n.lineno, n.end_lineno or 0)}
    inner = [
        f"    {lines[row]}" if lines[row].strip() and row not in kept else lines[row] for row in range(first, last)
    ]
    closing = [f"{indent}{tail.format(indent=indent)}"] if tail else []
    return "".join([*lines[:first], f"{indent}{head}\n", *inner, *closing, *lines[last:]])


MUTATE: dict[str, Callable[[str, Place, str], str]] = {
    "reorder": reorder,
    "wrap": wrap,
    "duplicate": duplicate,
    "delete": delete,
}


def mutated(text: str, kind: str, place: Place, path: Steps, how: str) -> str | None:
    """Mutate a module at a place; None if there is nothing to mutate. The result may be invalid Python."""
    if kind in MUTATE:
        last = kind == "reorder" and place.index + 1 == len(place.block)
        return None if last else MUTATE[kind](text, place, how)
    node = follow(place.node, path)
    match node:
        case ast.Constant(value=str()):
            return put(text, node, '"vp_literal"')
        case ast.Constant(value=bool(value)):
            return put(text, node, str(not value))
        case ast.Constant(value=int(value) | float(value)):
            return put(text, node, f"{value}1")
        case (
            ast.Name(id=name)
            | ast.arg(arg=name)
            | ast.Attribute(attr=name)
            | ast.alias(name=name)
            | ast.FunctionDef(name=name)
            | ast.AsyncFunctionDef(name=name)
            | ast.ClassDef(name=name)
        ):
            return put(text, node, "vp_name", name=name)
    return None
