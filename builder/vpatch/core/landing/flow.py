"""A forward may-analysis of one scope: the names that may be bound before each statement.

A name counts if some path to the statement binds it. Statements that no path reaches (behind a `return`, below `if
False` or `if TYPE_CHECKING`) are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import or_
from typing import TypeAlias, cast, get_args

from vpatch.core.syntax import BLOCKS

Names: TypeAlias = frozenset[str]
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Try: TypeAlias = ast.Try | ast.TryStar

STAR = "*"
"""Represents the names that `from module import *` binds."""

Bits: TypeAlias = int
"""A set of names, one bit each; there is one set for each statement of a module."""


@dataclass(frozen=True)
class Flow:
    """The names that may be bound before each reachable statement, handler and case, and at the end.

    `end` is None if the end is unreachable. `bits` maps each name to its bit.
    """

    before: Mapping[ast.AST, Bits]
    end: Bits | None
    bits: Mapping[str, Bits]

    def binds(self, name: str, where: Bits | None) -> bool:
        """Whether `name` may be in the set `where`; a star import may have bound it."""
        return bool((where or 0) & (self.bits.get(name, 0) | self.bits.get(STAR, 0)))


def flow(body: Sequence[ast.stmt], start: Names = frozenset()) -> Flow:
    """Analyze the statements of one scope; the names in `start` are bound from the beginning."""
    walker = _Walker()
    end = walker.block(body, walker.mask(start))
    return Flow(walker.before, end, walker.bits)


def truth(test: ast.expr) -> bool | None:
    """Evaluate a condition that is constant at run time, `TYPE_CHECKING` included; None if it is not."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return False
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return None if (inner := truth(operand)) is None else not inner
        case ast.BoolOp(op=ast.And(), values=values) if any(truth(value) is False for value in values):
            return False
        case ast.BoolOp(op=ast.Or(), values=values) if any(truth(value) is True for value in values):
            return True
    return None


def bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that an expression or a statement's header binds in its scope."""
    todo = [node]
    while todo:
        node = todo.pop()
        kind = node.__class__
        if kind is ast.Name:  # most nodes are one
            if node.ctx.__class__ is ast.Store:  # type: ignore[attr-defined]
                yield node.id  # type: ignore[attr-defined]
        elif kind in COMPREHENSIONS:
            yield from (one.target.id for one in ast.walk(node) if isinstance(one, ast.NamedExpr))
        elif kind is not ast.Constant and not (kind is ast.AnnAssign and node.value is None):  # type: ignore[attr-defined]
            if kind in _BINDING:
                yield from _bound_as_text(node)
            todo += header(node)


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BINDING = frozenset({*get_args(Definition), ast.Import, ast.ImportFrom, ast.MatchAs, ast.MatchStar, ast.MatchMapping})


def _bound_as_text(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds by itself, not by a `Name` in it."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=aliases):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
        case ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name for alias in aliases)
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name


def header(node: ast.AST) -> list[ast.AST]:
    """List the nodes directly below a node, except its blocks and the body of a lambda, which runs later."""
    return _below(node, _header_fields(cast("Hashable", node.__class__)))


def children(node: ast.AST) -> list[ast.AST]:
    """List the nodes directly below a node, except contexts and operators, which are leaves."""
    return _below(node, _fields(cast("Hashable", node.__class__)))


