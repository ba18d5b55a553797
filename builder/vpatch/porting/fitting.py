"""Whether a line diff fits a text, and the text after it.

A hunk fits if all of its lines are there, exactly. They may stand elsewhere, if there is only one such place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vpatch.porting.diffs import LineChange, LineHunk


class Misfit(ValueError):
    """A diff that does not fit a text; the message is one sentence with the hunk and the first line that differs."""


@dataclass(frozen=True)
class Fitting:
    """How well a diff fits a text.

    Attributes:
        hunks: how many hunks it has.
        fitting: how many of them fit.
        offset: by how many lines the fitting ones are off, in sum.
    """

    hunks: int
    fitting: int
    offset: int


def patched(change: LineChange, before: str | None) -> str:
    """Return the text of a module after a change.

    If all lines of `before` end with CRLF, so do those of the result, and the diff may have either.

    Args:
        change: what a patch does to the module.
        before: the module; None if it does not exist.

    Raises:
        Misfit: a hunk does not fit.
    """
    if before is None and not change.new:
        raise Misfit(f"{change.path} does not exist")
    text = _read(before or "", change)
    try:
        after, offset = _after(change, text)
    except Misfit:
        if _reversed_offset(change, text) is not None:
            raise _done(change) from None
        raise
    # Where code repeats, a change can fit a second time beside the first.
    if offset and _reversed_offset(change, text) == 0:
        raise _done(change)
    return after if text == (before or "") else after.replace("\n", "\r\n")


def fit(change: LineChange, before: str | None) -> Fitting:
    """Return how well a change fits a module; None is a module that does not exist."""
    if before is None and not change.new:
        return Fitting(len(change.hunks), 0, 0)
    lines, fitting, offset = _lines(_read(before or "", change)), 0, 0
    for hunks in change.passes:
        places = [(hunk, at) for _, hunk, at in _places(lines, hunks) if at is not None]
        fitting += len(places)
        offset += sum(_offset(hunk, at) for hunk, at in places)
        lines = _replaced(lines, places)
    return Fitting(len(change.hunks), fitting, offset)


def _read(text: str, change: LineChange) -> str:
    """Return a text with the line ends of the hunks, if it has CRLF alone and they have LF."""
    crlf = 0 < text.count("\n") == text.count("\r\n")
    other = any(line.endswith("\r\n") for hunk in change.hunks for line in (*hunk.old, *hunk.new))
    return text.replace("\r\n", "\n") if crlf and not other else text


def _lines(text: str) -> list[str]:
    """Split a text at line feeds alone, as diffs do."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _after(change: LineChange, text: str) -> tuple[str, int]:
    """Return the text after a change, and by how many lines its hunks are off, in sum; raises `Misfit`."""
    lines, number, offset, total = _lines(text), 0, 0, len(change.hunks)
    for hunks in change.passes:
        places = []
        for begin, hunk, at in _places(lines, hunks):
            number += 1
            if at is None:
                where = f"{change.path}: hunk {number} of {total}, `{hunk.header}`, does not fit"
                raise Misfit(f"{where}: {_difference(lines, hunk, begin)}")
            places.append((hunk, at))
            offset += _offset(hunk, at)
        lines = _replaced(lines, places)
    return "".join(lines), offset


def _done(change: LineChange) -> Misfit:
    return Misfit(f"{change.path} has the change already, or the diff is reversed")


def _reversed_offset(change: LineChange, text: str) -> int | None:
    """Return by how many lines the hunks are off if the change is made backwards, None if it does not fit so."""
    passes = []
    for hunks in reversed(change.passes):
        # A hunk is now where the hunks before it have moved it.
        moved, turned = 0, list[LineHunk]()
        for hunk in hunks:
            start = hunk.start + moved if hunk.old else 1
            turned.append(replace(hunk, start=start if hunk.new else 0, old=hunk.new, new=hunk.old))
            moved += len(hunk.new) - len(hunk.old)
        passes.append(tuple(turned))
    try:
        before, offset = _after(replace(change, passes=tuple(passes)), text)
    except Misfit:
        return None
    return offset if change.hunks and not (change.new and before) else None


def _offset(hunk: LineHunk, at: int) -> int:
    return abs(at - max(hunk.start - 1, 0))


def _places(lines: Sequence[str], hunks: Sequence[LineHunk]) -> Iterator[tuple[int, LineHunk, int | None]]:
    """Yield for each hunk where the one before ends, itself, and its place among the lines; None if it has none."""
    begin = moved = 0
    for hunk in hunks:
        found = _found(lines, hunk, begin, moved)
        at = found[0] if len(found) == 1 else None
        yield begin, hunk, at
        if at is not None:
            begin, moved = at + len(hunk.old), at - max(hunk.start - 1, 0)


def _found(lines: Sequence[str], hunk: LineHunk, begin: int, moved: int) -> list[int]:
    """Return the places of a hunk from `begin` on: the one that its header says, as the hunk before moved, or all."""
    if not hunk.old:
        return [] if lines else [0]
    old, size = list(hunk.old), len(hunk.old)
    said = hunk.start - 1 + moved
    if said >= begin and lines[said : said + size] == old:
        return [said]
    starts = range(begin, len(lines) - size + 1)
    return [at for at in starts if lines[at] == old[0] and lines[at : at + size] == old]


def _replaced(lines: Sequence[str], places: Sequence[tuple[LineHunk, int]]) -> list[str]:
    after, done = list[str](), 0
    for hunk, at in places:
        after += [*lines[done:at], *hunk.new]
        done = at + len(hunk.old)
    return [*after, *lines[done:]]


def _difference(lines: Sequence[str], hunk: LineHunk, begin: int) -> str:
    """Return why a hunk has no place: the first line that differs where most of its lines are."""
    if not hunk.old:
        return "it adds the file, which exists"
    if found := _found(lines, hunk, begin, len(lines)):
        return f"its lines are there {len(found)} times, at lines {', '.join(str(at + 1) for at in found[:5])}"
    said = hunk.start - 1

    def closeness(at: int) -> tuple[int, int]:
        same = sum(line == old for line, old in zip(lines[at : at + len(hunk.old)], hunk.old, strict=False))
        return same, -abs(at - said)

    best = max(range(begin, max(len(lines), begin + 1)), key=closeness)
    number = next(n for n, old in enumerate(hunk.old) if lines[best + n : best + n + 1] != [old])
    wanted, at = _shown(hunk.old[number]), best + number
    return (
        f"line {at + 1} is {_shown(lines[at])}, not {wanted}" if at < len(lines) else f"the file ends before {wanted}"
    )


def _shown(line: str) -> str:
    text = line.removesuffix("\n").replace("\t", "\\t").replace("\r", "\\r")
    shown = f"`{text if len(text) <= 60 else text[:57] + '...'}`"
    return shown if line.endswith("\n") else f"{shown} without a newline"
