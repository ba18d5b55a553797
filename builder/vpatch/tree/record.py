"""The RECORD of a tree: every line that does not have to change keeps its exact bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from vpatch.errors import Failure, Problem
from vpatch.guest.record import Record, RecordRow, entry, parse, revise
from vpatch.tree import backup
from vpatch.tree.locate import Tree


class FileState(NamedTuple):
    """The bytes of one file as they are, as they should be, and before vpatch; None if there is no such file."""

    path: str
    now: bytes | None
    want: bytes | None
    origin: bytes | None  # None, too, if they are lost
    tracked: bool  # `want` is the work of overlays, which `revert` has to undo
    edited: bool = False  # `want` holds a user's edit, too, which `revert` must not lose
    added: bool = False  # vpatch adds it: without overlays, there is no such file


def parsed(content: bytes, path: str) -> Record:
    """Parse the RECORD at `path`, relative to the tree."""
    try:
        return parse(content)
    except ValueError as error:
        raise Failure(Problem("bad RECORD", path, str(error))) from error


def present(tree: Tree, read: Callable[[str], bytes | None]) -> Record | None:
    """Parse the RECORD of a tree; None if there is none. Raises `Failure` if it cannot be parsed."""
    text = None if tree.dist_info is None else read(tree.record)
    return None if text is None else parsed(text, tree.record)


def required(tree: Tree, read: Callable[[str], bytes | None]) -> Record:
    """Parse the RECORD of a tree that is to be written to.

    Raises:
        Failure: the tree has no RECORD, or one that cannot be parsed.
    """
    if (rows := present(tree, read)) is None:
        raise Failure(backup.lacking(tree))
    return rows


def before(tree: Tree, rows: Record, kept: bytes | None, files: Iterable[FileState]) -> Record:
    """Return the RECORD from before vpatch: the kept one, with the rows that an installer wrote since."""
    ours = _ours(tree, rows)
    if kept is None or not ours:
        return revise(rows, {}, ours)
    base = parsed(kept, f"{backup.folder(tree)}/originals/{tree.record}")
    found = {file.path: (row, file.now) for file in files if file.now == file.origin and (row := rows.row(file.path))}
    return revise(base, {path: row for path, (row, now) in found.items() if now is not None and row.is_true_of(now)})


def revised(tree: Tree, rows: Record, base: Record, files: Collection[FileState], keep: Mapping[str, bytes]) -> Record:
    """Make `rows` true of `files` and of `keep`, what is kept beside the tree; of an edit, only where it is written.

    Rows that equal those of `base`, the RECORD from before vpatch, keep their bytes; rows that others wrote since stay.
    """
    put: dict[str, RecordRow] = {}
    added = {path: entry(path, content) for path, content in keep.items()}
    for file in files:
        old, now = base.row(file.path), rows.row(file.path)
        if file.want is None or (now and old and now.is_true_of(file.want)):
            continue
        # Where an edit is all that differs, the row stays: RECORD vouches for what vpatch wrote, and for nothing else.
        row = now if now and file.edited and file.now == file.want else entry(file.path, file.want)
        if old:
            put[file.path] = old if file.want == file.origin else row
        elif file.want != file.origin:
            added[file.path] = row
    # The rows that vpatch added are always written anew, so that their order does not depend on earlier runs.
    drop = {*_ours(tree, rows), *(file.path for file in files if not base.row(file.path))}
    new = revise(rows, put | added, drop)
    # Equal rows, except for the newline that the last one may have lacked.
    return base if [row.ending("") for row in new.rows] == [row.ending("") for row in base.rows] else new


def own(tree: Tree, rows: Record, kept: backup.Kept) -> set[str]:
    """Return the paths of what vpatch keeps beside a tree, in the files or in RECORD."""
    return {*backup.own_files(tree, kept.originals, kept.patches, kept.record, kept.provenance), *_ours(tree, rows)}


def _ours(tree: Tree, rows: Record) -> list[str]:
    return [row.path for row in rows.rows if row.path.startswith(f"{backup.folder(tree)}/")]
