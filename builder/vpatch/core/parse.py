"""A parsed module: its text, Python's syntax tree of it, and the marks in it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from vpatch.core import nesting
from vpatch.core.marks import marked_by
from vpatch.core.syntax import BLOCKS, DEFINITIONS, Path, Spot, along, evaluated, has_block, within
from vpatch.wrapping import shortened


def _is_empty(line: str) -> bool:
    """Whether a line has no code."""
    return line.strip()[:1] in {"", "#"}


class Lost(Exception):
    """An edit does not find its code; the message describes what it finds instead.

    `hint` returns the end of the message. It is called only to format the message, since it is slow.
    """

    def __init__(self, because: str, hint: Callable[[], str] = str) -> None:
        super().__init__(because)
        self._hint = hint

    def __str__(self) -> str:
        return f"{self.args[0]}{self._hint()}"


@dataclass(frozen=True, eq=False)
class Source:
    """One parsed module.

    Attributes:
        file: its path in the tree.
        text: its decoded text, without a byte order mark.
        encoding: the name of its encoding.
        named: its definitions by qualified name, once `select.scopes` asked for one.
    """

    file: str
    text: str
    encoding: str
    _walked: dict[tuple[Path, str], dict[type, list[Spot]]] = field(default_factory=dict, init=False, repr=False)
    _blocks: dict[tuple[Path, str], list[tuple[Spot, list[Spot]]]] = field(default_factory=dict, init=False, repr=False)
    named: dict[str, list[Spot]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        """Python's syntax tree of the text."""
        return nesting.parse(self.text)

    def free(self) -> None:
        """Free everything but the text; what is asked for again is computed again."""
        for index in (self._walked, self._blocks, self.named):
            index.clear()
        for name in vars(self).keys() - {one.name for one in fields(self)}:
            del vars(self)[name]

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, each with its end."""
        return re.findall(r"[^\n]*\n|[^\n]+", self.text)

    @cached_property
    def newline(self) -> str:
        """How the first line ends."""
        return "\r\n" if self.lines and self.lines[0].endswith("\r\n") else "\n"

    @cached_property
    def indent(self) -> str:
        """The white space by which the module's first indented block is indented."""
        bodies = (getattr(node, "body", ()) for node in self.tree.body)
        return next((text for body in bodies if body and (text := self.indent_of(body[0]))), "    ")

    def indent_of(self, node: ast.AST) -> str:
        """Return the white space before a statement, handler or case."""
        line = self.lines[first_line(node) - 1]
        return line[: len(line) - len(line.lstrip())]

    @cached_property
    def marks(self) -> Mapping[int, Sequence[str]]:
        """The overlays whose marks a line has, by the line's number; lines of code only."""
        return {number: marked_by(line) for number, line in self._marked if not line.lstrip().startswith("#")}

    @cached_property
    def traces(self) -> Mapping[int, Sequence[str]]:
        """The overlays whose marks stand alone on a line, as a deletion leaves them, by the line's number."""
        return {number: marked_by(line) for number, line in self._marked if line.lstrip().startswith("#")}

    @cached_property
    def _marked(self) -> list[tuple[int, str]]:
        if "vpatch:" not in self.text:
            return []
        return [(number, line) for number, line in enumerate(self.lines, 1) if marked_by(line)]

    def head(self, node: ast.AST) -> tuple[int, int]:
        """Return the first and the last line on which a statement, or its header, may have its mark."""
        bodies: list[Any] = [*getattr(node, "body", ()), *getattr(node, "cases", ())]
        first = first_line(node)
        if not bodies or not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            return first, end_line(node)
        return first, first_line(bodies[0]) - 1 if self.begins_line(bodies[0]) else end_line(node)

    def opening(self, block: Spot) -> int:
        """Return how many lines stand above the first line of a block: all up to the end of its header."""
        here = within(block)
        line = first_line(here[0].node) - 1 if here else len(self.lines)
        while block.path and line and _is_empty(self.lines[line - 1]):
            line -= 1
        return line

    def extent(self, node: Any) -> int:
        """Return the last line of a statement, with the comments at the end of its block."""
        last = end_line(node)
        if hasattr(node, "body") or hasattr(node, "cases"):
            for number, line in enumerate(self.lines[last:], last + 1):
                if not _is_empty(line):
                    break
                if line.strip() and len(line) - len(line.lstrip()) > node.col_offset:
                    last = number
        return last

    def marks_on(self, node: ast.AST) -> list[str]:
        """Return the overlays whose marks a statement has."""
        if not self.marks:
            return []
        first, last = self.head(node)
        return [mark for line in range(first, last + 1) for mark in self.marks.get(line, ())]

    def mark_of(self, path: Path, overlay: str) -> frozenset[int]:
        """Return the line with an overlay's mark of the statement that carries the mark of a change at `path`."""
        if not self.marks:
            return frozenset()
        first, last = self.head(along(self.tree, self.carrier(path))[-1])
        return frozenset(line for line in range(first, last + 1) if overlay in self.marks.get(line, ()))

    def carrier(self, path: Path) -> Path:
        """Return the path of the statement, handler or case that carries the mark of a change at `path`."""
        nodes = along(self.tree, path)
        for depth in range(len(path), 0, -1):
            if isinstance(nodes[depth], ast.stmt | ast.ExceptHandler | ast.match_case):
                return path[:depth]
        raise LookupError(path)

    def expressions(self, owner: Spot) -> Mapping[type, Sequence[Spot]]:
        """Return what stands in `owner` by its class; edits of one function share the walk."""
        key = (owner.path, owner.block)
        if key not in self._walked:
            found = self._walked[key] = defaultdict(list)
            for spot in evaluated(owner):
                found[type(spot.node)].append(spot)
        return self._walked[key]

    def block(self, owner: Spot) -> list[Spot]:
        """List the statements directly in a block; none if the block is on the line of its header."""
        found = within(owner)
        return found if not found or self.begins_line(found[0].node) else []

    def begins_line(self, node: Any) -> bool:
        """Whether nothing stands before a statement, handler or case on its line."""
        before = self.lines[first_line(node) - 1][: getattr(node, "col_offset", 0)]
        return not before.strip()

    def fills_lines(self, first: ast.stmt, last: ast.stmt) -> bool:
        """Whether nothing but comments shares a line with a run of statements."""
        behind = self.lines[end_line(last) - 1].encode()[last.end_col_offset :].decode().partition("#")[0]
        return self.begins_line(first) and not behind.strip(" \t\r\n;")

    def blocks(self, owner: Spot) -> list[tuple[Spot, list[Spot]]]:
        """List a block and those in it, with their statements, but not those of functions and classes defined there."""
        key = (owner.path, owner.block)
        if key not in self._blocks:
            found, todo = [], [owner]
            while todo:
                block = todo.pop()
                if here := self.block(block):
                    found.append((block, here))
                inner = [spot for spot in here if not isinstance(spot.node, DEFINITIONS)]
                todo += reversed([below for spot in inner for below in _below(spot)])
            self._blocks[key] = found
        return self._blocks[key]

    def traces_in(self, owner: Spot, overlay: str) -> Iterator[int]:
        """Yield the lines with an overlay's marks that deletions left: comments, or a `pass` that fills a block."""
        for block, here in self.blocks(owner):
            inner = [range(first_line(spot.node), self.extent(spot.node) + 1) for spot in here]
            below = self.opening(block) if block.path else 0
            for line, overlays in self.traces.items():
                if below < line < inner[-1].stop and overlay in overlays and not any(line in one for one in inner):
                    yield line
            for spot in here:
                if isinstance(spot.node, ast.Pass):
                    yield from self.mark_of(spot.path, overlay)

    def is_elif(self, node: ast.AST) -> bool:
        """Whether an `if` is spelled `elif`."""
        return isinstance(node, ast.If) and self.lines[node.lineno - 1][node.col_offset :].startswith("elif")

    def line(self, path: Path) -> int:
        """Return the first line of the statement at or around `path`, its decorators included."""
        nodes = along(self.tree, path)
        return next((first_line(n) for n in reversed(nodes) if isinstance(n, ast.stmt | ast.ExceptHandler)), 1)

    def text_of(self, node: Any) -> str:
        """Return a node's code."""
        return text_of(self.lines, node)

    def quoted(self, node: ast.AST) -> str:
        """Return a node's code on one line of at most 80 characters, without the blocks of a statement."""
        return quoted(self.lines, node)


