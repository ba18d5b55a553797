"""Make the changes of edits in a module's text.

Statements come and go as lines; what changes within a statement changes in libcst's tree of that statement, see
`layout`. All other bytes stay, because nothing touches them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from vpatch.core.parse import Source, first_line
from vpatch.core.syntax import Path, Spot, along, within

AFTER = (1,)
"""The rank of what comes right behind the statement before."""
BEFORE = (2,)
"""The rank of what comes right before the statement behind."""


@dataclass(frozen=True)
class Splice:
    """Statements of a block go, and code comes in their place, marked.

    Attributes:
        block: the block.
        first: the index of the first statement that goes.
        last: the index of the statement behind the last one that goes. If it is `first`, none goes.
        new: the code that comes; "" leaves the mark alone.
        overlay: whose mark the code gets.
        rank: orders what comes at the same place; of equal rank `AFTER`, the last one comes first. With a rank, equal
            code comes once, with the marks of all.
        above: how many empty lines stand above it.
        under: the header, without colon, of a statement to put it in, which comes with it.
    """

    block: Spot
    first: int
    last: int
    new: str
    overlay: str
    rank: tuple[Any, ...] = ()
    above: int = 0
    under: str = ""


@dataclass(frozen=True)
class Revision:
    """A node within a statement or its header changes, and the statement gets the mark.

    `change` gets libcst's node and the one that holds it, and returns the new one; None leaves the node.
    """

    path: Path
    overlay: str
    change: Callable[[Any, Any], Any] | None = None


Change: TypeAlias = Splice | Revision
Group: TypeAlias = dict[Splice, list[str]]
"""What comes at one place, in order, each with the overlays that add it."""


@dataclass(frozen=True, order=True)
class _Piece:
    """New text for some lines, which are counted from 0; at one line, what belongs to the inner block comes first."""

    first: int
    last: int  # behind the last line that goes
    outer: int
    text: str


def rewritten(source: Source, changes: Sequence[Change]) -> bytes:
    """Make changes in a module, and return its bytes.

    Raises:
        RuntimeError: two changes overlap.
        UnicodeEncodeError: the module's encoding lacks a character of the new code.
    """
    lines, done, text = source.lines, 0, list[str]()
    for piece in sorted([*_spliced(source, changes), *_revised(source, changes)]):
        if piece.first < done:
            raise RuntimeError(f"{source.file}: two edits change line {piece.first + 1}")
        text += [*lines[done : piece.first], piece.text]
        done = piece.last
    text += lines[done:]
    if lines and not lines[-1].endswith("\n"):  # nor does the new text
        ended = (line if line.endswith("\n") or not line else line + source.newline for line in text)
        return "".join(ended).removesuffix(source.newline).encode(source.encoding)
    return "".join(text).encode(source.encoding)


def _spliced(source: Source, changes: Sequence[Change]) -> Iterator[_Piece]:
    from vpatch.core.layout import rendered  # libcst takes a quarter of a second to import

    places: dict[tuple[int, int, Path, str], list[Splice]] = defaultdict(list)
    for change in changes:
        if isinstance(change, Splice):
            places[*_span(source, change), change.block.path, change.block.block].append(change)
    for (first, last, path, _), splices in places.items():
        yield _Piece(first, last, -len(path), "".join(rendered(source, *group) for group in _grouped(splices)))


def _span(source: Source, change: Splice) -> tuple[int, int]:
    """Return the lines that go; what only comes stands above the comments of the statement behind it."""
    here = [spot.node for spot in within(change.block)]
    if change.first < change.last:
        return first_line(here[change.first]) - 1, source.extent(here[change.last - 1])
    gap = source.extent(here[change.first - 1]) if change.first else source.opening(change.block)
    return gap, gap


def _grouped(splices: Sequence[Splice]) -> Iterator[tuple[str, Group]]:
    """Yield what comes at one place in order, by the header that it stands under."""
    groups: dict[str, Group] = {}
    order = {one: number for number, one in enumerate(splices)}
    for one in sorted(order, key=lambda one: (one.under, one.rank, -order[one] if one.rank == AFTER else order[one])):
        alike = replace(one, overlay="") if one.rank else one
        groups.setdefault(one.under, {}).setdefault(alike, []).append(one.overlay)
    yield from groups.items()


def _revised(source: Source, changes: Sequence[Change]) -> Iterator[_Piece]:
    from vpatch.core.layout import revised

    places: dict[Path, list[Revision]] = defaultdict(list)
    for change in changes:
        if isinstance(change, Revision):
            places[_first_on_its_line(source, source.carrier(change.path))].append(change)
    for path, revisions in places.items():
        first, last, text = revised(source, along(source.tree, path)[-1], revisions)
        yield _Piece(first - 1, last, 0, text)


def _first_on_its_line(source: Source, path: Path) -> Path:
    """Return the path of the first statement on the line of another."""
    while not source.begins_line(along(source.tree, path)[-1]):
        name, index = path[-1]
        path = (*path[:-1], (name, index - 1)) if index else source.carrier(path[:-1])
    return path
