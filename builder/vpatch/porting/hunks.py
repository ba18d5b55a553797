"""Write what changed between two versions of a module as hunks, each between its neighbors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, product
from typing import Any

from vpatch.core.edits.address import hunks
from vpatch.core.edits.imports import GUARD
from vpatch.core.matching import same_header
from vpatch.core.parse import Lost, first_line, header_text
from vpatch.core.select import bound_name, header_node
from vpatch.core.syntax import DEFINITIONS
from vpatch.core.verdict import Found
from vpatch.core.workspace import Workspace
from vpatch.porting.align import Alignment, Branch, Operation, Pairing, Version, branches, code_of
from vpatch.porting.imports import import_hunks, is_movable, ordinary
from vpatch.porting.statements import Rows, edited

_NEIGHBORS = (0, 1, 2, 4, 10_000)
"""How many statements beside a change are tried as its context, until it is found in one place.

Code that comes or goes without a replacement has neighbors on both sides: with fewer, it would be put beside other code
in a release that moved its own.
"""
_TELLING = 12
"""Code that goes is found by itself if it has at least this number of nodes."""


class Unsayable(ValueError):
    """A change that no hunk describes."""


@dataclass(frozen=True)
class Address:
    """A block: the address of a hunk."""

    scope: str = ""
    headers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " / ".join(("@@" if not self.scope else f"@@ {self.scope}", *self.headers))


_GUARDED = Address("", (GUARD,))


def hunks_between(path: str, before: str, after: str) -> tuple[str, tuple[str, ...]]:
    """Return hunks that lead from one version of a module to the other, and notes on what they leave as it was.

    Args:
        path: the module, relative to the folder that holds `vllm/`.
        before: its text before.
        after: its text after.

    Raises:
        Unsayable: no hunk describes a change; the message says where and why.
    """
    writer = _Writer(path, Version(before), Version(after))
    imports, notes = import_hunks(writer.before.tree, writer.after.tree)
    texts = [*imports, *writer.module()]
    return "".join(texts), notes


@dataclass(frozen=True)
class _Writer:
    path: str
    before: Version
    after: Version
    _files: tuple[Workspace, Workspace] = field(init=False)

    def __post_init__(self) -> None:
        files = tuple(Workspace({self.path: one.text.encode()}.get) for one in (self.before, self.after))
        object.__setattr__(self, "_files", files)

    @cached_property
    def _alignment(self) -> Alignment:
        return Alignment(self.before, self.after)

    def module(self) -> Iterator[str]:
        """Yield the hunks of the module."""
        yield from self._block(Address(), ordinary(self.before.tree.body), ordinary(self.after.tree.body))

    def _block(self, place: Address, old: Sequence[Any], new: Sequence[Any]) -> Iterator[str]:
        """Yield the hunks of a block, and of the blocks and definitions in it."""
        if place == _GUARDED:
            old, new = ordinary(old), ordinary(new)
        items = self._alignment.items(old, new)
        moved = [one for run in _runs(items) if self._are_movable(place, run, old, new) for one in run]
        for item in moved:
            yield f"{place}\n{_signed('+', self._coming(item))}"
        items = [one for item in items if item not in moved for one in self._reachable(item)]
        for first, last in _clusters(items):
            yield self._hunk(place, items, first, last)
        for item in items:
            if _is_signature(item):
                yield self._checked(place, [self._header(item)], f"line {first_line(item.old)}")
            if item.kind is Operation.INNER or _is_signature(item):
                yield from self._below(place, item)

    def _are_movable(self, place: Address, run: Sequence[Pairing], old: Sequence[Any], new: Sequence[Any]) -> bool:
        """Whether all of a run of changes are new definitions that may stand at the end of the block."""
        names = [one.name for one in old if isinstance(one, DEFINITIONS)]
        now = [one.name for one in new if isinstance(one, DEFINITIONS)]
        return not place.headers and all(
            isinstance(item.new, DEFINITIONS)
            and item.kind is Operation.CAME
            and item.new.name not in names
            and now.count(item.new.name) == 1
            and is_movable(self.after.tree, item.new)
            for item in run
        )

    def _reachable(self, item: Pairing) -> tuple[Pairing, ...]:
        """Return a pair of definitions that no address names, as two: one goes, one comes."""
        if (
            isinstance(item.old, DEFINITIONS)
            and item.kind in {Operation.INNER, Operation.HEAD}
            and not bound_name(item.old)
        ):
            return Pairing(Operation.WENT, item.old), Pairing(Operation.CAME, None, item.new)
        return (item,)

    def _below(self, place: Address, item: Pairing) -> Iterator[str]:
        """Yield the hunks of the blocks of a statement that stays."""
        mine, theirs = branches(self.before, item.old), branches(self.after, item.new)
        if isinstance(item.old, DEFINITIONS):
            scope = ".".join(filter(None, (place.scope, *bound_name(item.old))))
            yield from self._block(Address(scope), item.old.body, item.new.body)
            return
        first = _header(mine[0], self.before)
        for one, other in zip(mine, theirs, strict=True):
            headers = (first,) if one is mine[0] else (first, _header(one, self.before))
            yield from self._block(Address(place.scope, (*place.headers, *headers)), one.block, other.block)

    def _hunk(self, place: Address, items: Sequence[Pairing], first: int, last: int) -> str:
        """Return the hunk of a run of changes, with as many neighbors as it takes to find it."""
        tried = []
        for count, fine in product(_NEIGHBORS[not _replaces(items[first:last]) :], (True, False)):
            top, bottom = count > first, last + count > len(items)
            rows = self._rows(items[max(0, first - count) : last + count], inline=False, fine=fine)
            tried.append([*([" ^"] if top else []), *rows, *([" ^"] if bottom else [])])
        return self._checked(place, tried, f"line {first_line(items[first].old or items[first].new)}")

    def _checked(self, place: Address, tried: Sequence[Rows], where: str) -> str:
        """Return the first of some hunks that finds the code before in one version, and the code after in the other."""
        cause = ""
        for rows in tried:
            text = f"{place}\n" + "".join(f"{row}\n" for row in rows)
            try:
                (edit,) = hunks(self.path, "", (), text)
                found = [edit.state(files, "vpatch").found for files in self._files]
            except (Lost, ValueError) as error:
                cause = str(error)
                continue
            if found == [Found.BEFORE, Found.AFTER]:
                return text
            cause = "its result is not recognized"
        raise Unsayable(f"{where}: no hunk makes this change: {cause}")

    def _rows(self, items: Sequence[Pairing], *, inline: bool, fine: bool) -> Rows:
        """Return the lines of statements.

        Args:
            items: the statements.
            inline: write what changes in blocks, which else are `...`.
            fine: write lines that stay in a statement that changes as context.
        """
        rows: Rows = []
        for item in items:
            if item.kind is Operation.WENT:
                rows += _lines("-", code_of(self.before, [item.old], item.old.col_offset))
            elif item.kind is Operation.EDIT:
                rows += self._edited(item, fine=fine)
            elif item.kind is Operation.CAME:
                rows += _lines("+", self._coming(item))
            elif (item.kind is Operation.HEAD and not isinstance(item.old, DEFINITIONS)) or (
                inline and item.kind is not Operation.SAME
            ):
                rows += self._compound(item, fine=fine)
            else:
                rows += self._context(item.old)
        return rows

    def _context(self, node: Any) -> Rows:
        """Return the lines of a statement that stays: of a compound one its headers."""
        found = branches(self.before, node)
        if isinstance(node, DEFINITIONS):
            return [f" {_name(node)}", "     ..."]
        if not found:
            return _lines(" ", code_of(self.before, [node], node.col_offset))
        return [row for one in found for row in (*_lines(" ", _head_lines(one, self.before, node)), "     ...")]

    def _header(self, item: Pairing) -> Rows:
        """Return the lines of a definition whose signature, decorators or bases change."""
        old, new = (
            _head_lines(Branch("def", n, n.body), v, n) for v, n in ((self.before, item.old), (self.after, item.new))
        )
        return [*_lines("-", old), *_lines("+", new), "     ..."]

    def _edited(self, item: Pairing, *, fine: bool) -> Rows:
        """Return the lines of a statement within which something changes."""
        was = code_of(self.before, [item.old], item.old.col_offset)
        now = code_of(self.after, [item.new], item.new.col_offset)
        return edited(item.old, was, now) if fine else [*_lines("-", was), *_lines("+", now)]

    def _compound(self, item: Pairing, *, fine: bool) -> Rows:
        """Return the lines of a statement whose headers change, with what changes in its blocks."""
        rows: Rows = []
        mine, theirs = branches(self.before, item.old), branches(self.after, item.new)
        for one, other in zip(mine, theirs, strict=True):
            was, now = _head_lines(one, self.before, item.old), _head_lines(other, self.after, item.new)
            same = one.node is None or same_header(one.node, other.node)
            if isinstance(one.node, DEFINITIONS) and same:
                rows.append(f" {_name(one.node)}")
            else:
                rows += _lines(" ", was) if same else [*_lines("-", was), *_lines("+", now)]
            rows += [f"{row[0]}    {row[1:]}" for row in self._inside(one.block, other.block, fine=fine)]
        return rows

    def _inside(self, old: Sequence[Any], new: Sequence[Any], *, fine: bool) -> Rows:
        """Return the lines of a whole block: what changes, its neighbors, and `...` for the rest."""
        items = self._alignment.items(old, new)
        changed = {k for k, item in enumerate(items) if item.kind is not Operation.SAME}
        shown = {n for k in changed for n in (k - 1, k, k + 1)}
        rows: Rows = []
        for k, item in enumerate(items):
            if k in shown:
                rows += self._rows([item], inline=True, fine=fine)
            elif not rows or rows[-1] != " ...":
                rows.append(" ...")
        return rows or [" ..."]

    def _coming(self, item: Pairing) -> list[str]:
        """Return the lines of a statement that comes, with the comments above it, if those are new."""
        first = begin = first_line(item.new) - 1
        while begin and self.after.lines[begin - 1].lstrip().startswith("#"):
            begin -= 1
        comments = [line.strip() for line in self.after.lines[begin:first]]
        if set(comments) & {line.strip() for line in self.before.lines}:
            comments = []
        return [*comments, *code_of(self.after, [item.new], item.new.col_offset)]


def _runs(items: Sequence[Pairing]) -> list[list[Pairing]]:
    """Return the runs of statements that do not stay."""
    return [list(run) for stays, run in groupby(items, lambda item: item.stays) if not stays]


def _replaces(items: Sequence[Pairing]) -> bool:
    """Whether each run of changes replaces code that says enough by itself to be found without neighbors."""
    for run in _runs(items):
        went = sum(1 for item in run if item.kind is Operation.WENT for _ in ast.walk(item.old))
        came = any(item.kind is Operation.CAME for item in run)
        if not (any(item.kind in {Operation.EDIT, Operation.HEAD} for item in run) or (came and went >= _TELLING)):
            return False
    return True


def _clusters(items: Sequence[Pairing]) -> Iterator[tuple[int, int]]:
    """Yield the runs of changes; two with one neighbor in between are one."""
    changed = [k for k, item in enumerate(items) if not item.stays and not _is_signature(item)]
    run: list[int] = []
    for k in changed:
        if run and k > run[-1] + 2:
            yield run[0], run[-1] + 1
            run = []
        run.append(k)
    if run:
        yield run[0], run[-1] + 1


def _is_signature(item: Pairing) -> bool:
    return item.kind is Operation.HEAD and isinstance(item.old, DEFINITIONS)


def _lines(sign: str, lines: Sequence[str]) -> Rows:
    return [f"{sign}{line}" for line in lines]


def _signed(sign: str, lines: Sequence[str]) -> str:
    return "".join(f"{sign}{line}\n" for line in lines)


def _name(node: Any) -> str:
    """Return the header of a definition that matches by name."""
    word = header_text(node).partition(f" {node.name}")[0]
    return f"{word} {node.name}:" if word == "class" else f"{word} {node.name}():"


def _head_lines(branch: Branch, version: Version, owner: Any) -> list[str]:
    """Return the lines of a header, moved to the left."""
    if branch.node is None:
        return [f"{branch.word}:"]
    lines = list(version.lines[first_line(branch.node) - 1 : first_line(branch.block[0]) - 1])
    while lines[-1].strip()[:1] in {"", "#"}:
        lines.pop()
    return [re.sub(rf"^\s{{,{owner.col_offset}}}", "", line) for line in lines]


def _header(branch: Branch, version: Version) -> str:
    """Return a header as an address spells it: on one line, without its colon."""
    if branch.node is None or branch.word == "try":
        return branch.word
    text = " ".join(line.strip() for line in _head_lines(branch, version, branch.node))
    text = re.sub(r"([(\[{]) | (?=[)\]}])", r"\1", text.partition("  #")[0]).rstrip().removesuffix(":")
    try:
        if same_header(header_node(text), branch.node):
            return text
    except SyntaxError:
        pass
    plain = header_text(branch.node).partition(":\n")[0]
    return f"el{plain}" if branch.word == "elif" else plain
