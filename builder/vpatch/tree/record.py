"""RECORD, the wheel's list of installed files: every line that does not have to change keeps its exact bytes."""

from __future__ import annotations

import csv
import hashlib
import io
from binascii import b2a_base64
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vpatch.errors import Code, Failure, Problem
from vpatch.tree import backup
from vpatch.tree.locate import Tree

_ROWS = 200_000  # vLLM's wheels list 5,000 files
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Row(NamedTuple):
    """One line, `raw` with its newline: a path (POSIX, relative to site-packages), and optionally a hash and a size.

    Only the path is parsed at first, because there are thousands of rows.
    """

    path: str
    raw: str

    @property
    def fields(self) -> tuple[str, str, str]:
        """Path, `<algorithm>=<digest>` and size in bytes; empty if missing."""
        path, digest, size, *_ = [*next(csv.reader([self.raw]), []), "", "", ""]
        return path, digest, size

    @property
    def end(self) -> str:
        """The newline; empty if the last line has none."""
        return self.raw[len(self.raw.rstrip("\r\n")) :]

    def ending(self, end: str) -> Row:
        """Return the row with another newline."""
        return Row(self.path, self.raw.rstrip("\r\n") + end)

    def is_true_of(self, content: bytes) -> bool:
        """Whether the row has a hash, of any algorithm that Python knows, that matches `content`."""
        _, said, size = self.fields
        algorithm = said.partition("=")[0]
        if algorithm not in hashlib.algorithms_guaranteed or algorithm.startswith("shake_"):
            return False
        return said.rstrip("=") == _hash(content, algorithm) and size in ("", str(len(content)))


@dataclass(frozen=True)
class Record:
    """The rows of a RECORD, in the order of the file."""

    rows: tuple[Row, ...]

    def row(self, path: str) -> Row | None:
        """Return the first row of `path`; None if there is none."""
        return self._by_path.get(path)

    @cached_property
    def _by_path(self) -> dict[str, Row]:
        return {row.path: row for row in reversed(self.rows)}

    def serialize(self) -> bytes:
        """Return the file's bytes; `parse(content).serialize() == content` for every content that parses."""
        return "".join(row.raw for row in self.rows).encode("utf-8", "surrogateescape")


class File(NamedTuple):
    """The bytes of one file as they are, as they should be, and before vpatch; None if there is no such file."""

    path: str
    now: bytes | None
    want: bytes | None
    origin: bytes | None  # None, too, if they are lost
    tracked: bool  # `want` is the work of overlays, which `revert` has to undo
    edited: bool = False  # `want` holds a user's edit, too, which `revert` must not lose


def parse(content: bytes) -> Record:
    """Parse a RECORD; raise a ValueError that names the line if it is not a table with a path in each row."""
    if (ends := content.count(b"\n") + content.count(b"\r")) > 2 * _ROWS:
        raise ValueError(f"it has {ends:,} line ends, and vpatch reads {_ROWS:,} rows")
    text = content.decode("utf-8", "surrogateescape")
    lines = list(io.StringIO(text, newline=""))
    for number, line in enumerate(lines, 1):
        if len(line) > csv.field_size_limit():  # the fields of a row are parsed later
            raise ValueError(f"line {number}: field larger than field limit ({csv.field_size_limit()})")  # as csv says
    if '"' not in text:
        return Record(tuple(Row(raw.partition(",")[0].rstrip("\r\n"), raw) for raw in lines))
    reader = csv.reader(lines)
    rows, taken = [], 0
    try:
        for fields in reader:
            rows.append(Row(fields[0] if fields else "", "".join(lines[taken : reader.line_num])))
            taken = reader.line_num
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    return Record(tuple(rows))


