"""What of a changed module is upstream's: the changes that a later release has, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vpatch.porting.merging import merging


def own(before: str, after: str, later: Iterable[tuple[str, str]]) -> tuple[str, tuple[str, ...]]:
    """Return a changed module without the changes that later releases have, too, and a remark on each of these.

    If they have all of them, the module is a copy of theirs on purpose, and all of it is the user's.

    Args:
        before: the module.
        after: the module, changed.
        later: names of later releases, each with the module that it has.
    """
    mine, remarks = after, list[str]()
    for name, text in later:
        lines, left_out = list[str](), list[str]()
        for kind, old, new, number in _regions(before, mine, text):
            lines += old if kind == "same" else new
            if kind == "same":
                where = f"line {number}" if len(new) < 2 else f"lines {number}-{number + len(new) - 1}"
                said = f"{where} of it" if new else f"what is gone at {where}"
                left_out.append(f"left out: {said}, as in vLLM {name}; to keep all, import a diff")
        mine, remarks = "".join(lines), remarks + left_out
    return (after, ()) if mine == before else (mine, tuple(remarks))


def _regions(before: str, mine: str, theirs: str) -> Iterator[tuple[str, Sequence[str], Sequence[str], int]]:
    """Yield regions of a changed module: who changed it, the lines before and after, and the first one's number."""
    merge = merging(before, mine, theirs)
    found: list[Any] = [*merge.find_sync_regions()]
    base = own = other = 0
    for start, end, from_, to, begin, stop in found:
        old, new, new_too = merge.base[base:start], merge.a[own:from_], merge.b[other:begin]
        if old or new:
            yield "same" if new == new_too and new != old else "own", old, new, own + 1
        yield "unchanged", merge.base[start:end], merge.a[from_:to], from_ + 1
        base, own, other = end, to, stop
