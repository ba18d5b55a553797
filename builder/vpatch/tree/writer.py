"""Bring a site-packages tree to where overlays want it, and back.

    desired = ...                                # every file that overlays touch, with its exact new bytes
    if not settled(site, desired, note):
        with lock(site):
            desired = ...                        # again, from what is there now
            changed = settle(site, desired, note, pristine=..., allow_edited=True)

Whatever was changed before and is not in `desired` goes back to what it was: with `{}`, all of it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem
from vpatch.tree import backup, bytecode, record_revision
from vpatch.tree.file_state import Asked, is_edited
from vpatch.tree.lock import lock
from vpatch.tree.transaction import carry_out
from vpatch.tree.write_plan import decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from vpatch.tree.tree import Site

__all__ = ["edited", "lock", "originals", "record_problems", "settle", "settled", "stale_bytecode"]


def settled(site: Site, desired: Mapping[str, bytes], note: object) -> bool:
    """Whether everything is as `settle` would leave it: nothing is opened for writing, no lock is taken.

    `desired` and `note` are those of `settle`. False, too, where `settle` would fail.
    """
    try:
        return not decide(site, Asked(desired, lambda *_: False, allow_edited=True), note).work
    except Failure:
        return False


def settle(
    site: Site,
    desired: Mapping[str, bytes],
    note: object,
    *,
    pristine: Callable[[str, bytes], bool],
    allow_edited: bool = False,
) -> tuple[str, ...]:
    """Give every file in `desired` its bytes and put back every other file that vpatch changed; inside `lock`.

    `desired` has the exact bytes by path (POSIX, relative to the root), whether or not they are on disk already:
    modules that are there, and companions below `vllm/_vpatch/`. `note` is JSON-able and goes into provenance.
    `pristine(path, content)` says that no mark is in the content, so that it can be kept as an original. `allow_edited`
    lets `desired` replace what somebody edited after vpatch, because it was computed from those bytes; a file that has
    to be put back is never replaced so, not even after that.

    Returns the paths written or removed in the tree, sorted, RECORD included; what is kept in the dist-info is left
    out.

    Raises:
        Failure: every reason why not. Unless it says that the next run completes it, the tree is as it was.
    """
    plan = decide(site, Asked(desired, pristine, allow_edited), note)
    if plan.work:
        carry_out(site, plan)
    record = () if plan.record is None else (record_revision.path_of(site),)
    return tuple(sorted({*plan.files, *plan.removed, *record}))


def originals(site: Site) -> Mapping[str, bytes | None]:
    """Give the bytes, from before vpatch, of every file that vpatch changed; None for a file that it added.

    Raises:
        Failure: what is kept cannot be read.
    """
    have = backup.read(site)
    if have.broken:
        raise Failure(Problem("cannot read provenance", backup.folder(site), have.broken))
    added = (path for path in {**have.before, **have.under_way} if backup.is_companion(path))
    return {**have.originals, **dict.fromkeys(added)}


def edited(site: Site) -> tuple[str, ...]:
    """Give the files, sorted, that somebody edited after vpatch: `revert` would lose what they hold.

    Raises:
        Failure: they, or what is kept, cannot be read.
    """
    have = backup.read(site)
    if have.broken:
        raise Failure(Problem("cannot read provenance", backup.folder(site), have.broken))
    return tuple(path for path in sorted(have.paths) if is_edited(path, site.read(path), have))


def record_problems(site: Site, paths: Iterable[str]) -> tuple[Problem, ...]:
    """Say where RECORD is not true of `paths`, and of what vpatch keeps.

    Raises:
        Failure: a file cannot be read.
    """
    rows = record_revision.read(site)
    if rows is None:
        return (Problem("no RECORD", str(site.root), "nothing says which files belong to vLLM"),)
    base = backup.folder(site)
    found = []
    for path in sorted(
        {*paths, *(row.path for row in rows.rows if row.path.startswith(f"{base}/")), *_kept_paths(site)}
    ):
        row, content = rows.row(path), site.read(path)
        if row is None:
            found.append(Problem("not in RECORD", path, "uninstalling would leave it behind"))
        elif content is None:
            found.append(Problem("missing file", path, "RECORD has it"))
        elif not row.is_true_of(content):
            found.append(Problem("RECORD is not true", path, "its hash or size is not that of the file"))
    return tuple(found)


def stale_bytecode(site: Site, paths: Iterable[str]) -> tuple[Problem, ...]:
    """Name the bytecode that Python would run instead of `paths` as they are now.

    Raises:
        Failure: a file cannot be read.
    """
    stale = (twin for path in sorted(set(paths)) for twin in bytecode.stale(site.root / path))
    cause = "python would run it, and it was not compiled from the source beside it"
    return tuple(Problem("stale bytecode", twin.relative_to(site.root).as_posix(), cause) for twin in stale)


def _kept_paths(site: Site) -> Iterable[str]:
    have, base = backup.read(site), backup.folder(site)
    yield from (f"{base}/originals/{path}" for path in have.originals)
    if have.record is not None:
        yield f"{base}/originals/{record_revision.path_of(site)}"
    if have.provenance is not None:
        yield f"{base}/provenance.json"
