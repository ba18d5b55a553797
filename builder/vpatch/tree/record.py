"""RECORD, the wheel's list of installed files, as a value that keeps every line it is not asked to change."""

from __future__ import annotations

import csv
import hashlib
import io
from binascii import b2a_base64
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Row(NamedTuple):
    """One line, `raw` with its newline: a path (POSIX, relative to the site), a hash and a size, the last two optional.

    A tuple, read no further than the path, because there are thousands.
    """

    path: str
    raw: str

    @property
    def fields(self) -> tuple[str, str, str]:
        """Path, `<algorithm>=<digest>` and size in bytes, however they are written; empty where they are missing."""
        path, digest, size, *_ = [*next(csv.reader([self.raw]), []), "", "", ""]
        return path, digest, size

    @property
    def end(self) -> str:
        """The newline, empty for a last line that has none."""
        return self.raw[len(self.raw.rstrip("\r\n")) :]

    def ending(self, end: str) -> Row:
        """Give the row with another newline."""
        return Row(self.path, self.raw.rstrip("\r\n") + end)

    def is_true_of(self, content: bytes) -> bool:
        """Whether the row has a hash, of any algorithm that Python knows, and `content` is what was hashed."""
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
        """Give the row of `path`, None where there is none."""
        return self._by_path.get(path)

    @cached_property
    def _by_path(self) -> dict[str, Row]:
        return {row.path: row for row in reversed(self.rows)}

    def serialise(self) -> bytes:
        """Give the file's bytes; `parse(content).serialise() == content` for every content that parses."""
        return "".join(row.raw for row in self.rows).encode("utf-8", "surrogateescape")


def parse(content: bytes) -> Record:
    """Read a RECORD.

    Raises:
        ValueError: it is not a table with a path in each row; the message says which line.
    """
    text = content.decode("utf-8", "surrogateescape")
    lines = list(io.StringIO(text, newline=""))
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
    """Make the row that is true of `content` at `path`."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="").writerow((path, _hash(content, "sha256"), len(content)))
    return Row(path, out.getvalue())


def revise(record: Record, put: Mapping[str, Row], drop: Collection[str] = ()) -> Record:
    """Replace the rows of the paths in `put` where they stand, add the others at the end, leave out those in `drop`.

    A row that already says the same keeps its line; a new one ends as the file's first line does.
    """
    end = next((row.end for row in record.rows if row.end), "\n")
    rows = [_replaced(row, put.get(row.path)) for row in record.rows if row.path not in drop]
    there = {row.path for row in rows}
    added = [row.ending(end) for path, row in put.items() if path not in there]
    if added and rows and not rows[-1].end:
        rows[-1] = rows[-1].ending(end)
    return Record((*rows, *added))


def _replaced(old: Row, new: Row | None) -> Row:
    return old if new is None or old.fields == new.fields else new.ending(old.end)


def _hash(content: bytes, algorithm: str) -> str:
    digest = hashlib.new(algorithm, content, usedforsecurity=False).digest()
    return f"{algorithm}={b2a_base64(digest, newline=False).translate(_URL_SAFE, b'=').decode()}"


_URL_SAFE = bytes.maketrans(b"+/", b"-_")
