"""A vLLM on disk, and the seam between what overlays want and what writes it.

    def prepare(seen: Snapshot) -> WritePlan:
        return seen.prepare(engine.plan(seen.read), keep=True)

    plan = prepare(tree.snapshot())  # reads each file once, and decides what to write
    if plan.work:
        plan = plan.commit(prepare)  # locks, reads again, decides anew if something differs, and writes

`write_plan` does it for an installed vLLM, `checkout` for a source checkout, `vpatch.matrix.worker` in memory. Every
function of this package raises `vpatch.errors.Failure`, with all problems, if it cannot read, write or decide.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol, Self

from vpatch.core.marks import marks_in
from vpatch.core.verdict import Changeset
from vpatch.errors import Failure, naming

# A file system stamps two writes within one tick of its clock (10 ms; on FAT 2 s) with the same time.
_TICK = 2_000_000_000


class Loaded(NamedTuple):
    """What a file held, and the signature that it keeps until a program changes it.

    The signature is None if the file changed just before it was read: one more change might not show.
    """

    content: bytes
    signature: tuple[int, ...] | None

    def is_in(self, file: int) -> bool:
        """Whether an open file still has the content; the file is read only if the signature differs or is missing."""
        of = os.fstat(file)
        if self.signature == _signature(of) or of.st_size != len(self.content):
            return of.st_size == len(self.content)
        with os.fdopen(os.dup(file), "rb") as stream:
            return stream.read() == self.content


def _signature(of: os.stat_result) -> tuple[int, ...]:
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns


@dataclass(frozen=True)
class Tree:
    """A folder that holds `vllm/`, and what is known of the release in it."""

    root: Path  # absolute and resolved
    dist_info: str | None  # the name of the release's `*.dist-info` folder below `root`
    version: str | None  # for people only: no decision depends on it

    @property
    def record(self) -> str:
        """The path of RECORD, relative to `root`."""
        return f"{self.dist_info}/RECORD"

    def read(self, path: str) -> bytes | None:
        """Read `path` (POSIX, relative to `root`); return None if there is no such file."""
        loaded = self.load(path)
        return None if loaded is None else loaded.content

    def load(self, path: str) -> Loaded | None:
        """Read `path` as `read` does, with its signature."""
        with naming("cannot read", path):
            try:
                with (self.root / PurePosixPath(path)).open("rb") as file:
                    of = os.fstat(file.fileno())
                    old = time.time_ns() - max(of.st_mtime_ns, of.st_ctime_ns) > _TICK
                    return Loaded(file.read(), _signature(of) if old else None)
            except (FileNotFoundError, NotADirectoryError):
                return None


class _Readable(Protocol):
    @property
    def root(self) -> Path: ...

    @property
    def version(self) -> str | None: ...

    def read(self, path: str) -> bytes | None: ...


class Snapshot(ABC):
    """One vLLM that overlays can be applied to, as one run reads it: what was read is remembered until `refresh`."""

    @property
    @abstractmethod
    def tree(self) -> _Readable:
        """The tree, which remembers nothing."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Begin another run."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Read a file; return None if it does not exist."""

    @property
    @abstractmethod
    def originals(self) -> Mapping[str, bytes | None]:
        """The pristine bytes of every file that vpatch changed; None for a file that it added."""

    @abstractmethod
    def decide(self, desired: Mapping[str, bytes], note: object, *, on_edits: bool) -> Writes:
        """Decide what to write so that the tree is as `desired`. Nothing is written and no lock is taken.

        Args:
            desired: the exact bytes of every file that overlays change or add, on disk already or not. Every other
                file that vpatch changed goes back to what it was.
            note: JSON-able, kept beside the tree for people.
            on_edits: `desired` was computed from the files as they are. Without it, a user's edit is a problem.
        """

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """Keep other runs of vpatch away during the block."""

    @abstractmethod
    def refresh(self) -> bool:
        """Read again everything that was read; return whether something differs."""

    def prepare(self, changeset: Changeset, *, keep: bool) -> WritePlan:
        """Decide what to write for a changeset; one with problems changes nothing.

        With `keep`, what earlier runs changed stays, and so do users' edits; else it goes back to what it was.
        """
        if changeset.problems:
            return WritePlan(self, changeset)
        desired = changeset.files
        if keep:
            present = {file: (self.read(file), original) for file, original in self.originals.items()}
            kept = {file: now for file, (now, original) in present.items() if now is not None and now != original}
            desired = {**kept, **changeset.files}
        try:
            return WritePlan(self, changeset, self.decide(desired, _note(desired), on_edits=keep))
        except Failure as failure:
            return WritePlan(self, changeset, failure=failure)


class DiskSnapshot(Snapshot):
    """A snapshot of a tree on disk."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.loaded: dict[str, Loaded | None] = {}

    @property
    def tree(self) -> Tree:
        """The tree on disk."""
        return self._tree

    def snapshot(self) -> Self:
        """Begin another run."""
        return type(self)(self._tree)

    def read(self, path: str) -> bytes | None:
        """Read a file; return None if it does not exist."""
        if path not in self.loaded:
            self.loaded[path] = self.tree.load(path)
        loaded = self.loaded[path]
        return None if loaded is None else loaded.content

    def refresh(self) -> bool:
        """Read every file again; return whether the content of one differs."""
        before = {path: self.read(path) for path in self.loaded}
        self.loaded.clear()
        return before != {path: self.read(path) for path in before}


@dataclass(frozen=True)
class Writes:
    """What a run writes: the paths, sorted, whether there is anything to do at all, and the function that does it."""

    changed: tuple[str, ...] = ()
    work: bool = False
    carry_out: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class WritePlan:
    """A changeset, and what has to be written for it, or why it cannot be."""

    snapshot: Snapshot
    changeset: Changeset
    writes: Writes = Writes()
    failure: Failure | None = None

    @property
    def work(self) -> bool:
        """Whether `commit` has anything to do."""
        return self.failure is not None or self.writes.work

    def commit(self, prepare: Callable[[Snapshot], WritePlan]) -> WritePlan:
        """Write under the lock, and return the plan that was carried out.

        If the tree differs from the snapshot by then, `prepare` decides anew. After a failure, the tree is as it was,
        unless the failure says that the next run completes it.
        """
        with self.snapshot.lock():
            plan = prepare(self.snapshot) if self.snapshot.refresh() else self
            if plan.failure is not None:
                raise plan.failure
            if plan.writes.work:
                plan.writes.carry_out()
        return plan


def _note(desired: Mapping[str, bytes]) -> list[dict[str, object]]:
    """List which overlays are in which files."""
    marks = {file: set(marks_in(data)) for file, data in desired.items()}
    overlays = sorted(set().union(*marks.values()))
    return [{"id": name, "files": sorted(f for f, names in marks.items() if name in names)} for name in overlays]
