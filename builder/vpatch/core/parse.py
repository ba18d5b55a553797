"""Parse a module for the edits, without the code that no overlay reads.

Parsing takes most of a run's time, and an overlay reads few functions of a long file. String placeholders with as many
lines replace all other functions and class bodies, which come back byte for byte.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from vpatch.core import cst, nesting
from vpatch.core.landing.binding import Scope
from vpatch.core.landing.definitions import Module, analyzed
from vpatch.core.syntax import BLOCKS, Path, Spot, along, evaluated_steps, kind_of, splice, walk
from vpatch.core.verdict import Answer, EditFinding
from vpatch.wrapping import shortened

_LABEL = "vpatch:elided:"
# A number, and the number of statements that it replaces.
_PLACEHOLDER = re.compile(rf'"""{_LABEL}(\d+):(\d+)[\r\n]*"""')
_MARK = "# vpatch:"
# Whitespace that libcst drops: form feeds, lone carriage returns, lines of nothing but a backslash.
_ODD = re.compile(rb"\f|\r(?!\n)|^[ \t]*\\\r?\n", re.MULTILINE)

Scopes = Collection[str]
"""Qualified names of the code to parse, with everything below them; "" is the whole module."""


class Lost(Exception):
    """An edit does not find its code; the message describes what it finds instead.

    `hint` returns the end of the message. It is called only to format the message, since it is slow.
    """

    def __init__(self, because: str, hint: Callable[[], str] = str) -> None:
        super().__init__(because)
        self._hint = hint

    def __str__(self) -> str:
        return f"{self.args[0]}{self._hint()}"


@dataclass(frozen=True)
class Source:
    """One parsed module; `elided` is the code that placeholders replace.

    `names` has the qualified names of all definitions, once an error message asked for them.
    """

    file: str
    module: cst.Module
    elided: tuple[str, ...] = ()
    names: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _walked: dict[Path, dict[type, list[Spot]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def bytes(self) -> bytes:
        """The module's whole source."""
        return restore(self.module.bytes, self.elided, self.module.encoding)

    def expressions(self, owner: Spot) -> Mapping[type, Sequence[Spot]]:
        """Return the expressions in `owner` by `kind_of`; edits of one function share the walk."""
        if owner.path not in self._walked:
            found = self._walked[owner.path] = defaultdict(list)
            for spot in walk(owner, evaluated_steps):
                found[kind_of(spot.node)].append(spot)
        return self._walked[owner.path]

    def put(self, path: Path, *new: cst.CSTNode) -> Source:
        """Return the source with the node at `path` replaced by `new`."""
        return Source(self.file, splice(self.module, path, new), self.elided)

    def text(self, node: cst.CSTNode) -> str:
        """Return a node's code on one line of at most 80 characters."""
        return shortened(" ".join(self.module.code_for_node(node).split()), 80)

    def line(self, path: Path) -> int:
        """Return the first line of the statement at or around `path`. Slow: for error messages."""
        nodes = along(self.module, path)
        depth = next(depth for depth in range(len(path), 0, -1) if hasattr(nodes[depth], "leading_lines"))
        here = cst.EmptyLine(comment=cst.Comment("# \0"))
        above = (*nodes[depth].leading_lines, here)  # type: ignore[attr-defined]
        flagged = splice(self.module, path[:depth], [nodes[depth].with_changes(leading_lines=above)])
        before = flagged.with_changes(body=flagged.body[: path[0][1] + 1]).code.partition("# \0")[0]
        return len(re.findall(r"\r\n?|\n", before)) + 1


