"""Seeded mutants of the modules that an overlay touches, each with its expected outcome.

Each mutation is made twice: in the pristine file, and at the counterpart of the mutated statement in the patched file.
Comparing the syntax trees of the two files finds the counterparts.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from libcst.metadata import MetadataWrapper, PositionProvider
from vpatch.core import cst
from vpatch.core.overlay import Edit
from vpatch.core.parse import Source
from vpatch.core.syntax import along
from vpatch.core.verdict import Finding

from tests.overlays.mutations import (
    MUTATE,
    WRAPPERS,
    Place,
    Steps,
    compiles,
    definitions,
    follow,
    header,
    holes,
    mutated,
    pairs,
    places,
    span,
)

KINDS = ("rename", "literal", *MUTATE)


@dataclass(frozen=True)
class Mutant:
    """A mutant of a pristine file, its twin (the patched file with the same mutation), and the expected outcome.

    `fate`: "drifted"; "equal": applying the overlay yields `twin`; "moved": an anchor statement swapped places with its
    neighbor, so that `twin` has the same statements in another order; "leaned": the mutation is in an import that an
    edit found present, so that the edit adds it again; "free": the mutation is in code that `...` of an anchor stands
    for, so that applying the overlay yields `twin` byte for byte.
    """

    kind: str
    file: str
    line: int
    near: bool
    text: str
    twin: str
    fate: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.file}:{self.line}, to be {self.fate}"


@dataclass(frozen=True)
class Region:
    """What one edit matches in a pristine file: a statement, an expression in one, or only its scope.

    `chain` holds the definitions that the scope names, `headers` the blocks nested below them, `free` the nodes that
    `...` of the pattern stands for, with all below them, and `leaned` the names that are imported already.
    """

    stmt: ast.stmt | None
    expr: ast.expr | None
    around: tuple[ast.stmt, ...]
    chain: tuple[ast.stmt, ...]
    headers: tuple[ast.stmt, ...]
    alone: bool
    free: frozenset[ast.AST]
    leaned: frozenset[str]

    def fate(self, kind: str, place: Place, path: Steps) -> str:
        """Return the expected outcome of a mutation, as far as this region is concerned."""
        node, below = place.node, self.expr is None and self.stmt in place.around
        changed = place.block[place.index : place.index + 2] if kind == "reorder" else [follow(node, path)]
        if all(one in self.free for one in changed):
            return "free"
        if isinstance(node, ast.Import | ast.ImportFrom) and self.leaned & {a.asname or a.name for a in node.names}:
            return "leaned"
        if kind in {"rename", "literal"}:
            return "drifted" if below or self._has(node, path) else "equal"
        if kind == "reorder":
            if self.expr is None and self.stmt in place.block[place.index : place.index + 2]:
                return "moved" if self.alone else "drifted"
            return "drifted" if below else "equal"
        if node is self.stmt or node in (*self.around, *self.chain):
            if kind == "duplicate" and node is self.stmt and not self.alone:
                return "undefined"
            if kind == "wrap" and (node in self.chain or (self.expr and node not in self.headers)):
                return "equal"  # a name is found inside any block, an expression at any depth
            return "drifted"
        return "drifted" if below else "equal"

    def _has(self, node: ast.stmt, path: Steps) -> bool:
        if node in self.headers:
            return path[0][0] in {"test", "target", "iter", "items"}
        if node in self.chain and node is not self.stmt:
            return not path
        if node is not self.stmt:
            return False
        at = follow(node, path)
        return self.expr is None or (at is not None and any(inner is at for inner in ast.walk(self.expr)))


def regions(found: Sequence[tuple[Edit, Finding]], source: Source, tree: ast.Module) -> Iterator[Region]:
    """Yield the regions that the edits of a file matched in its pristine form."""
    where = MetadataWrapper(source.module, unsafe_skip_copy=True).resolve(PositionProvider)
    known = {id(place.node): place for place in places(tree.body)}
    for edit, finding in found:
        if edit.file != source.file:
            continue
        names = [n for n in edit.scope.split(".") if n and n not in {"setter", "getter", "deleter"}]
        chain = next((c for c in map(_chain, known.values()) if c and [n.name for n in c] == names), ())  # type: ignore[attr-defined]
        within: tuple[str, ...] = getattr(edit, "within", ())
        lean = (
            frozenset(name.rpartition(".")[2] for name, _ in finding.binds)
            if finding.found is finding.found.AFTER
            else frozenset()
        )
        patterns = ast.parse(str(getattr(edit, "anchor", getattr(edit, "call", "")))).body
        for path in finding.regions or (None,):
            if path is None:
                yield Region(None, None, chain[:-1], chain, (), alone=True, free=frozenset(), leaned=lean)
                continue
            node = along(source.module, path)[-1]
            start, end = where[node].start, where[node].end
            stmt, expr = None, None
            for place in known.values():
                first, last = span(place.node)
                if first < start.line <= last:
                    stmt = place
            assert stmt is not None
            if isinstance(node, cst.BaseExpression):
                expr = next(
                    n
                    for n in ast.walk(stmt.node)
                    if isinstance(n, ast.expr)
                    and (n.lineno, n.col_offset, n.end_lineno, n.end_col_offset)
                    == (start.line, start.column, end.line, end.column)
                )
            else:
                stmt = next(
                    p for p in known.values() if (p.node.lineno, p.node.col_offset) == (start.line, start.column)
                )
            inner = [n for n in stmt.around if n not in chain and not definitions(n)]
            upstream = _without(expr, str(getattr(edit, "keyword", ""))) if expr else stmt.node
            parts = (holes(getattr(one, "value", one) if expr else one, upstream) for one in patterns)
            free = next((part for part in parts if part is not None), [])
            yield Region(
                stmt.node,
                expr,
                stmt.around,
                chain,
                tuple(inner[: len(within)]),
                alone=len(finding.regions) == 1,
                free=frozenset(node for part in free for node in ast.walk(part)),
                leaned=frozenset(),
            )


def _without(expr: ast.expr, keyword: str) -> ast.expr:
    """Return a call without the keyword argument, written `name=value`, that an edit adds; any other as it is."""
    if not isinstance(expr, ast.Call) or not keyword:
        return expr
    left = [one for one in expr.keywords if one.arg != keyword.partition("=")[0]]
    return ast.Call(expr.func, expr.args, left)


def _chain(place: Place) -> tuple[ast.stmt, ...]:
    return tuple(n for n in (*place.around, place.node) if definitions(n)) if definitions(place.node) else ()


class Mutator:
    """Makes the mutants of one file."""

    def __init__(self, source: Source, patched: str, found: Sequence[tuple[Edit, Finding]]) -> None:
        self.file, self.pristine, self.patched = source.file, source.module.code, patched
        old, new = ast.parse(self.pristine), ast.parse(patched)
        self.regions = list(regions(found, source, old))
        self.twins = {id(a): b for a, b in pairs(old.body, new.body)}
        self.new = {id(place.node): place for place in places(new.body)}
        self.old = [place for place in places(old.body) if self._movable(place)]

    def _movable(self, place: Place) -> bool:
        lines = self.pristine.splitlines()
        first, last = span(place.node)
        alone = not lines[place.node.lineno - 1].encode()[: place.node.col_offset].strip(b" @")
        return alone and all(
            span(other)[0] >= last or span(other)[1] <= first for other in place.block if other is not place.node
        )

    def near(self, place: Place) -> bool:
        """Whether a statement is in a function that the overlay edits, or encloses one."""
        return any(chain[-1] in (*place.around, place.node) for r in self.regions if (chain := r.chain))

    def candidates(self) -> Iterator[tuple[str, Place, Steps]]:
        """Yield every possible mutation: its kind, the statement, and the path to a name or literal in it."""
        for place in self.old:
            for kind in MUTATE:
                if kind != "reorder" or place.index + 1 < len(place.block):
                    yield kind, place, ()
            if isinstance(place.node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                yield "rename", place, ()
            for path, node in header(place.node):
                if isinstance(node, ast.Name | ast.arg | ast.Attribute | ast.alias):
                    yield "rename", place, path
                elif isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
                    yield "literal", place, path

    def mutant(self, kind: str, place: Place, path: Steps, how: str) -> Mutant | None:
        """Make one mutant; None if it is not valid Python, changes nothing or has no counterpart."""
        fate = self.fate(kind, place, path)
        text = mutated(self.pristine, kind, place, path, how)
        if fate == "undefined" or text in {None, self.pristine} or not compiles(text):
            return None
        other = ""
        if fate != "drifted":
            twin = self._twin(kind, place)
            counterpart = mutated(self.patched, kind, twin, path, how) if twin else None
            if counterpart is None and fate in {"equal", "free"}:
                return None
            other = counterpart or self.patched
        return Mutant(kind, self.file, place.node.lineno, self.near(place), text, other, fate)

    def _twin(self, kind: str, place: Place) -> Place | None:
        """Return a statement's place in the patched file; to reorder, paired with its neighbor's counterpart."""
        twin = self.twins.get(id(place.node))
        if twin is None or kind != "reorder":
            return self.new[id(twin)] if twin else None
        other = self.twins.get(id(place.block[place.index + 1])) if place.index + 1 < len(place.block) else None
        return Place(twin, [twin, other], 0, ()) if other else None

    def fate(self, kind: str, place: Place, path: Steps) -> str:
        """Return the expected outcome of a mutation."""
        fates = {region.fate(kind, place, path) for region in self.regions}
        return next((fate for fate in ("undefined", "drifted", "moved", "leaned", "free") if fate in fates), "equal")


def mutants(mutator: Mutator, count: int, each: int, seed: int) -> list[Mutant]:
    """Choose mutants: `each` of every kind at every region, then `count` in all, half of them in edited functions."""
    rng = random.Random(seed)  # noqa: S311 - it is to be repeatable
    todo: dict[str, list[tuple[Place, Steps]]] = {kind: [] for kind in KINDS}
    for kind, place, path in mutator.candidates():
        todo[kind].append((place, path))
    made: list[Mutant] = []

    def take(kind: str, wanted: int, fits: Callable[[Place, Steps], bool]) -> None:
        left = []
        for place, path in todo[kind]:
            if wanted > 0 and fits(place, path):
                if mutant := mutator.mutant(kind, place, path, rng.choice(list(WRAPPERS))):
                    made.append(mutant)
                    wanted -= 1
            else:
                left.append((place, path))
        todo[kind] = left

    for kind in KINDS:
        rng.shuffle(todo[kind])
        for region in mutator.regions:
            for fate in ("drifted", "free"):
                take(kind, each, lambda p, path, r=region, kind=kind, fate=fate: r.fate(kind, p, path) == fate)  # type: ignore[misc]
    share = max(count - len(made), 0) // (2 * len(KINDS))
    for kind in KINDS:
        take(kind, share, lambda p, _: mutator.near(p))
        take(kind, share, lambda p, _: not mutator.near(p))
    return made
