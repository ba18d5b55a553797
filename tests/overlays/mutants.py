"""Mutations of a module at one statement, name or literal, and what they must do to an overlay that changes it."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vpatch.core.overlay import Edit
from vpatch.core.parse import Source, first_line
from vpatch.core.syntax import along
from vpatch.core.verdict import EditFinding

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Span = tuple[tuple[int, int], tuple[int, int]]
"""Where code begins and ends: line, counted from 1, and column."""


@dataclass(frozen=True)
class Place:
    """A statement in a block."""

    node: ast.stmt
    block: list[ast.stmt]
    index: int


def lines_of(node: ast.stmt) -> tuple[int, int]:
    """Return a statement's lines, decorators included, as the bounds of a slice."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return first - 1, node.end_lineno or first


def blocks(node: ast.AST) -> list[list[ast.stmt]]:
    """Return the blocks of a compound statement."""
    own = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    inner = [block for block in own if isinstance(block, list) and block]  # a lambda's body is no list
    return inner + [each.body for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]


def places(block: list[ast.stmt]) -> Iterator[Place]:
    """Yield every statement of a block, and of the blocks in it."""
    for index, node in enumerate(block):
        yield Place(node, block, index)
        for inner in blocks(node):
            yield from places(inner)


def compiles(text: str) -> bool:
    """Whether a module is valid Python."""
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def delete(lines: list[str], place: Place) -> list[str]:
    first, last = lines_of(place.node)
    stub = [] if len(place.block) > 1 else [f"{' ' * place.node.col_offset}pass\n"]
    return [*lines[:first], *stub, *lines[last:]]


def duplicate(lines: list[str], place: Place) -> list[str]:
    first, last = lines_of(place.node)
    return [*lines[:last], *lines[first:last], *lines[last:]]


def reorder(lines: list[str], place: Place) -> list[str]:
    (first, last), (then, end) = lines_of(place.node), lines_of(place.block[place.index + 1])
    return [*lines[:first], *lines[then:end], *lines[last:then], *lines[first:last], *lines[end:]]


def wrap(lines: list[str], place: Place) -> list[str]:
    return indented(lines, place.node, "if True:")


def indented(lines: list[str], node: ast.stmt, head: str) -> list[str]:
    """Put a statement under a header; lines inside strings keep their indentation."""
    first, last = lines_of(node)
    strings = [n for n in ast.walk(node) if isinstance(n, ast.Constant | ast.JoinedStr)]
    kept = {row for n in strings for row in range(n.lineno, n.end_lineno or 0)}
    inner = [lines[row] if row in kept or not lines[row].strip() else f"    {lines[row]}" for row in range(first, last)]
    return [*lines[:first], f"{' ' * node.col_offset}{head}\n", *inner, *lines[last:]]


STATEMENTS: dict[str, Callable[[list[str], Place], list[str]]] = {
    "reorder": reorder,
    "wrap": wrap,
    "duplicate": duplicate,
    "delete": delete,
}
KINDS = ("rename", "literal", *STATEMENTS)


@dataclass(frozen=True)
class Mutant:
    """A mutated module, and what its overlay must do.

    `fate`: "drifts", because the mutation is in code that an edit knows exactly; "applies", because no edit knows that
    code; "either", because it moves or copies such code, or is in what `...` of an anchor stands for.
    """

    kind: str
    file: str
    line: int
    text: str
    fate: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.file}:{self.line}, which {self.fate}"


