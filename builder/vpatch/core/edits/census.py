"""What a count of old and new code says."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence
from functools import cache

from vpatch.core import cst
from vpatch.core.landing.binding import Read, reads
from vpatch.core.marks import carrier, marks_on, with_mark
from vpatch.core.parse import Lost, Source
from vpatch.core.syntax import Path, along
from vpatch.core.verdict import Finding, Found, Landed


def marked(source: Source, path: Path, overlay: str) -> bool:
    """Tell whether the statement at `path` has the overlay's mark."""
    return overlay in marks_on(along(source.module, path)[-1])


@cache
def names_read_by(code: str) -> frozenset[Read]:
    """Collect the names that an expression of an edit reads."""
    return frozenset(reads(ast.parse(code.strip(), mode="eval").body, annotations=True))


def put_marked(source: Source, path: Path, new: cst.CSTNode, overlay: str) -> Source:
    """Put `new` in the place of the node at `path`, and the mark on the statement around it."""
    source = source.put(path, new)
    bearer = carrier(source.module, path)
    return source.put(bearer, with_mark(along(source.module, bearer)[-1], overlay))


def census(
    old: Sequence[Collection[Path]],
    new: Sequence[Collection[Path]],
    ours: frozenset[Path],
    *,
    landed: Callable[[Path], Landed],
    count: int,
    wanted: str,
    hint: Callable[[], str],
) -> Finding:
    """Judge by how often the old and the new code stand there; `ours` are the marked statements of the new.

    `landed` describes the code at one of the paths in `new`.

    A file is written as a whole, so that some of each is never a run of ours that was cut short.

    Raises:
        Lost: neither stands there as often as declared.
    """
    if len(old) == count and not ours:
        return Finding(Found.BEFORE, regions=tuple(path for paths in old for path in paths))
    if not old and len(new) == count:
        regions = tuple(path for paths in new for path in paths)
        return Finding(Found.AFTER, marked=ours, regions=regions, landed=tuple(map(landed, regions)))
    times = "is not there" if not old else f"is there {len(old)} times, {count} expected"
    done = f", what replaces it {len(new)} times" if new else ""
    raise Lost(f"{wanted} {times}{done}", hint)
