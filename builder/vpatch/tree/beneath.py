"""An edit of what overlays made of a module, made on its original instead."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from vpatch.core.marks import marked_by, marks_in, without_marks


@dataclass(frozen=True)
class Touched:
    """A place where an edit changes what overlays inserted, so that the original has nothing to change.

    Attributes:
        line: its number in the edited module.
        overlays: whose code it is, as far as marks show; () if they do not.
    """

    line: int
    overlays: tuple[str, ...]


def beneath(original: bytes, made: bytes, now: bytes) -> tuple[bytes, list[Touched]]:
    """Make the edit that leads from `made` to `now` on the original.

    Args:
        original: the module before vpatch.
        made: what overlays make of it, with marks.
        now: the same once it was edited.

    Returns:
        The edited original, and the edits that cannot be made there; without these it is what the edit means.
    """
    imports = _imports(made, now)
    before, after = original.splitlines(keepends=True), now.splitlines(keepends=True)
    (ours, marked, places), (theirs, _, numbers) = _without(made, imports), _without(now, imports)
    kept = {
        at + k: start + k
        for start, at, size in SequenceMatcher(None, before, ours, autojunk=False).get_matching_blocks()
        for k in range(size)
    }
    kept |= {-1: -1, len(ours): len(before)}  # the beginning and the end are everybody's
    edited, done, touched = list[bytes](), 0, list[Touched]()
    for tag, first, end, start, stop in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        span = _span(kept, first, end)
        if span is None:
            line = numbers[start] if start < len(numbers) else len(after)
            owners = [*_owners(kept, marked, first, end)] or _around(made, places[min(first, len(places) - 1)])
            touched.append(Touched(line, tuple(owners)))
            continue
        edited += [*before[done : span[0]], *theirs[start:stop]]
        done = span[1]
    return b"".join([*edited, *before[done:]]), touched


def _imports(made: bytes, now: bytes) -> Collection[bytes]:
    """Return the lines in both that import for an overlay: where they stand depends on what else is imported."""

    def counted(data: bytes) -> Counter[bytes]:
        lines = (line.strip() for line in data.splitlines() if line.lstrip().startswith((b"import ", b"from ")))
        return Counter(line for line in lines if b"(" not in line and marked_by(line.decode("latin-1")))

    mine, theirs = counted(made), counted(now)
    return {line for line, count in mine.items() if theirs[line] == count}


def _without(data: bytes, lines: Collection[bytes]) -> tuple[list[bytes], list[bytes], list[int]]:
    """Return the lines of a module that are not among some others: without and with marks, and their numbers."""
    pairs = zip(without_marks(data).splitlines(keepends=True), data.splitlines(keepends=True), strict=True)
    found = [(plain, line, at) for at, (plain, line) in enumerate(pairs, 1) if line.strip() not in lines]
    return [one for one, _, _ in found], [one for _, one, _ in found], [one for _, _, one in found]


def _span(kept: Mapping[int, int], first: int, end: int) -> tuple[int, int] | None:
    """Return the lines of the original that some lines of `ours` are; None if there are none, or others between."""
    if first == end:
        before, after = kept.get(first - 1), kept.get(first)
        if before is None or after is None:
            at = after if before is None else before + 1
            return None if at is None else (at, at)
        return (after, after) if after == before + 1 else None
    found = [kept.get(line, -2) for line in range(first, end)]
    return (found[0], found[-1] + 1) if found == [*range(found[0], found[0] + end - first)] and found[0] >= 0 else None


def _owners(kept: Mapping[int, int], marked: Sequence[bytes], first: int, end: int) -> Iterator[str]:
    """Yield the overlays whose marks are on inserted lines that change, or on the nearest one above."""
    texts = [line.decode("latin-1") for line in marked]
    lines = [line for line in range(first, max(end, first + 1)) if line not in kept]
    names = [name for line in lines for name in marked_by(texts[line])]
    above = first - 1
    while not names and above not in kept:  # a statement has its mark on its first line
        names, above = marked_by(texts[above]), above - 1
    yield from dict.fromkeys(names)


def _around(made: bytes, line: int) -> list[str]:
    """Return the overlays whose marks are on the statement that a line is of: it has its mark where a piece changed."""
    try:
        tree = ast.parse(made)
    except (SyntaxError, ValueError):  # a data file
        return []
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    spans = [(node.lineno, node.end_lineno or node.lineno) for node in nodes]
    first, last = max((span for span in spans if span[0] <= line <= span[1]), default=(line, line))
    return [*dict.fromkeys(marks_in(b"\n".join(made.split(b"\n")[first - 1 : last])))]
