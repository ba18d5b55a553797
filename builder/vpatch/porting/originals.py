"""The files of a vLLM as it was installed: by the hashes of its RECORD, or in a folder to which nothing was done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from vpatch.errors import Failure, Problem, failing, naming, raise_all
from vpatch.foreign import read_regular, walk
from vpatch.guest.record import Record, revise
from vpatch.tree import backup, record
from vpatch.tree.locate import Tree

FAILED = "cannot capture"

Fetch = Callable[[Collection[str]], Mapping[str, bytes]]
"""Returns the bytes that a release has at these paths; a path that it lacks is left out."""


class Originals(Protocol):
    """The files of a vLLM as it was installed."""

    @property
    def paths(self) -> Collection[str]:
        """The files, relative to the folder that holds `vllm/`."""

    def size(self, path: str) -> int:
        """Return the size of a file in bytes, -1 if it is not known."""

    def has(self, path: str, content: bytes) -> bool:
        """Whether a file had these bytes."""

    def read(self, paths: Collection[str]) -> Mapping[str, bytes]:
        """Return the bytes of these files.

        Raises:
            Failure: they cannot be read.
        """


@dataclass(frozen=True)
class ByRecord:
    """The files that RECORD lists. Their bytes are fetched when they are needed, and must have RECORD's hashes."""

    record: Record
    fetch: Fetch

    @property
    def paths(self) -> Collection[str]:
        """The files that RECORD lists."""
        return {row.path for row in self.record.rows}

    def size(self, path: str) -> int:
        """Return the size that RECORD has."""
        row = self.record.row(path)
        return int(row.fields[2]) if row and row.fields[2].isdecimal() else -1

    def has(self, path: str, content: bytes) -> bool:
        """Whether the bytes have RECORD's hash."""
        row = self.record.row(path)
        return row is not None and row.is_true_of(content)

    def read(self, paths: Collection[str]) -> Mapping[str, bytes]:
        """Fetch files."""
        found = self.fetch(paths) if paths else {}
        cause = "the release on the package index has other bytes than RECORD lists"
        hint = "fetch the release that this vLLM was built from by `vpatch fetch`, and name its folder by --pristine"
        wrong = [path for path in paths if path not in found or not self.has(path, found[path])]
        raise_all(Problem(FAILED, path, cause, hint=hint) for path in wrong)
        return found


def installed(tree: Tree) -> Record | None:
    """Return the RECORD of a tree as it was before vpatch; None without one.

    Raises:
        Failure: it cannot be parsed.
    """
    if (rows := record.present(tree, tree.read)) is None:
        return None
    kept = backup.read(tree)
    before = rows if kept.record is None else record.parsed(kept.record, tree.record)
    return revise(rows, {path: row for path in kept.paths if (row := before.row(path))}, kept.added)


@dataclass(frozen=True)
class ByFolder:
    """The files of a vLLM in a folder, to which nothing was done.

    `vpatch fetch` writes modules alone. Of other files, RECORD has the hashes.
    """

    tree: Tree

    @cached_property
    def _rows(self) -> Record:
        return record.present(self.tree, self.tree.read) or Record(())

    @cached_property
    def paths(self) -> Collection[str]:
        """The files below `vllm/`, and what RECORD lists beside the modules."""
        return {*files_below(self.tree), *(row.path for row in self._rows.rows if not row.path.endswith(".py"))}

    def size(self, path: str) -> int:
        """Return the size of a file."""
        file = self.tree.root / path
        return file.stat().st_size if file.is_file() else ByRecord(self._rows, self.read).size(path)

    def has(self, path: str, content: bytes) -> bool:
        """Whether a file has these bytes."""
        known = content_of(self.tree, path)
        return ByRecord(self._rows, self.read).has(path, content) if known is None else known == content

    def read(self, paths: Collection[str]) -> Mapping[str, bytes]:
        """Read files."""
        return {path: data for path in paths if (data := content_of(self.tree, path)) is not None}


def content_of(tree: Tree, path: str) -> bytes | None:
    """Return the bytes of a file; None if it does not exist. `Tree.read` takes twice the time."""
    try:
        return read_regular(f"{tree.root}/{path}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Failure(failing("cannot read", path, error)) from error


def files_below(tree: Tree) -> Iterator[str]:
    """Yield the files below `vllm/`, without bytecode. Links to folders are not followed."""
    with naming("cannot read", str(tree.root / "vllm")):
        for at, folders, names, _ in walk(tree.root / "vllm"):
            folders[:] = [name for name in folders if name != "__pycache__"]
            below = Path(at).relative_to(tree.root).as_posix()
            yield from (f"{below}/{name}" for name in names)


def unreadable(path: str, error: Exception) -> Problem:
    """Return why a module cannot be parsed."""
    line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
    cause = error.msg if isinstance(error, SyntaxError) else error
    return Problem(FAILED, path, f"not readable as Python: {line}{cause}")
