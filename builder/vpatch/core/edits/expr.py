"""Replace an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.core import cst
from vpatch.core.edits.census import census, marked, names_read_by, put_marked
from vpatch.core.marks import carrier
from vpatch.core.select import expression, expressions, inside, nearest, scopes
from vpatch.core.syntax import Spot, along
from vpatch.core.verdict import Landed

if TYPE_CHECKING:
    from vpatch.core.overlay import Reach
    from vpatch.core.verdict import Finding
    from vpatch.core.workspace import Workspace


@dataclass(frozen=True)
class ReplaceExpr:
    """Put the expression `new` wherever `old` stands in `scope`, which must be `count` times.

    Both are Python source; layout does not matter. Either may contain the other: wrapping a call in another is fine.
    `new` gets parentheses where it needs them. It relies on the attributes `uses`, written `self.name`.
    """

    file: str
    scope: str
    old: str
    new: str
    within: tuple[str, ...] = ()
    count: int = 1
    uses: tuple[str, ...] = ()

    @property
    def reach(self) -> Reach:
        """The scope."""
        return ((self.file, self.scope),)

    def _spots(self, files: Workspace) -> tuple[list[Spot], list[Spot]]:
        owners = scopes(files.source(self.file), self.scope, self.within)
        old, new = ([s for o in owners for s in expressions(o, expression(e))] for e in (self.old, self.new))
        if expressions(Spot((), expression(self.new)), expression(self.old)):
            return [s for s in old if not any(inside(s.path, n.path) for n in new)], new
        return old, [n for n in new if not any(inside(n.path, s.path) for s in old)]

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say whether `old` or `new` stands there."""
        source = files.source(self.file)
        old, new = self._spots(files)
        ours = [s for s in new if marked(source, carrier(source.module, s.path), overlay)]
        return census(
            [[s.path] for s in old],
            [[s.path] for s in ours or new],
            frozenset(carrier(source.module, s.path) for s in ours),
            landed=lambda path: Landed(path, reads=names_read_by(self.new), uses=self.uses),
            count=self.count,
            wanted=f"`{self.old}`",
            hint=nearest(source, scopes(source, self.scope, self.within), expression(self.old)),
        )

    def apply(self, files: Workspace, overlay: str) -> None:
        """Put `new` there and mark the statements."""
        source = files.source(self.file)
        for spot in self._spots(files)[0]:
            parent = along(source.module, spot.path)[-2]
            new = _fitted(expression(self.new).deep_clone(), spot.node, parent)
            source = put_marked(source, spot.path, new, overlay)
        files.put(self.file, source)


def _fitted(new: cst.BaseExpression, old: cst.CSTNode, parent: cst.CSTNode) -> cst.BaseExpression:
    """Give `new` with the parentheses that `old` has, or, where it could fall apart in `parent`, with its own."""
    if new.lpar:
        return new
    if old.lpar:  # type: ignore[attr-defined]
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)  # type: ignore[attr-defined]
    number = isinstance(new, cst.BaseNumber)  # `1.real` is none
    solid = cst.Name | cst.Call | cst.Attribute | cst.Subscript | cst.BaseString | cst.BaseDict | cst.BaseList
    roomy = cst.Arg | cst.Return | cst.Assign | cst.AnnAssign | cst.Expr | cst.If | cst.Element | cst.Param
    tight = cst.Tuple | cst.NamedExpr | cst.Yield | cst.GeneratorExp
    spaced = not isinstance(old, cst.BaseString)  # `return"x"` needs no space
    if spaced and (isinstance(new, solid) or (number and not isinstance(parent, cst.Attribute))):
        return new
    if spaced and isinstance(parent, roomy) and not getattr(parent, "star", "") and not isinstance(new, tight):
        return new
    return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
