"""Replace an expression; add a keyword argument to calls, or a parameter to a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vpatch.core import cst
from vpatch.core.edits import CodeEdit, ModuleEdit, classify, marked, names_read_by, occurs, put_marked
from vpatch.core.marks import carrier
from vpatch.core.parse import Lost, Source
from vpatch.core.select import block, expression, expressions, inside, nearest, scopes
from vpatch.core.syntax import Path, Spot, along, evaluated_steps, same, walk
from vpatch.core.verdict import EditFinding, Found, Landed


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
        old, new = ([s for o in owners for s in expressions(source, o, expression(e))] for e in (self.old, self.new))
        inner = walk(Spot((), expression(self.new)), evaluated_steps)
        if any(same(expression(self.old), spot.node) for spot in inner):
            return [s for s in old if not any(inside(s.path, n.path) for n in new)], new
        return old, [n for n in new if not any(inside(n.path, s.path) for s in old)]

    def _find(self, source: Source, overlay: str) -> EditFinding:
        old, new = self._spots(source)
        ours = [s for s in new if marked(source, carrier(source.module, s.path), overlay)]
        return classify(
            [[s.path] for s in old],
            [[s.path] for s in ours or new],
            frozenset(carrier(source.module, s.path) for s in ours),
            landed=lambda path: Landed(path, reads=names_read_by(self.new), uses=self.uses),
            count=self.count,
            wanted=f"`{self.old}`",
            hint=nearest(source, self._owners(source), expression(self.old)),
        )

    def _make(self, source: Source, overlay: str) -> Source:
        for spot in self._spots(source)[0]:
            parent = along(source.module, spot.path)[-2]
            new = _parenthesized(expression(self.new).deep_clone(), spot.node, parent)
            source = put_marked(source, spot.path, new, overlay)
        return source


def _parenthesized(new: cst.BaseExpression, old: cst.CSTNode, parent: cst.CSTNode) -> cst.BaseExpression:
    """Return `new` with the parentheses of `old`, or with its own if it could fall apart in `parent`."""
    if new.lpar:
        return new
    if old.lpar:  # type: ignore[attr-defined]
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)  # type: ignore[attr-defined]
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
    spots: Sequence[Spot], done: Sequence[Spot], source: Source, overlay: str, landed: Callable[[Path], Landed]
) -> EditFinding:
    regions = tuple(spot.path for spot in spots)
    if not done:
        return EditFinding(Found.BEFORE, regions=regions)
    paths = (carrier(source.module, spot.path) for spot in done)
    ours = frozenset(path for path in paths if marked(source, path, overlay))
    return EditFinding(Found.AFTER, marked=ours, regions=regions, landed=tuple(map(landed, regions)))


@dataclass(frozen=True)
class AddKeyword(CodeEdit):
    """Add the keyword argument `keyword`, written `name=value`, to the calls that match `call` (`...` is free in it).

    It goes behind the other arguments, before any `**mapping`.
    """

    call: str
    keyword: str

    def _argument(self) -> cst.Arg:
        return expression(f"f({self.keyword})").args[0]  # type: ignore[attr-defined,no-any-return]

    def _calls(self, source: Source) -> tuple[list[Spot], list[Spot]]:
        owners = self._owners(source)
        pattern, wanted = expression(self.call), self._argument()

        def given(call: cst.CSTNode) -> list[cst.Arg]:
            args: Sequence[cst.Arg] = call.args  # type: ignore[attr-defined]
            return [a for a in args if a.keyword and wanted.keyword and same(a.keyword, wanted.keyword)]

        def without(call: cst.CSTNode) -> cst.CSTNode:
            own = given(call)
            return call.with_changes(args=[a for a in call.args if a not in own]) if own else call  # type: ignore[attr-defined]

        calls = [spot for owner in owners for spot in expressions(source, owner, pattern, exactly=False, seen=without)]
        done = []
        for spot in calls:
            own = given(spot.node)
            if own and not same(wanted.value, own[0].value):
                raise Lost(f"`{self.call}` already has `{source.text(own[0])}`, line {source.line(spot.path)}")
            done.extend([spot] if own else [])
        if len(calls) != self.count or len(done) not in {0, self.count}:
            times = occurs(len(calls), self.count)
            hint = nearest(source, owners, pattern)
            raise Lost(f"`{self.call}` {times}, with `{self.keyword}` {len(done)} times", hint)
        return calls, done

    def _find(self, source: Source, overlay: str) -> EditFinding:
        value = self.keyword.partition("=")[2]

        def landed(path: Path) -> Landed:
            return Landed(path, reads=names_read_by(value), uses=self.uses)

        return _finding(*self._calls(source), source, overlay, landed)

    def _make(self, source: Source, overlay: str) -> Source:
        for spot in self._calls(source)[0]:
            args = list(spot.node.args)  # type: ignore[attr-defined]
            if args and isinstance(alone := args[0].value, cst.GeneratorExp) and not alone.lpar:
                parentheses = {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
                args = [args[0].with_changes(value=alone.with_changes(**parentheses))]
            index = next((i for i, a in enumerate(args) if a.star == "**"), len(args))
            opening = spot.node.whitespace_before_args  # type: ignore[attr-defined]
            joined = _join(args, index, self._argument().deep_clone(), opening)
            source = put_marked(source, spot.path, spot.node.with_changes(args=joined), overlay)
        return source


@dataclass(frozen=True)
class AddParameter(ModuleEdit):
    """Add `parameter`, written as in a `def`, to the function `scope`, behind the parameter `after`."""

    file: str
    scope: str
    parameter: str
    after: str
    count: int = 1

    def _parameter(self) -> cst.Param:
        return block(f"def f({self.parameter}): ...")[0].params.params[0]  # type: ignore[attr-defined,no-any-return]

    def _functions(self, source: Source) -> tuple[list[Spot], list[Spot]]:
        wanted, done = self._parameter(), []
        owners = scopes(source, self.scope)
        for spot in owners:
            if not isinstance(spot.node, cst.FunctionDef):
                raise Lost("is not a function")
            p = spot.node.params
            known = {param.name.value: param for param in (*p.posonly_params, *p.params, *p.kwonly_params)}
            there = known.get(wanted.name.value)
            if there is None and self.after not in known:
                raise Lost(f"no parameter {self.after!r} to put `{self.parameter}` behind")
            if there is not None and not same(wanted, there):
                raise Lost(f"already has the parameter `{source.text(there)}`")
            done.extend([spot] if there is not None else [])
        if len(owners) != self.count or len(done) not in {0, self.count}:
            raise Lost(f"is defined {len(owners)} times, {self.count} expected; {len(done)} have `{self.parameter}`")
        return owners, done

    def _find(self, source: Source, overlay: str) -> EditFinding:
        return _finding(*self._functions(source), source, overlay, lambda path: Landed(path, header=True))

    def _make(self, source: Source, overlay: str) -> Source:
        for spot in self._functions(source)[0]:
            params = spot.node.params  # type: ignore[attr-defined]
            for kind in ("posonly_params", "params", "kwonly_params"):
                some = getattr(params, kind)
                index = next((i for i, p in enumerate(some, 1) if p.name.value == self.after), None)
                if index is not None:
                    opening = spot.node.whitespace_before_params  # type: ignore[attr-defined]
                    joined = _join(some, index, self._parameter().deep_clone(), opening)
                    params = params.with_changes(**{kind: joined})
                    break
            source = put_marked(source, spot.path, spot.node.with_changes(params=params), overlay)
        return source