@dataclass
class Parsed:
    """A module's bytes, parsed lazily, with the findings of edits in them and the answers of predicates."""

    file: str
    data: bytes
    reach: Scopes
    findings: dict[tuple[object, str], EditFinding] = field(default_factory=dict)
    answers: dict[object, Answer] = field(default_factory=dict)
    _tree: ast.Module | Exception | None = None
    _source: Source | Lost | None = None

    def tree(self) -> ast.Module:
        """Return Python's own syntax tree.

        Raises:
            Lost: the module is too large or nests too deeply.
            SyntaxError, ValueError, LookupError: Python cannot parse it.
        """
        if self._tree is None:
            try:
                self._tree = nesting.parse(nesting.decode(self.data)[0])
            except nesting.Unparsable as error:
                self._tree = Lost(str(error))
            except (SyntaxError, ValueError, LookupError) as error:
                self._tree = error.with_traceback(None)
        if isinstance(self._tree, Exception):
            raise self._tree
        return self._tree

    @cached_property
    def analyzed(self) -> Module:
        """The module's scopes.

        Raises:
            Lost: the module cannot be parsed.
            SyntaxError, ValueError, LookupError, RecursionError: libcst can parse it and this Python cannot.
        """
        try:
            return analyzed(self.tree())
        except (SyntaxError, ValueError, LookupError):
            self.source()
            raise

    @cached_property
    def scope(self) -> Scope:
        """The module's scope, without what functions in it declare global.

        Raises:
            Lost, SyntaxError, ValueError, LookupError: as `tree`.
        """
        return Scope(self.tree())

    def source(self) -> Source:
        """Return libcst's syntax tree, with placeholders for the code outside `reach`.

        Raises:
            Lost: libcst cannot parse the module, or would not write it back unchanged.
        """
        if self._source is None:
            try:
                self._source = self._parse()
            except Lost as lost:
                self._source = lost.with_traceback(None)
        if isinstance(self._source, Lost):
            raise self._source
        return self._source

    def _parse(self) -> Source:
        try:
            rest, elided = elide(self.data, self.tree(), self.reach)
        except (SyntaxError, ValueError, LookupError):
            rest, elided = self.data, ()  # libcst may know a newer Python, or explain what is wrong
        try:
            module = cst.parse_module(rest)
            lossy = _ODD.search(rest) and module.bytes != rest
        except cst.ParserSyntaxError as error:
            cause = error.message.strip().splitlines()[-1]
            raise Lost(f"not valid Python: {cause} (line {error.raw_line})") from error
        except (UnicodeDecodeError, SyntaxError, LookupError) as error:
            raise Lost(f"not readable as text: {error}") from error
        except RecursionError as error:
            raise Lost("not valid Python: nested too deeply") from error
        if not elided and _PLACEHOLDER.search(rest.decode("latin-1")):
            raise Lost("has a string that vpatch takes for its own placeholder, and would count as other statements")
        if lossy:
            raise Lost("has whitespace, such as a form feed before a statement, that an edit would lose")
        return Source(self.file, module, elided)


class ParsedModules:
    """The modules that one engine has parsed, each once for equal bytes.

    `reach` maps each file to the qualified names that overlays read in it. Other files are parsed whole.
    """

    def __init__(self, reach: dict[str, frozenset[str]] | None = None) -> None:
        self._reach = reach or {}
        self._known: dict[tuple[str, bytes], Parsed] = {}

    def module(self, file: str, data: bytes) -> Parsed:
        """Return the entry for a file with these bytes."""
        known = self._known.get((file, data))
        if known is None:
            known = self._known[file, data] = Parsed(file, data, self._reach.get(file, frozenset({""})))
        return known

    def forget(self, but: Collection[bytes]) -> None:
        """Drop every entry whose bytes are not in `but`."""
        self._known = {key: known for key, known in self._known.items() if key[1] in but}