class Mutator:
    """Makes the mutants of one file, of which edits found code.

    Attributes:
        exact: the code that edits know exactly.
        around: the lines of the statements that have such code, and of the headers of definitions that edits name.
    """

    def __init__(self, source: Source, found: Sequence[tuple[Edit, EditFinding]]) -> None:
        self.file, self.text = source.file, source.text
        self.lines, self.tree = self.text.splitlines(keepends=True), ast.parse(self.text)
        self.exact: list[Span] = []
        self.around: set[int] = set()
        for edit, finding in found:
            if edit.file != self.file:
                continue
            scope = edit.scope.split(".")
            for node in ast.walk(self.tree):
                imports = isinstance(node, ast.Import | ast.ImportFrom) and finding.binds
                if imports or (isinstance(node, Definition) and node.name in scope):
                    self.around.add(node.lineno)  # type: ignore[attr-defined]
            for path in (*finding.regions, *finding.context):
                if path[-1][0].startswith(("gap", "header")):
                    continue
                node = along(source.tree, path)[-1]
                first, last = (first_line(node), node.col_offset), (node.end_lineno, node.end_col_offset)
                self.around |= set(range(first[0], last[0] + 1)) | self._headers(first[0])
                if "..." not in getattr(edit, "text", ""):
                    self.exact.append((first, last))

    def _headers(self, line: int) -> set[int]:
        """Return the lines of the headers of the blocks that a line is in."""
        around = [
            place.node for place in places(self.tree.body) if place.node.lineno < line <= (place.node.end_lineno or 0)
        ]
        return {row for node in around for block in blocks(node)[:1] for row in range(node.lineno, block[0].lineno)}

    def fate(self, kind: str, place: Place, node: ast.AST) -> str:
        """Return what the overlay must do after a mutation."""
        if kind in STATEMENTS:
            last = place.block[place.index + 1] if kind == "reorder" else place.node
            changed = range(lines_of(place.node)[0] + 1, lines_of(last)[1] + 1)
            return "applies" if self.around.isdisjoint(changed) else "either"
        line, start, end = node.lineno, node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        inside = any(first <= (line, start) and (line, end) <= last for first, last in self.exact)
        return "drifts" if inside else "either" if line in self.around else "applies"

    def mutant(self, kind: str, place: Place, node: ast.AST) -> Mutant | None:
        """Make one mutant; None if it is no valid Python, or changes nothing."""
        text = "".join(STATEMENTS[kind](self.lines, place)) if kind in STATEMENTS else self._put(node)
        if text == self.text or not compiles(text):
            return None
        return Mutant(kind, self.file, place.node.lineno, text, self.fate(kind, place, node))

    def _put(self, node: ast.AST) -> str:
        """Replace a name or a literal that is on one line."""
        row, start, end = node.lineno - 1, node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        line, new = self.lines[row].encode(), "vp_name"
        match node:
            case ast.Constant(value=str()):
                new = '"vp_literal"'
            case ast.Constant(value=bool(value)):
                new = str(not value)
            case ast.Constant(value=int(value) | float(value)):
                new = f"{value}1"
            case ast.Attribute(attr=name):
                start = end - len(name.encode())
            case ast.arg(arg=name):
                end = start + len(name.encode())
        changed = (line[:start] + new.encode() + line[end:]).decode()
        return "".join([*self.lines[:row], changed, *self.lines[row + 1 :]])

    def candidates(self) -> Iterator[tuple[str, Place, ast.AST]]:
        """Yield every possible mutation: its kind, the statement, and the name or literal in it."""
        for place in places(self.tree.body):
            if not self.lines[place.node.lineno - 1][: place.node.col_offset].strip(" @"):
                for kind in STATEMENTS:
                    if kind != "reorder" or place.index + 1 < len(place.block):
                        yield kind, place, place.node
            below = {id(inner) for block in blocks(place.node) for each in block for inner in ast.walk(each)}
            texts = [node for node in ast.walk(place.node) if isinstance(node, ast.JoinedStr)]
            below |= {id(inner) for node in texts for inner in ast.walk(node)}
            for node in ast.walk(place.node):
                if id(node) in below or getattr(node, "end_lineno", 0) != getattr(node, "lineno", None):
                    continue
                if isinstance(node, ast.Name | ast.Attribute | ast.arg):
                    yield "rename", place, node
                elif isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
                    yield "literal", place, node


def mutants(mutator: Mutator, count: int, seed: int) -> Iterator[Mutant]:
    """Choose so many mutants of each kind, half of them in code that edits know."""
    rng = random.Random(seed)  # noqa: S311 - it is to be repeatable
    todo = list(mutator.candidates())
    rng.shuffle(todo)
    left = {(kind, known): (count + known) // 2 for kind in KINDS for known in (False, True)}
    for kind, place, node in todo:
        key = kind, mutator.fate(kind, place, node) != "applies"
        if left[key] and (mutant := mutator.mutant(kind, place, node)):
            left[key] -= 1
            yield mutant
