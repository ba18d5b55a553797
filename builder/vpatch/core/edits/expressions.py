"""Replace an expression; add a keyword argument to calls, or a parameter to a function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vpatch.core import cst
from vpatch.core.changes import Amendment
from vpatch.core.edits import CodeEdit, ModuleEdit, classify, marked, names_read_by, occurs
from vpatch.core.parse import Lost, Source
from vpatch.core.select import block, expression, expressions, nearest, scopes
from vpatch.core.syntax import Path, Spot, evaluated, inside, matches, same
from vpatch.core.verdict import EditFinding, Found, Landed

if TYPE_CHECKING:
    from vpatch.core.changes import Change


@dataclass(frozen=True)
class ReplaceExpr(CodeEdit):
    """Replace the expression `old`, which must occur `count` times in `scope`, by `new`.

    Layout does not matter. Either may contain the other: you can wrap a call in another. `new` gets parentheses where
    it needs them.
    """

    old: str
    new: str

    def _spots(self, source: Source) -> tuple[list[Spot], list[Spot]]:
        owners = self._owners(source)
        old, new = (
            [spot for owner in owners for spot in expressions(source, owner, expression(code))]
            for code in (self.old, self.new)
        )
        inner = evaluated(Spot((), expression(self.new)))
        if any(same(expression(self.old), spot.node) for spot in inner):
            return [s for s in old if not any(inside(s.path, n.path) for n in new)], new
        return old, [n for n in new if not any(inside(n.path, s.path) for s in old)]

    def _find(self, source: Source, overlay: str) -> EditFinding:
        old, new = self._spots(source)
        ours = [s for s in new if marked(source, s.path, overlay)]
        return classify(
            [[s.path] for s in old],
            [[s.path] for s in ours or new],
            frozenset[int]().union(*(source.mark_of(s.path, overlay) for s in ours)),
            landed=lambda path: Landed(path, reads=names_read_by(self.new), uses=self.uses),
            count=self.count,
            wanted=f"`{self.old}`",
            hint=nearest(source, self._owners(source), self.old),
        )

    def _changes(self, source: Source, overlay: str) -> Iterator[Change]:
        for spot in self._spots(source)[0]:
            yield Amendment(spot.path, overlay, self._replaced)

    def _replaced(self, old: Any, parent: Any) -> Any:
        return _parenthesized(cst.parse_expression(self.new.strip()), old, parent)


def _parenthesized(new: cst.BaseExpression, old: Any, parent: Any) -> cst.BaseExpression:
    """Return `new` with the parentheses of `old`, or with its own if it could fall apart in `parent`."""
    if new.lpar:
        return new
    if old.lpar:
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)
    number = isinstance(new, cst.BaseNumber)  # `1.real` is no expression
    solid = cst.Name | cst.Call | cst.Attribute | cst.Subscript | cst.BaseString | cst.BaseDict | cst.BaseList
    roomy = cst.Arg | cst.Return | cst.Assign | cst.AnnAssign | cst.Expr | cst.If | cst.Element | cst.Param
    tight = cst.Tuple | cst.NamedExpr | cst.Yield | cst.GeneratorExp
    spaced = not isinstance(old, cst.BaseString)  # `return"x"` needs no space
    if spaced and (isinstance(new, solid) or (number and not isinstance(parent, cst.Attribute))):
        return new
    if spaced and isinstance(parent, roomy) and not getattr(parent, "star", "") and not isinstance(new, tight):
        return new
    return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _uncommented(space: cst.ParenthesizedWhitespace) -> cst.ParenthesizedWhitespace:
    return space.with_changes(first_line=cst.TrailingWhitespace(newline=space.first_line.newline), empty_lines=())


def _join(
    old: Sequence[cst.CSTNode], index: int, new: cst.CSTNode, opening: cst.BaseParenthesizableWhitespace
) -> list[cst.CSTNode]:
    """Insert `new` at `index` of a comma-separated list, in the list's layout: on one line, or one item a line.

    Comments stay on their lines, also one behind the last item.
    """
    space = _uncommented(opening) if isinstance(opening, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")
    if index < len(old):
        return [*old[:index], new.with_changes(comma=cst.Comma(whitespace_after=space)), *old[index:]]
    if not old:
        return [new]
    last = old[-1]
    after = "whitespace_after_arg" if isinstance(last, cst.Arg) else "whitespace_after_param"
    comma: cst.Comma | cst.MaybeSentinel = last.comma  # type: ignore[attr-defined]
    closing = comma.whitespace_after if isinstance(comma, cst.Comma) else getattr(last, after)
    if isinstance(closing, cst.ParenthesizedWhitespace):
        laid_out = space if isinstance(space, cst.ParenthesizedWhitespace) else closing
        space = laid_out.with_changes(first_line=closing.first_line, empty_lines=closing.empty_lines)
        closing = _uncommented(closing)
    if isinstance(comma, cst.Comma):
        last = last.with_changes(comma=comma.with_changes(whitespace_after=space))
        return [*old[:-1], last, new.with_changes(comma=comma.with_changes(whitespace_after=closing))]
    last = last.with_changes(comma=cst.Comma(whitespace_after=space), **{after: cst.SimpleWhitespace("")})
    return [*old[:-1], last, new.with_changes(**{after: closing})]


def _finding(
    source: Source, overlay: str, spots: Sequence[Spot], done: Sequence[Spot], landed: Callable[[Path], Landed]
) -> EditFinding:
    regions = tuple(spot.path for spot in spots)
    if not done:
        return EditFinding(Found.BEFORE, regions=regions)
    ours = frozenset[int]().union(*(source.mark_of(spot.path, overlay) for spot in done))
    return EditFinding(Found.AFTER, marked=ours, regions=regions, landed=tuple(map(landed, regions)))


@dataclass(frozen=True)
class AddKeyword(CodeEdit):
    """Add the keyword argument `keyword`, written `name=value`, to the calls that match `call` (`...` is free in it).

    It goes behind the other arguments, before any `**mapping`.
    """

    call: str
    keyword: str

    def _calls(self, source: Source) -> tuple[list[Spot], list[Spot]]:
        owners = self._owners(source)
        pattern = expression(self.call)
        (wanted,) = expression(f"f({self.keyword})").keywords  # type: ignore[attr-defined]

        def bare(call: ast.Call) -> ast.Call:
            rest = [one for one in call.keywords if one.arg != wanted.arg]
            return call if len(rest) == len(call.keywords) else ast.Call(call.func, call.args, rest)

        calls: list[Spot] = []
        for spot in (spot for owner in owners for spot in source.expressions(owner).get(ast.Call, ())):
            if not (calls and inside(spot.path, calls[-1].path)) and matches(pattern, bare(spot.node)):
                calls.append(spot)
        done = []
        for spot in calls:
            own = [one for one in spot.node.keywords if one.arg == wanted.arg]
            if own and not same(wanted.value, own[0].value):
                raise Lost(f"`{self.call}` already has `{source.quoted(own[0])}`, line {source.line(spot.path)}")
            done.extend([spot] if own else [])
        if len(calls) != self.count or len(done) not in {0, self.count}:
            times = occurs(len(calls), self.count)
            hint = nearest(source, owners, self.call)
            raise Lost(f"`{self.call}` {times}, with `{self.keyword}` {len(done)} times", hint)
        return calls, done

    def _find(self, source: Source, overlay: str) -> EditFinding:
        value = self.keyword.partition("=")[2]

        def landed(path: Path) -> Landed:
            return Landed(path, reads=names_read_by(value), uses=self.uses)

        return _finding(source, overlay, *self._calls(source), landed)

    def _changes(self, source: Source, overlay: str) -> Iterator[Change]:
        for spot in self._calls(source)[0]:
            yield Amendment(spot.path, overlay, self._with_keyword)

    def _with_keyword(self, call: Any, _: object) -> Any:
        args = list(call.args)
        if args and isinstance(alone := args[0].value, cst.GeneratorExp) and not alone.lpar:
            parentheses = {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
            args = [args[0].with_changes(value=alone.with_changes(**parentheses))]
        index = next((i for i, a in enumerate(args) if a.star == "**"), len(args))
        new = cst.parse_expression(f"f({self.keyword})").args[0]  # type: ignore[attr-defined]
        return call.with_changes(args=_join(args, index, new, call.whitespace_before_args))


@dataclass(frozen=True)
class AddParameter(ModuleEdit):
    """Add `parameter`, written as in a `def`, to the function `scope`, behind the parameter `after`."""

    file: str
    scope: str
    parameter: str
    after: str
    count: int = 1

    def _functions(self, source: Source) -> tuple[list[Spot], list[Spot]]:
        done = []
        wanted, _ = _parameters(block(f"def f({self.parameter}): ...")[0])[0]
        owners = scopes(source, self.scope)
        for spot in owners:
            if not isinstance(spot.node, ast.FunctionDef | ast.AsyncFunctionDef):
                raise Lost("is not a function")
            known = {arg.arg: (arg, default) for arg, default in _parameters(spot.node)}
            there = known.get(wanted.arg)
            if there is None and self.after not in known:
                raise Lost(f"no parameter {self.after!r} to put `{self.parameter}` behind")
            if there is not None and _spelled(*there) != _spelled(
                *_parameters(block(f"def f({self.parameter}): ...")[0])[0]
            ):
                text = " = ".join(source.quoted(one) for one in there if one)
                raise Lost(f"already has the parameter `{text}`")
            done.extend([spot] if there is not None else [])
        if len(owners) != self.count or len(done) not in {0, self.count}:
            raise Lost(f"is defined {len(owners)} times, {self.count} expected; {len(done)} have `{self.parameter}`")
        return owners, done

    def _find(self, source: Source, overlay: str) -> EditFinding:
        return _finding(source, overlay, *self._functions(source), lambda path: Landed(path, header=True))

    def _changes(self, source: Source, overlay: str) -> Iterator[Change]:
        for spot in self._functions(source)[0]:
            yield Amendment(spot.path, overlay, self._with_parameter)

    def _with_parameter(self, function: Any, _: object) -> Any:
        new = cst.parse_statement(f"def f({self.parameter}): ...").params.params[0]  # type: ignore[union-attr]
        for kind in ("posonly_params", "params", "kwonly_params"):
            some = getattr(function.params, kind)
            index = next((i for i, p in enumerate(some, 1) if p.name.value == self.after), None)
            if index is not None:
                joined = _join(some, index, new, function.whitespace_before_params)
                return function.with_changes(params=function.params.with_changes(**{kind: joined}))
        raise LookupError(self.after)


def _parameters(function: Any) -> list[tuple[ast.arg, ast.expr | None]]:
    """List the parameters that have a name, `*args` and `**kwargs` aside, each with its default."""
    arguments: ast.arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    return [*zip(positional, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]


def _spelled(parameter: ast.arg, default: ast.expr | None) -> tuple[str, str]:
    return ast.dump(parameter), ast.dump(default) if default else ""
