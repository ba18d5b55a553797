"""The RECORD that a site should have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem
from vpatch.tree import backup, record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vpatch.tree.backup import Kept
    from vpatch.tree.file_state import File
    from vpatch.tree.record import Record, Row
    from vpatch.tree.tree import Site


def path_of(site: Site) -> str:
    """Give RECORD's path, relative to the site's root."""
    return f"{site.dist_info}/RECORD"


def read(site: Site) -> Record | None:
    """Read the site's RECORD, None where it or the dist-info is missing.

    Raises:
        Failure: it cannot be read, or is no RECORD.
    """
    content = None if site.dist_info is None else site.read(path_of(site))
    return None if content is None else _parse(content, path_of(site))


def before(site: Site, rows: Record, have: Kept, files: Iterable[File]) -> Record:
    """Give the RECORD as it was before vpatch: the one kept, or the one, or the rows, that an installer wrote since.

    Raises:
        Failure: the one kept is no RECORD.
    """
    ours = [row.path for row in rows.rows if row.path.startswith(f"{backup.folder(site)}/")]
    if have.record is None or not ours:
        return record.revise(rows, {}, ours)
    base = _parse(have.record, f"{backup.folder(site)}/originals/{path_of(site)}")
    untouched = [(file, rows.row(file.path)) for file in files if file.now == file.origin]
    true = {file.path: row for file, row in untouched if row and file.now is not None and row.is_true_of(file.now)}
    return record.revise(base, true)


def revised(site: Site, rows: Record, base: Record, files: Iterable[File], keep: Mapping[str, bytes]) -> Record:
    """Make `rows` true of `files` and of what is kept, `keep`; what is as in `base`, the RECORD before, stays so.

    Rows that others wrote since stay.
    """
    put: dict[str, Row] = {}
    added = dict(keep)
    drop = {row.path for row in rows.rows if row.path.startswith(f"{backup.folder(site)}/")}
    for file in files:
        old, now = base.row(file.path), rows.row(file.path)
        if old is None:
            drop.add(file.path)
        if file.want is None or (now is not None and old is not None and now.is_true_of(file.want)):
            continue
        if old is not None:
            put[file.path] = old if file.goes_back else record.entry(file.path, file.want)
        elif not file.goes_back:
            added[file.path] = file.want
    # Those that vpatch added are written anew, so that their order does not tell how they came to be.
    new = record.revise(rows, put | {path: record.entry(path, added[path]) for path in added}, drop)
    # The same rows, but for the newline that the last one may have lacked.
    return base if [row.ending("") for row in new.rows] == [row.ending("") for row in base.rows] else new


def _parse(content: bytes, path: str) -> Record:
    try:
        return record.parse(content)
    except ValueError as error:
        raise Failure(Problem("bad RECORD", path, str(error))) from error
