"""Make the changes of edits in a module's text.

Statements come and go as lines; what changes within a statement changes in libcst's tree of that statement, see
`layout`. All other bytes stay, because nothing touches them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vpatch.core.changes import AFTER, Amendment, Change, Group, Splice
from vpatch.core.parse import Source, first_line
from vpatch.core.syntax import Path, along, within


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
    for piece in sorted([*_spliced(source, changes), *_amended(source, changes)]):
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


def _amended(source: Source, changes: Sequence[Change]) -> Iterator[_Piece]:
    from vpatch.core.layout import amended

    places: dict[Path, list[Amendment]] = defaultdict(list)
    for change in changes:
        if isinstance(change, Amendment):
            places[_first_on_its_line(source, source.carrier(change.path))].append(change)
    for path, amendments in places.items():
        first, last, text = amended(source, along(source.tree, path)[-1], amendments)
        yield _Piece(first - 1, last, 0, text)


def _first_on_its_line(source: Source, path: Path) -> Path:
    """Return the path of the first statement on the line of another."""
    while not source.begins_line(along(source.tree, path)[-1]):
        name, index = path[-1]
        path = (*path[:-1], (name, index - 1)) if index else source.carrier(path[:-1])
    return path
