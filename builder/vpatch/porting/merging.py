"""Three-way merges of the lines of a module: what a patch made of its base, and what upstream did since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import TYPE_CHECKING

from vpatch.installation import needing

if TYPE_CHECKING:
    from merge3 import Merge3

_AROUND = 3  # lines, above and below a conflict


@dataclass(frozen=True)
class Conflict:
    """Lines that both sides changed.

    Attributes:
        path: the module.
        line: the number of the first one in the base.
        other: its number in the target.
        rows: these lines, with some around them, side by side: of the base, and of the target; "" is no line.
    """

    path: str
    line: int
    other: int
    rows: tuple[tuple[str, str], ...]


def merging(base: str, one: str, other: str) -> Merge3[str]:
    """Return the merge of the lines of two texts that come from the same one.

    Raises:
        Failure: merge3 is not installed.
    """
    with needing("import", "cannot merge lines"):
        from merge3 import Merge3
    lines = [text.splitlines(keepends=True) for text in (base, one, other)]
    return Merge3(lines[0], lines[1], lines[2])


def merged(path: str, base: str, patched: str, target: str) -> str | Conflict:
    """Return the target with the patch's change; or the first lines that both sides changed.

    Raises:
        Failure: merge3 is not installed.
    """
    merge = merging(base, patched, target)
    for region in merge.merge_regions():
        if region[0] == "conflict":
            _, start, end, _, _, begin, stop = region
            return _conflict(path, (merge.base, start or 0, end or 0), (merge.b, begin, stop))
    return "".join(merge.merge_lines())


def _conflict(path: str, mine: tuple[Sequence[str], int, int], other: tuple[Sequence[str], int, int]) -> Conflict:
    lines, others = (_around(*one) for one in (mine, other))
    rows: list[tuple[str, str]] = []
    for _, a, b, c, d in SequenceMatcher(None, lines, others, autojunk=False).get_opcodes():
        rows += zip_longest(lines[a:b], others[c:d], fillvalue="")
    return Conflict(path, mine[1] + 1, other[1] + 1, tuple(rows))


def _around(lines: Sequence[str], start: int, end: int) -> Sequence[str]:
    return [line.rstrip("\n") for line in lines[max(start - _AROUND, 0) : end + _AROUND]]