def elide(data: bytes, tree: ast.Module, scopes: Scopes) -> tuple[bytes, tuple[str, ...]]:
    """Return a module with placeholders for the code outside `scopes`, and the replaced code.

    Line numbers, module-level statements and the headers of module-level definitions stay.

    Args:
        data: the module's bytes, which `nesting.decode` accepts.
        tree: its syntax tree.
        scopes: the code to parse.
    """
    text, encoding = nesting.decode(data)
    # Python's line numbers must be those of split("\n").
    if "" in scopes or _LABEL in text or re.search(r"\r(?!\n)|\x0c", text):
        return data, ()
    lines = text.split("\n")
    kept: list[str] = []
    bodies: list[str] = []
    done = 0
    for first, last, count in _Elision(lines, scopes).module(tree.body):
        body = "\n".join(lines[first:last])
        indent = body[: len(body) - len(body.lstrip(" \t"))]
        label = f"{_LABEL}{len(bodies)}:{count}"
        kept += [*lines[done:first], f'{indent}"""{label}' + "\n" * (last - first - 1) + '"""']
        bodies.append(body.removesuffix("\r"))
        if body.endswith("\r"):
            kept[-1] += "\r"
        done = last
    return "\n".join([*kept, *lines[done:]]).encode(encoding), tuple(bodies)


def restore(data: bytes, bodies: Sequence[str], encoding: str) -> bytes:
    """Replace the placeholders by the code that `elide` replaced."""
    if not bodies:
        return data
    text = data.decode(encoding)
    return _PLACEHOLDER.sub(lambda found: bodies[int(found[1])].lstrip(" \t"), text).encode(encoding)


def width(node: cst.CSTNode) -> int:
    """Return the number of statements in Python's syntax tree for a line of libcst's tree."""
    match node:
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString(value=text))]):
            found = _PLACEHOLDER.fullmatch(text)
            return int(found[2]) if found else 1
        case cst.SimpleStatementLine(body=body):
            return len(body)
    return 1


_Span = tuple[int, int, int]  # the first line, the line behind the last, how many statements
_Name = tuple[str, ...]


class _Elision:
    """Finds the removable code of one module, as half-open ranges of lines in order."""

    def __init__(self, lines: Sequence[str], scopes: Scopes) -> None:
        self._lines = lines
        self._scopes = [tuple(scope.split(".")) for scope in scopes]

    def module(self, block: Sequence[ast.AST], owner: _Name = ()) -> Iterator[_Span]:
        """Yield the bodies of definitions in a block."""
        for node in block:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._definition(node, (*owner, node.name))
            else:
                for name in BLOCKS:
                    yield from self.module(getattr(node, name, ()), owner)

    def _definition(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: _Name) -> Iterator[_Span]:
        if self._inside(name) or (self._above(name) and not isinstance(node, ast.ClassDef)):
            return
        yield from self._members(node.body, name) if self._above(name) else self._span(node.body)

    def _members(self, block: Sequence[ast.stmt], owner: _Name) -> Iterator[_Span]:
        """Yield runs of members of a class that contain no scope.

        The last member stays, since comments behind it belong to its block. Marked definitions stay, since edits sort
        by them.
        """
        run: list[ast.stmt] = []
        for node in block[:-1]:
            if self._removable(node, owner):
                run.append(node)
                continue
            yield from self._span(run)
            run = []
            yield from self.module([node], owner)
        yield from self._span(run)
        yield from self.module(block[-1:], owner)

    def _removable(self, node: ast.stmt, owner: _Name) -> bool:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if self._inside((*owner, name)) or self._above((*owner, name)):
                    return False
            case ast.Assign() | ast.AnnAssign() | ast.Expr():
                return True
            case _:
                return False
        return not any(_MARK in line for line in self._lines[node.lineno - 1 : node.end_lineno])

    def _inside(self, name: _Name) -> bool:
        return any(name[: len(scope)] == scope for scope in self._scopes)

    def _above(self, name: _Name) -> bool:
        return any(scope[: len(name)] == name for scope in self._scopes)

    def _span(self, block: Sequence[ast.stmt]) -> Iterator[_Span]:
        """Yield the lines of statements, unless the first shares its line with the code before it."""
        if not block:
            return
        head = block[0]
        first = min([head.lineno, *(decorator.lineno for decorator in getattr(head, "decorator_list", ()))]) - 1
        before = self._lines[first].encode()[: head.col_offset]
        # Python counts columns in bytes; a decorator's line has an @ there.
        if not before.strip(b" \t@"):
            yield first, block[-1].end_lineno or first, len(block)