def _below(spot: Spot) -> Iterator[Spot]:
    """Yield the blocks of a statement."""
    for name in ("body", "orelse", "finalbody"):
        if getattr(spot.node, name, None):
            yield Spot(spot.path, spot.node, name)
    for name in ("handlers", "cases"):
        for index, child in enumerate(getattr(spot.node, name, ())):
            yield Spot((*spot.path, (name, index)), child)


def first_line(node: Any) -> int:
    """Return the first line of a statement, handler or case, its decorators included."""
    if isinstance(node, ast.match_case):
        return int(node.pattern.lineno)
    return int(min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]))


def end_line(node: Any) -> int:
    """Return the last line of a statement, handler or case."""
    last: Any = node.body[-1] if isinstance(node, ast.match_case) else node
    return int(last.end_lineno)


def quoted(lines: Sequence[str], node: ast.AST) -> str:
    """Return the code of a node that stands in `lines`, on one line of at most 80 characters, without blocks."""
    return shortened(" ".join((header_text(node) or text_of(lines, node)).split()), 80)


def text_of(lines: Sequence[str], node: Any) -> str:
    """Return the code of a node that stands in `lines`."""
    found = [line.encode() for line in lines[node.lineno - 1 : node.end_lineno]]  # Python counts columns in UTF-8
    found[-1] = found[-1][: node.end_col_offset]
    found[0] = found[0][node.col_offset :]
    return b"".join(found).decode()


def header_text(node: Any) -> str:
    """Return the header of a statement, handler or case, with `...` as its block; "" of anything without one."""
    if not has_block(node):
        return ""
    bare = {name: getattr(node, name) for name in node._fields if name not in {*BLOCKS, "decorator_list"}}
    empty: dict[str, Any] = {name: [] for name in (*BLOCKS, "decorator_list") if name in node._fields}
    fresh = type(node)(**bare, **{**empty, **({"body": [ast.Expr(ast.Constant(...))]} if "body" in empty else {})})
    return ast.unparse(ast.fix_missing_locations(fresh))
