"""What has to change on disk so that a site is as asked: decided from what is there, before anything is written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Failure, Problem
from vpatch.tree import backup, bytecode, record_revision, symlinks
from vpatch.tree.file_state import Asked, File, judge

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vpatch.tree.backup import Kept
    from vpatch.tree.record import Record
    from vpatch.tree.tree import Site


@dataclass(frozen=True)
class Plan:
    """Every change, by path relative to the site's root.

    `now` has what each file that changes held when it was read. `originals`, `files`, `provenance` and `record` are
    bytes to write (None: as it is), `removed` the companions that go, `dropped` the originals that nothing needs any
    more, `bytecode` the stale twins of files that stay. `under_way` is the note for the time of the run. `ends` says
    that nothing stays applied, `kept` that there is something kept or left, `unclean` that a killed run left it.
    """

    now: Mapping[str, bytes | None]
    originals: Mapping[str, bytes]
    files: Mapping[str, bytes]
    removed: tuple[str, ...]
    provenance: bytes | None
    record: bytes | None
    dropped: tuple[str, ...]
    bytecode: tuple[Path, ...]
    under_way: bytes
    ends: bool
    kept: bool
    unclean: bool

    @property
    def work(self) -> bool:
        """Whether there is anything to do."""
        written = self.originals or self.files or self.provenance is not None or self.record is not None
        gone = self.removed or self.dropped or self.bytecode or (self.ends and self.kept)
        return bool(written or gone or self.unclean)


def decide(site: Site, asked: Asked, note: object) -> Plan:
    """Compare `site` with what is asked; the arguments are those of `writer.settle`.

    Raises:
        Failure: it cannot be done, with every problem.
    """
    have = backup.read(site)
    if have.broken and (not asked.allow_edited or have.paths - set(asked.desired)):
        raise Failure(Problem("cannot read provenance", backup.folder(site), have.broken))
    rows = record_revision.read(site)
    files = _judged(site, asked, have, rows)
    changed = [file for file in files if file.changes]
    twins = tuple(twin for file in files if not file.changes for twin in bytecode.stale(site.root / file.path))

    # A tree that was patched elsewhere, dist-info and all, is already as asked; there is nothing to keep of it.
    tracked = [file for file in files if file.tracked and (changed or have.anything)]
    if rows is None:
        if changed or tracked:
            backup.folder(site)
            raise Failure(
                Problem("no RECORD", record_revision.path_of(site), "it could not be kept true; reinstall vLLM")
            )
        return Plan({}, {}, {}, (), None, None, (), twins, b"", ends=False, kept=False, unclean=False)

    base = record_revision.before(site, rows, have, files)
    originals = {file.path: file.origin for file in tracked if file.origin is not None}
    keep, provenance = {}, None
    if tracked:
        originals[record_revision.path_of(site)] = base.serialise()
        provenance = _provenance(have, note, tracked)
        keep = {f"{backup.folder(site)}/originals/{path}": content for path, content in originals.items()}
        keep[f"{backup.folder(site)}/provenance.json"] = provenance
    record = record_revision.revised(site, rows, base, files, keep).serialise()
    had = (
        dict(have.originals) if have.record is None else {**have.originals, record_revision.path_of(site): have.record}
    )
    plan = Plan(
        now={**{file.path: file.now for file in changed}, record_revision.path_of(site): rows.serialise()},
        originals={path: content for path, content in originals.items() if had.get(path) != content},
        files={file.path: file.want for file in changed if file.want is not None},
        removed=tuple(file.path for file in changed if file.want is None),
        provenance=None if provenance == have.provenance else provenance,
        record=None if record == rows.serialise() else record,
        dropped=tuple(sorted(set(had) - set(originals))),
        bytecode=twins,
        under_way=_under_way(have, changed),
        ends=not tracked,
        kept=have.anything,
        unclean=have.unclean,
    )
    if plan.work:
        symlinks.check(
            site, [*plan.files, *plan.removed, record_revision.path_of(site), backup.folder(site), COMPANIONS]
        )
    return plan


def _judged(site: Site, asked: Asked, have: Kept, rows: Record | None) -> list[File]:
    files: list[File] = []
    problems: list[Problem] = []
    for path in sorted({*asked.desired, *have.paths}):
        try:
            files.append(judge(path, site.read(path), asked, have, rows))
        except Failure as failure:
            problems += failure.problems
    if problems:
        raise Failure(*problems)
    return files


def _provenance(have: Kept, note: object, tracked: list[File]) -> bytes:
    """Give provenance as it is where it says the same: when and who stay those of the last change."""
    overlays = json.loads(json.dumps(note))
    before = {file.path: None if file.origin is None else backup.sha256(file.origin) for file in tracked}
    after = {
        file.path: have.after[file.path] if file.edited else (backup.sha256(file.want),)
        for file in tracked
        if file.want is not None
    }
    if have.provenance is not None and (have.overlays, have.before, have.after) == (overlays, before, after):
        return have.provenance
    return backup.provenance(overlays, before, after)


def _under_way(have: Kept, changed: list[File]) -> bytes:
    files = dict(have.under_way)
    for file in changed:
        if file.edited or (file.goes_back and not backup.is_companion(file.path)):
            continue
        # A companion that is there without anything kept of it is ours, too.
        ours = (file.want, file.now if backup.is_companion(file.path) else None)
        hashes = [backup.sha256(content) for content in ours if content is not None]
        files[file.path] = tuple(dict.fromkeys((*files.get(file.path, ()), *hashes)))
    return backup.under_way(files)
