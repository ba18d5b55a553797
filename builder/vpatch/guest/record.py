"""RECORD, the wheel's list of installed files: its rows, and the hash of a file as a row has it.

Interpreters of images run this file as text: it imports the standard library only.
"""

from __future__ import annotations

import csv
import hashlib
import io
from binascii import b2a_base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

_ROWS = 200_000  # vLLM's wheels list 5,000 files
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class RecordRow(NamedTuple):
    """One line, `raw` with its newline: a path (POSIX, relative to site-packages), and optionally a hash and a size.

    Only the path is parsed at first, because there are thousands of rows.
    """

    path: str
    raw: str

    @property
    def fields(self) -> tuple[str, str, str]:
        """Path, `<algorithm>=<digest>` and size in bytes; empty if missing."""
        path, known, size, *_ = [*next(csv.reader([self.raw]), []), "", "", ""]
        return path, known, size

    @property
    def end(self) -> str:
        """The newline; empty if the last line has none."""
        return self.raw[len(self.raw.rstrip("\r\n")) :]

    def ending(self, end: str) -> RecordRow:
        """Return the row with another newline."""
        return RecordRow(self.path, self.raw.rstrip("\r\n") + end)

    def is_true_of(self, content: bytes) -> bool:
        """Whether the row has a hash, of any algorithm that Python knows, that matches `content`."""
        _, known, size = self.fields
        algorithm = known.partition("=")[0]
        if algorithm not in hashlib.algorithms_guaranteed or algorithm.startswith("shake_"):
            return False
        return known.rstrip("=") == digest(content, algorithm) and size in ("", str(len(content)))


@dataclass(frozen=True)
class Record:
    """The rows of a RECORD, in the order of the file."""

    rows: tuple[RecordRow, ...]

    def row(self, path: str) -> RecordRow | None:
        """Return the first row of `path`, None without one."""
        return self._by_path.get(path)

    @cached_property
    def _by_path(self) -> dict[str, RecordRow]:
        return {row.path: row for row in reversed(self.rows)}

    def serialize(self) -> bytes:
        """Return the file's bytes; `parse(content).serialize() == content` for every content that parses."""
        return "".join(row.raw for row in self.rows).encode("utf-8", "surrogateescape")


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
        return Record(tuple(RecordRow(raw.partition(",")[0].rstrip("\r\n"), raw) for raw in lines))
    reader = csv.reader(lines)
    rows, taken = [], 0
    try:
        for fields in reader:
            rows.append(RecordRow(fields[0] if fields else "", "".join(lines[taken : reader.line_num])))
            taken = reader.line_num
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    return Record(tuple(rows))


def revise(record: Record, put: Mapping[str, RecordRow], drop: Collection[str] = ()) -> Record:
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


def entry(path: str, content: bytes) -> RecordRow:
    """Return the row for `content` at `path`, as an installer writes it."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="").writerow((path, digest(content), len(content)))
    return RecordRow(path, out.getvalue())


def digest(content: bytes, algorithm: str = "sha256") -> str:
    """Return the hash of a file as a row has it, `<algorithm>=<URL-safe base64 without padding>`."""
    found = hashlib.new(algorithm, content, usedforsecurity=False).digest()
    return f"{algorithm}={b2a_base64(found, newline=False).translate(_URL_SAFE, b'=').decode()}"


def _replaced(old: RecordRow, new: RecordRow | None) -> RecordRow:
    return old if new is None or old.fields == new.fields else new.ending(old.end)