def entry(path: str, content: bytes) -> Row:
    """Return the row for `content` at `path`, as an installer writes it."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="").writerow((path, _hash(content, "sha256"), len(content)))
    return Row(path, out.getvalue())


def revise(record: Record, put: Mapping[str, Row], drop: Collection[str] = ()) -> Record:
    """Replace the rows of the paths in `put` in place, append those that are new, and drop those in `drop`.

    A row with equal fields keeps its line; a new one ends as the file's first line does.
    """
    end = next((row.end for row in record.rows if row.end), "\n")
    rows = [_replaced(row, put.get(row.path)) for row in record.rows if row.path not in drop]
    there = {row.path for row in rows}
    added = [row.ending(end) for path, row in put.items() if path not in there]
    if added and rows and not rows[-1].end:
        rows[-1] = rows[-1].ending(end)
    return Record((*rows, *added))


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


def before(tree: Tree, rows: Record, kept: bytes | None, files: Iterable[File]) -> Record:
    """Return the RECORD from before vpatch: the kept one, with the rows that an installer wrote since."""
    ours = _ours(tree, rows)
    if kept is None or not ours:
        return revise(rows, {}, ours)
    base = parsed(kept, f"{backup.folder(tree)}/originals/{tree.record}")
    found = {file.path: (row, file.now) for file in files if file.now == file.origin and (row := rows.row(file.path))}
    return revise(base, {path: row for path, (row, now) in found.items() if now is not None and row.is_true_of(now)})


def revised(tree: Tree, rows: Record, base: Record, files: Collection[File], keep: Mapping[str, bytes]) -> Record:
    """Make `rows` true of `files` and of `keep`, what is kept beside the tree.

    Rows that equal those of `base`, the RECORD from before vpatch, keep their bytes; rows that others wrote since stay.
    """
    put: dict[str, Row] = {}
    added = dict(keep)
    for file in files:
        old, now = base.row(file.path), rows.row(file.path)
        if file.want is None or (now and old and now.is_true_of(file.want)):
            continue
        if old:
            put[file.path] = old if file.want == file.origin else entry(file.path, file.want)
        elif file.want != file.origin:
            added[file.path] = file.want
    # The rows that vpatch added are always written anew, so that their order does not depend on earlier runs.
    drop = {*_ours(tree, rows), *(file.path for file in files if not base.row(file.path))}
    new = revise(rows, put | {path: entry(path, added[path]) for path in added}, drop)
    # Equal rows, except for the newline that the last one may have lacked.
    return base if [row.ending("") for row in new.rows] == [row.ending("") for row in base.rows] else new


def problems(tree: Tree, paths: Iterable[str]) -> tuple[Problem, ...]:
    """List where RECORD is not true of `paths`, and of what vpatch keeps."""
    text = None if tree.dist_info is None else tree.read(tree.record)
    if text is None:
        return (Problem("no RECORD", str(tree.root), "nothing says which files belong to vLLM", code=Code.NO_RECORD),)
    rows, kept = parsed(text, tree.record), backup.read(tree)
    own = backup.own_files(tree, kept.originals, kept.record, kept.provenance)
    found = []
    for path in sorted({*paths, *own, *_ours(tree, rows)}):
        row, content = rows.row(path), tree.read(path)
        if row is None:
            found.append(
                Problem("not in RECORD", path, "uninstalling would leave it behind", code=Code.RECORD_UNLISTED)
            )
        elif content is None:
            found.append(Problem("missing file", path, "RECORD has it", code=Code.FILE_MISSING))
        elif not row.is_true_of(content):
            cause = "its hash or size is not that of the file"
            found.append(Problem("RECORD is not true", path, cause, code=Code.RECORD_UNTRUE))
    return tuple(found)


def _ours(tree: Tree, rows: Record) -> list[str]:
    return [row.path for row in rows.rows if row.path.startswith(f"{backup.folder(tree)}/")]


def _replaced(old: Row, new: Row | None) -> Row:
    return old if new is None or old.fields == new.fields else new.ending(old.end)


def _hash(content: bytes, algorithm: str) -> str:
    digest = hashlib.new(algorithm, content, usedforsecurity=False).digest()
    return f"{algorithm}={b2a_base64(digest, newline=False).translate(_URL_SAFE, b'=').decode()}"
