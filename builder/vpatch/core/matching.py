"""Match code with a pattern, as syntax: layout, comments, quotes and redundant parentheses never count."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from vpatch.core.syntax import BLOCKS, DEFINITIONS, significant

META = "_vpatch_meta_"
"""What `$NAME` of a hunk becomes before Python parses it."""
Pieces: TypeAlias = Mapping[str, ast.AST | list[Any] | str | None]
"""Pieces of the header of a definition, by a name such as "-> " or "argument x"."""


def is_hole(node: object) -> bool:
    """Whether a node of a pattern is `...`, as a statement or as an entry of a list."""
    if isinstance(node, ast.Expr):
        node = node.value
        if isinstance(node, ast.Tuple) and len(node.elts) == 1:  # with a comma behind it
            (node,) = node.elts
    elif isinstance(node, ast.keyword) and node.arg is None:  # `**...` behind a keyword
        node = node.value
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _never(_: ast.stmt) -> bool:
    return False


@dataclass
class Matcher:
    """Matches patterns, and remembers what their nodes and metavariables stand for.

    Keywords of a call match by name, in any order. In a block, among arguments and in a list, tuple, set or dict, `...`
    is any run. A `$NAME` is one expression, the same one throughout.

    Attributes:
        holes: whether `...` means anything.
        anywhere: whether `...` also stands for one expression in all other places.
        clear: which statements a block may have between those of the pattern.
        pieces: what the headers of definitions must have, by the `id` of the pattern's node; None compares them whole.
        bound: the node that each node of the pattern matches, by its `id`, and the code of each metavariable.
    """

    holes: bool = True
    anywhere: bool = False
    clear: Callable[[ast.stmt], bool] = _never
    pieces: Mapping[int, Pieces] | None = None
    bound: dict[object, Any] = field(default_factory=dict)
    _trail: list[object] = field(default_factory=list)

    def match(self, pattern: Any, found: Any) -> bool:
        """Match a node; what a failed attempt bound is forgotten."""
        return self._or_undo(len(self._trail), self._fit(pattern, found))

    def fits(self, pattern: Any, found: Any) -> bool:
        """Whether a node matches; nothing is remembered."""
        mark = len(self._trail)
        holds = self.match(pattern, found)
        self._or_undo(mark, False)  # noqa: FBT003 - forget
        return holds

    def match_rows(
        self, rows: Sequence[ast.stmt], found: Sequence[ast.stmt], start: int, *, whole: bool = False
    ) -> bool:
        """Match statements from `found[start]` on; in a `whole` block nothing else may stand behind them."""
        return self._or_undo(len(self._trail), self._rows(rows, found, start, whole=whole))

    def _or_undo(self, mark: int, holds: bool) -> bool:  # noqa: FBT001 - what to return
        if not holds:
            for key in self._trail[mark:]:
                del self.bound[key]
            del self._trail[mark:]
        return holds

    def _bind(self, key: object, node: Any) -> bool:
        if key not in self.bound:
            self.bound[key] = node
            self._trail.append(key)
        return True

    def _fit(self, p: Any, f: Any) -> bool:
        kind: Any = type(p)
        if kind is list:
            return type(f) is list and (self._rows(p, f, 0, whole=True) if _is_block(p, f) else self._run(p, f))
        if not issubclass(type(p), ast.AST):
            return kind is type(f) and bool(p == f)
        if kind is ast.Name and p.id.startswith(META):
            return self._fit_variable(p, f)
        if self.anywhere and isinstance(f, ast.expr) and is_hole(p):
            return True
        if kind is not type(f):
            return False
        if kind is ast.Call:
            fits = self._fit(p.func, f.func) and self._arguments(p, f)
        elif kind is ast.Dict:
            one, other = ([*zip(node.keys, node.values, strict=True)] for node in (p, f))
            fits = self._run(one, other)
        elif kind is ast.Subscript and type(p.slice) is type(f.slice) is ast.Tuple:  # no run: `...` is an index
            mine, theirs = p.slice.elts, f.slice.elts
            fits = self._fit(p.value, f.value) and len(mine) == len(theirs) and all(map(self._fit, mine, theirs))
        elif self.pieces is not None and issubclass(kind, DEFINITIONS):
            fits = p.name == f.name and self._has_pieces(p, f) and self._fit(p.body, f.body)
        else:
            fits = all(self._fit(getattr(p, name), getattr(f, name)) for name in significant(kind))
        return fits and self._bind_node(p, f)

    def _fit_variable(self, p: ast.Name, f: Any) -> bool:
        if not isinstance(f, ast.expr):
            return False
        known = self.bound.get(p.id)
        fits = same(known, f) if known is not None else self._bind(p.id, f)
        return fits and self._bind_node(p, f)

    def _bind_node(self, p: ast.AST, f: Any) -> bool:
        return self.pieces is None or self._bind(id(p), f)

    def _has_pieces(self, p: Any, f: Any) -> bool:
        wanted, there = (self.pieces or {}).get(id(p), {}), pieces_of(f)
        return all(spelled(there.get(key)) == spelled(piece) for key, piece in wanted.items())

    def _arguments(self, p: ast.Call, f: ast.Call) -> bool:
        wanted = [one for one in p.keywords if not (self.holes and is_hole(one))]
        gaps = len(wanted) < len(p.keywords)
        free = gaps or (self.holes and any(map(is_hole, p.args)))
        args = [*p.args, ast.Constant(...)] if gaps else p.args
        if not self._run(args, f.args) or (len(wanted) != len(f.keywords) and not free):
            return False
        return all(any(self._keyword(one, other) for other in f.keywords) for one in wanted)

    def _keyword(self, p: ast.keyword, f: ast.keyword) -> bool:
        fits = p.arg == f.arg and self.match(p.value, f.value)
        return fits and self._bind_node(p, f)

    def _run(self, ps: Sequence[Any], fs: Sequence[Any], i: int = 0, k: int = 0) -> bool:
        """Match the entries of a list from `ps[i]` and `fs[k]` on."""
        for n in range(i, len(ps)):
            one = ps[n]
            if self.holes and is_hole(one[1] if type(one) is tuple and one[0] is None else one):
                return any(self._or_undo(len(self._trail), self._run(ps, fs, n + 1, m)) for m in range(k, len(fs) + 1))
            if k == len(fs) or not (all(map(self._fit, one, fs[k])) if type(one) is tuple else self._fit(one, fs[k])):
                return False
            k += 1
        return k == len(fs)

    def _rows(self, ps: Sequence[ast.stmt], fs: Sequence[ast.stmt], i: int, *, whole: bool) -> bool:
        for n, one in enumerate(ps):
            if self.holes and is_hole(one):
                rest = ps[n + 1 :]
                return any(self.match_rows(rest, fs, k, whole=whole) for k in range(i, len(fs) + 1))
            while i < len(fs) and not self.match(one, fs[i]):
                if not self.clear(fs[i]):
                    return False
                i += 1
            if i == len(fs):
                return False
            i += 1
        return not whole or all(map(self.clear, fs[i:]))


def _is_block(p: list[Any], f: list[Any]) -> bool:
    return isinstance((p or f or [None])[0], ast.stmt)


def same(one: ast.AST, other: ast.AST) -> bool:
    """Whether two pieces of code are the same to Python's parser, but for the order of keywords in calls."""
    return Matcher(holes=False).match(one, other)