def _below(node: ast.AST, fields: Sequence[str]) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [child for child in value if isinstance(child, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


_LEAVES = frozenset(
    {"ctx", "op", "ops", "id", "attr", "arg", "asname", "module", "level", "type_comment", "conversion"}
)
"""Fields that hold texts and numbers, contexts and operators: no node that anything binds or reads."""


@cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return () if issubclass(kind, ast.Constant) else tuple(name for name in kind._fields if name not in _LEAVES)


@cache
def _header_fields(kind: type[ast.AST]) -> tuple[str, ...]:
    holds_blocks = issubclass(kind, ast.stmt | ast.ExceptHandler | ast.match_case)
    blocks = BLOCKS if holds_blocks else ("body",) if issubclass(kind, ast.Lambda) else ()
    return tuple(name for name in _fields(cast("Hashable", kind)) if name not in blocks)


def blocks(node: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    """Yield the blocks of a compound statement or definition, in the order of the source."""
    for name in BLOCKS:
        inner = getattr(node, name, None)
        if not isinstance(inner, list):
            continue
        if name in {"handlers", "cases"}:
            yield from (each.body for each in inner)
        elif inner:
            yield inner


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield every statement of a scope, with those of its blocks and without those of its definitions."""
    for stmt in body:
        yield stmt
        if not isinstance(stmt, Definition):
            for inner in blocks(stmt):
                yield from statements(inner)


def _join(*states: Bits | None) -> Bits | None:
    live = [state for state in states if state is not None]
    return reduce(or_, live) if live else None


@dataclass
class _Loop:
    breaks: list[Bits] = field(default_factory=list)
    continues: list[Bits] = field(default_factory=list)


class _Walker:
    def __init__(self) -> None:
        self.before: dict[ast.AST, Bits] = {}
        self.bits: dict[str, Bits] = {}
        self._bound: dict[ast.stmt, Bits] = {}  # by each statement: a loop is walked until nothing changes
        self._loops: list[_Loop] = []
        self._tries: list[Bits] = []  # for each `try`: the names that may be bound when its body raises

    def mask(self, names: Iterable[str]) -> Bits:
        return reduce(or_, (self.bits.setdefault(name, 1 << len(self.bits)) for name in names), 0)

    def block(self, body: Sequence[ast.stmt], live: Bits | None) -> Bits | None:
        for stmt in body:
            if live is None:
                return None
            self._reach(stmt, live)
            live = self._statement(stmt, live)
            self._may_raise_with(live or 0)
        return live

    def _reach(self, node: ast.AST, live: Bits) -> None:
        self.before[node] = self.before.get(node, 0) | live

    def _may_raise_with(self, live: Bits) -> None:
        self._tries = [bound | live for bound in self._tries]

    def _bound_by(self, stmt: ast.stmt) -> Bits:
        if stmt not in self._bound:
            self._bound[stmt] = self.mask(bound_by(stmt))
        return self._bound[stmt]

    def _statement(self, stmt: ast.stmt, live: Bits) -> Bits | None:
        live |= self._bound_by(stmt)
        self._may_raise_with(live)
        match stmt:
            case ast.Return() | ast.Raise():
                return None
            case ast.Break() | ast.Continue():
                if self._loops:
                    loop = self._loops[-1]
                    (loop.breaks if isinstance(stmt, ast.Break) else loop.continues).append(live)
                return None
            case ast.Delete(targets=targets):
                return live & ~self.mask(target.id for target in targets if isinstance(target, ast.Name))
            case ast.If(test=test, body=body, orelse=orelse):
                known = truth(test)
                taken = self.block(body, None if known is False else live)
                other = self.block(orelse, None if known is True else live)
                return _join(taken, other)
            case ast.While() | ast.For() | ast.AsyncFor():
                return self._loop(stmt, live)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                self._tries.append(live)
                end = self.block(body, live)
                raised = self._tries.pop()
                return _join(end, raised) if any(map(_suppresses, items)) else end
            case ast.Try() | ast.TryStar():
                return self._try(stmt, live)
            case ast.Match(cases=cases):
                return self._match(cases, live)
        return live

    def _loop(self, stmt: ast.While | ast.For | ast.AsyncFor, live: Bits) -> Bits | None:
        known = truth(stmt.test) if isinstance(stmt, ast.While) else None
        start: Bits = live
        while True:
            self._loops.append(loop := _Loop())
            end = self.block(stmt.body, None if known is False else start)
            self._loops.pop()
            again = _join(start, end, *loop.continues) or 0
            if again == start:
                break
            start = again
        over = self.block(stmt.orelse, None if known is True else start)
        return _join(over, *loop.breaks)

    def _try(self, stmt: Try, live: Bits) -> Bits | None:
        left = [(way, len(way)) for loop in self._loops[-1:] for way in (loop.breaks, loop.continues)]
        self._tries.append(live)
        end = self.block(stmt.orelse, self.block(stmt.body, live))
        raised = self._tries.pop()
        self._tries.append(raised)
        ends = [end]
        for handler in stmt.handlers:
            alias = self.mask([handler.name] if handler.name else [])  # Python unbinds it behind the handler
            self._reach(handler, raised)
            out = self.block(handler.body, raised | alias)
            ends.append(None if out is None else out & ~alias)
        anywhere = self._tries.pop()
        merged = _join(*ends)
        if not stmt.finalbody:
            return merged
        final = self.block(stmt.finalbody, anywhere | (merged or 0))
        for way, before in left:  # what leaves the loop from in here runs this block on its way out
            way[before:] = [live | (final or 0) for live in way[before:]]
        return None if merged is None else final

    def _match(self, cases: Sequence[ast.match_case], live: Bits) -> Bits | None:
        ends: list[Bits | None] = []
        for case in cases:
            matched = live | self.mask(bound_by(case))
            self._reach(case, matched)
            ends.append(self.block(case.body, matched))
            if case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
                return _join(*ends)
        return _join(live, *ends)


def _suppresses(item: ast.withitem) -> bool:
    call = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
    return "suppress" in {getattr(call, "id", ""), getattr(call, "attr", "")}
