"""A hunk, parsed: the statements that stay, go and come, aligned."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from vpatch.core.edits.within import changes
from vpatch.core.matching import META, is_hole
from vpatch.core.syntax import has_block

_TRIVIAL = 4
"""A statement of so many nodes is no evidence, such as `log(x)` or `x = y`: it may stand anywhere."""


@dataclass(frozen=True, eq=False)
class Aligned:
    """A statement, handler or case of a hunk: it stays (both), goes (`old`) or comes (`new`).

    Attributes:
        old: its node before.
        new: its node after.
        code: the code of one that comes, with the comments above it.
        changes: it stays, and something within it or its header changes.
        blocks: of a statement that stays, each of its blocks: the node before that has it, the field, the items. The
            last one may be of handlers and cases whose headers change; it has no node.
    """

    old: Any
    new: Any
    code: str = ""
    changes: bool = False
    blocks: tuple[tuple[Any, str, tuple[Aligned, ...]], ...] = ()

    @property
    def stays(self) -> bool:
        """Whether it is there before and after."""
        return self.old is not None and self.new is not None

    @property
    def free(self) -> bool:
        """Whether it is `...`."""
        return self.old is not None and is_hole(self.old)


_EDGE = Aligned(None, None)


@dataclass(frozen=True, eq=False)
class Hunk:
    """A hunk's code before and after.

    Attributes:
        before: the statements before.
        after: the statements after.
        items: both, aligned.
        top: whether it begins at the edge of its block.
        bottom: whether it ends there.
        was: the lines of the code before, by which its nodes are quoted.
        lines: those of the code after.
        swap: both sides, if each is one expression, which may stand in any statement.
        within: the expression has context lines, so that it changes within.
    """

    before: tuple[ast.stmt, ...]
    after: tuple[ast.stmt, ...]
    items: tuple[Aligned, ...]
    top: bool
    bottom: bool
    was: tuple[str, ...]
    lines: tuple[str, ...]
    swap: tuple[ast.expr, ast.expr] | None = None
    within: bool = False

    @cached_property
    def every(self) -> tuple[Aligned, ...]:
        """All items, those of blocks included."""
        return tuple(_every(self.items))

    @cached_property
    def coming(self) -> tuple[Aligned, ...]:
        """The statements that come and are not trivial."""
        return tuple(item for item in self.every if item.old is None and _size(item.new) > _TRIVIAL)

    @cached_property
    def runs(self) -> tuple[tuple[Aligned, ...], ...]:
        """What goes and comes, by place."""
        blocks = (self.items, *(inner for item in self.every for _, _, inner in item.blocks))
        runs = (run for items in blocks for stays, run in groupby(items, lambda item: item.stays) if not stays)
        return tuple(map(tuple, runs))

    @cached_property
    def deletes(self) -> bool:
        """Whether statements go somewhere and none comes in their place."""
        return any(all(item.new is None for item in run) for run in self.runs)

    @cached_property
    def inserted(self) -> tuple[Aligned, ...]:
        """The statements that come where none goes."""
        return tuple(item for run in self.runs if all(one.old is None for one in run) for item in run)

    @cached_property
    def first(self) -> Any:
        """The node to name in messages: the first that goes, or else the first of the context."""
        if self.swap:
            return self.swap[0]
        went = [item.old for item in self.every if item.new is None]
        return (went or [row for row in self.before if not is_hole(row)] or list(self.after))[0]

    @cached_property
    def imports(self) -> bool:
        """Whether nothing but imports changes."""
        changed = [node for item in self.every if not item.stays for node in (item.old, item.new) if node is not None]
        return bool(changed) and all(isinstance(node, ast.Import | ast.ImportFrom) for node in changed)

    @cached_property
    def telling(self) -> bool:
        """Whether the code after, without marks, shows that the change was made.

        Not if all of it stands in the code before, too, unless two neighbours are there that were none.
        """
        went = {ast.dump(node) for row in self.before for node in ast.walk(row) if isinstance(node, ast.stmt)}
        came = [item for item in self.every if item.old is None]
        changed = [item for item in self.every if item.changes and not _only_loses(item)]
        if changed or any(ast.dump(item.new) not in went for item in came):
            return True
        if all(item.stays for item in self.every):
            return False
        return not came and all(one and not one.free for one in _around(self.items, top=self.top, bottom=self.bottom))

    @cached_property
    def grows(self) -> bool:
        """Whether something comes into an expression: without an entry, many a call looks as if it had gone."""
        return self.swap is not None and any(change.kind != "go" for change in changes(*self.swap))


def _only_loses(item: Aligned) -> bool:
    """Whether only entries go within a statement: without them, many a list looks as if they had gone."""
    return not has_block(item.old) and all(change.kind == "go" for change in changes(item.old, item.new))


def _every(items: Sequence[Aligned]) -> Iterator[Aligned]:
    for item in items:
        yield item
        for _, _, inner in item.blocks:
            yield from _every(inner)


def _around(items: Sequence[Aligned], *, top: bool, bottom: bool) -> Iterator[Aligned | None]:
    """Yield the neighbours of all that goes or comes; None is the open end of a hunk."""
    for k, item in enumerate(items):
        if item.stays:
            for _, _, inner in item.blocks:
                yield from _around(inner, top=True, bottom=True)
            continue
        above = items[k - 1] if k else _EDGE if top else None
        below = items[k + 1] if k + 1 < len(items) else _EDGE if bottom else None
        yield from (one for one in (above, below) if one is None or one is _EDGE or one.stays)


def _size(node: ast.AST) -> int:
    """Count the nodes of a statement, and the names of attributes."""
    found = [one for one in ast.walk(node) if not isinstance(one, ast.expr_context)]
    return len(found) + sum(isinstance(one, ast.Attribute) for one in found)


def shown(text: str) -> str:
    """Spell the metavariables and the gaps in code as the hunk does."""
    return text.replace(META, "$").replace("**...", "...")