def matches(pattern: ast.AST, found: ast.AST) -> bool:
    """Whether `found` matches `pattern`; as in Semgrep, `...` is any expression, run of arguments or of statements."""
    return Matcher(anywhere=True).match(pattern, found)


def matches_run(pattern: Sequence[ast.stmt], found: Sequence[ast.stmt]) -> bool:
    """Whether a block of statements matches; `...` is any run of them."""
    return Matcher(anywhere=True).match_rows(pattern, found, 0, whole=True)


def same_header(pattern: ast.AST, found: ast.AST) -> bool:
    """Whether `found` matches `pattern`, their blocks aside."""
    return type(pattern) is type(found) and all(
        Matcher(anywhere=True).match(getattr(pattern, name), getattr(found, name))
        for name in significant(type(pattern))
        if name not in BLOCKS
    )


def pieces_of(node: Any) -> dict[str, Any]:
    """Return the pieces of the header of a function or class."""
    if isinstance(node, ast.ClassDef):
        return {"@": node.decorator_list, "bases": [*node.bases, *node.keywords]}
    a: ast.arguments = node.args
    positional = [*a.posonlyargs, *a.args]
    defaults = [*[None] * (len(positional) - len(a.defaults)), *a.defaults, *a.kw_defaults]
    found: dict[str, Any] = {"@": node.decorator_list, "->": node.returns, "async": type(node).__name__}
    kinds = (("posonly_params", a.posonlyargs), ("params", a.args), ("kwonly_params", a.kwonlyargs))
    named = [(f"{kind} {argument.arg}", argument) for kind, some in kinds for argument in some]
    found |= {key: [argument, default] for (key, argument), default in zip(named, defaults, strict=True)}
    return found | {key: one for key, one in (("star_arg", a.vararg), ("star_kwarg", a.kwarg)) if one}


def differing_pieces(one: ast.AST, other: ast.AST) -> tuple[str, ...]:
    """Return the names of the pieces in which the headers of two definitions differ."""
    mine, theirs = pieces_of(one), pieces_of(other)
    return tuple(key for key in {**mine, **theirs} if spelled(mine.get(key)) != spelled(theirs.get(key)))


def spelled(value: Any) -> str:
    """Spell a node, or a list of them, so that equal code has one spelling."""
    if isinstance(value, list):
        return f"[{', '.join(map(spelled, value))}]"
    return ast.dump(value) if isinstance(value, ast.AST) else repr(value)
