"""One engine for each choice of overlays, shared by the tests of a process: what one has parsed, none parses again.

Why sharing hides no bug: an engine is meant to be used for many trees, as `vpatch matrix` does, and what it keeps it
keeps by the bytes it was computed from, so that a test whose tree differs in one byte shares nothing of that file. It
is shared by the identity of the overlays, so that equal overlays with different code have different engines. Its
answers are kept by the bytes of all files that its overlays read, which a test of the engine holds it to. Fresh engines
stay under test wherever a process is started, and in tests that make an `Engine` themselves.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, TypeVar

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine, Read
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import Changeset, Verdict

from tests.releases import FIRST, tree_of

T = TypeVar("T")
Compute = Callable[[Read, Iterable[Catalogued] | None], T]

USERS = ("vpatch.api", "vpatch.run.planning", "vpatch.testing", "vpatch.tree.apply", "vpatch.tree.verify")
"""The modules that make engines."""

ENOUGH = 400
"""Parsed modules, about 1.5 MB each, that a process keeps: first it forgets other engines, then changed trees."""

REMEMBERED = 100
"""Answers that an engine keeps. A changeset has some 200 KB."""


class Remembering(Engine):
    """An engine that gives its answer on the same bytes again without computing it: most of a test's time is that."""

    def __init__(self, overlays: Iterable[Catalogued]) -> None:
        super().__init__(overlays)
        self._answers: dict[object, Any] = {}

    def status(
        self, read: Read, overlays: Iterable[Catalogued] | None = None, beside: Iterable[Catalogued] = ()
    ) -> tuple[Verdict, ...]:
        """Judge a tree."""
        if beside:
            return super().status(read, overlays, beside)
        return self._remembered("verdicts", super().status, read, overlays)

    def plan(
        self, read: Read, overlays: Iterable[Catalogued] | None = None, beside: Iterable[Catalogued] = ()
    ) -> Changeset:
        """Compute the change."""
        if beside:
            return super().plan(read, overlays, beside)
        return self._remembered("changes", super().plan, read, overlays)

    def _remembered(self, kind: str, compute: Compute[T], read: Read, overlays: Iterable[Catalogued] | None) -> T:
        chosen = self.overlays if overlays is None else tuple(overlays)
        read = cache(read)
        contents = sha256()
        for file in self.files:
            data = read(file)
            contents.update(b"\0" if data is None else b"\1" + sha256(data).digest())
        key = (kind, tuple(id(item.overlay) for item in chosen), contents.digest())
        answer: T = self._answers.pop(key) if key in self._answers else compute(read, chosen)
        self._answers[key] = answer
        if len(self._answers) > REMEMBERED:
            del self._answers[next(iter(self._answers))]
        return answer


_engines: dict[object, Engine] = {}


def engine_of(overlays: Iterable[Catalogued], **_: bool) -> Engine:
    """Return the engine of this process for these overlays; it is asked more than once."""
    chosen = tuple(sorted(overlays, key=lambda item: item.id))
    # Its engine keeps an overlay alive, so that no other object gets the same identity.
    key = tuple((item.id, id(item.overlay)) for item in chosen)
    _engines[key] = engine = _engines.pop(key, None) or Remembering(chosen)
    return engine


def over(changes: Mapping[str, bytes], read: Read) -> Read:
    """Return the reader of a tree with some files changed."""
    return lambda file: changes[file] if file in changes else read(file)


def together(read: Read, *steps: Sequence[str]) -> Mapping[str, bytes]:
    """Return the files that change when each step's overlays are applied at once, one step after the other."""
    changes: dict[str, bytes] = {}
    for step in steps:
        changeset = engine_of(discover()).plan(over(changes, read), select(discover(), step))
        assert not changeset.problems
        assert changeset.files
        changes |= changeset.files
    return changes


def _parsed(engine: Engine) -> int:
    return len(engine._cache._known) if "_cache" in vars(engine) else 0


@cache
def _pristine() -> frozenset[bytes]:
    """Return the bytes of the files that overlays read, in the releases of the first tier."""
    paths = (tree_of(version) / file for version in FIRST for file in engine_of(discover()).files)
    return frozenset(path.read_bytes() for path in paths if path.is_file())


def forget() -> None:
    """Bound the memory of the shared engines."""
    while sum(map(_parsed, _engines.values())) > ENOUGH and len(_engines) > 1:
        del _engines[next(iter(_engines))]  # the one that was not used for longest
    for engine in tuple(_engines.values()):  # `_pristine` uses one, and so moves it to the end
        if _parsed(engine) > ENOUGH:
            engine.forget(_pristine())


@pytest.fixture(scope="session", autouse=True)
def _shared() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in USERS:
            patch.setattr(f"{name}.Engine", engine_of)
        gc.set_threshold(100_000, 50, 1000)  # a full collection visits each node of the parsed modules
        yield
        gc.freeze()


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    yield
    forget()
