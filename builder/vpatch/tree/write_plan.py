"""What has to change in an installed vLLM, decided from what is there before anything is written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from vpatch.core.marks import marks_in
from vpatch.errors import Failure, Problem
from vpatch.tree import DiskSnapshot, Writes, backup, bytecode, record
from vpatch.tree.backup import File
from vpatch.tree.lock import lock
from vpatch.tree.transaction import Steps, carry_out, collecting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from vpatch.tree import Tree
    from vpatch.tree.backup import Kept
    from vpatch.tree.record import Record


@dataclass(frozen=True)
class SitePackages:
    """An installed vLLM; see `vpatch.tree.transaction` for what its writer promises."""

    tree: Tree

    def snapshot(self) -> Installed:
        """Begin a run."""
        return Installed(self.tree)


class Installed(DiskSnapshot):
    """An installed vLLM as one run reads it."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self._stale: dict[str, tuple[Path, ...]] = {}

    @cached_property
    def kept(self) -> Kept:
        """What vpatch keeps beside the tree."""
        return backup.read(self.tree)

    @property
    def originals(self) -> Mapping[str, bytes | None]:
        """The original bytes, from the dist-info."""
        return backup.originals(self.tree, self.kept)

    def stale(self, path: str) -> tuple[Path, ...]:
        """List the stale bytecode of a file."""
        if path not in self._stale:
            self._stale[path] = bytecode.stale(self.tree.root / path)
        return self._stale[path]

    def lock(self) -> AbstractContextManager[None]:
        """Lock the dist-info."""
        return lock(self.tree)

    def refresh(self) -> bool:
        """Read files, what is kept and stale bytecode again; return whether something differs."""
        kept, stale = self.kept, self._stale
        del self.kept
        self._stale = {}
        differs = super().refresh() or self.kept != kept
        return differs or any(self.stale(path) != twins for path, twins in stale.items())

    def decide(self, desired: Mapping[str, bytes], note: object, *, on_edits: bool) -> Writes:
        """Compare the tree with `desired`; see `Snapshot.decide`."""
        steps = decide(self, desired, note, on_edits=on_edits)
        lists = () if steps.record is None else (record.path_of(self.tree),)
        return Writes(
            tuple(sorted({*steps.files, *steps.removed, *lists})), steps.work, partial(self._carry_out, steps)
        )

    def _carry_out(self, steps: Steps) -> None:
        path = record.path_of(self.tree)
        # Without RECORD, nothing is done but to remove bytecode.
        written = (*steps.files, *steps.removed, path) if self.read(path) is not None else ()
        carry_out(self.tree, steps, {path: self.loaded[path] for path in written})


def decide(seen: Installed, desired: Mapping[str, bytes], note: object, *, on_edits: bool) -> Steps:
    """Compare a tree with what is desired of it; the arguments are those of `Snapshot.decide`.

    Raises:
        Failure: it cannot be done; carries every problem.
    """
    tree, kept = seen.tree, seen.kept
    if kept.broken and (not on_edits or kept.paths - set(desired)):
        raise Failure(Problem("cannot read provenance", backup.folder(tree), kept.broken))
    content = None if tree.dist_info is None else seen.read(record.path_of(tree))
    rows = record.read(tree, content)
    files = _Judge(desired, on_edits, kept, rows).files(seen)
    changed = [file for file in files if file.changes]
    twins = tuple(twin for file in files if not file.changes for twin in seen.stale(file.path))

    # A tree that was patched elsewhere, dist-info and all, is as desired already: nothing is kept of it.
    tracked = [file for file in files if file.tracked and (changed or kept.anything)]
    if rows is None:
        if changed or tracked:
            backup.folder(tree)
            raise Failure(Problem("no RECORD", record.path_of(tree), "it could not be kept true; reinstall vLLM"))
        return Steps(bytecode=twins)

    base = record.before(tree, rows, kept, files)
    originals = {file.path: file.origin for file in tracked if file.origin is not None}
    keep, provenance = {}, None
    if tracked:
        originals[record.path_of(tree)] = base.serialize()
        provenance = _provenance(kept, note, tracked)
        keep = {f"{backup.folder(tree)}/originals/{path}": content for path, content in originals.items()}
        keep[f"{backup.folder(tree)}/provenance.json"] = provenance
    listed = record.revised(tree, rows, base, files, keep).serialize()
    had = dict(kept.originals) if kept.record is None else {**kept.originals, record.path_of(tree): kept.record}
    return Steps(
        originals={path: content for path, content in originals.items() if had.get(path) != content},
        files={file.path: file.want for file in changed if file.want is not None},
        removed=tuple(file.path for file in changed if file.want is None),
        provenance=None if provenance == kept.provenance else provenance,
        record=None if listed == content else listed,
        dropped=tuple(sorted(set(had) - set(originals))),
        bytecode=twins,
        under_way=_under_way(kept, changed),
        ends=not tracked,
        kept=kept.anything,
        unclean=kept.unclean,
    )


@dataclass(frozen=True)
class _Judge:
    """Decides what each file should hold, and what it held before vpatch."""

    desired: Mapping[str, bytes]
    on_edits: bool
    kept: Kept
    rows: Record | None

    def files(self, seen: Installed) -> list[File]:
        files: list[File] = []
        problems: list[Problem] = []
        for path in sorted({*self.desired, *self.kept.paths}):
            with collecting(problems):
                files.append(self.file(path, seen.read(path)))
        if problems:
            raise Failure(*problems)
        return files

    def file(self, path: str, now: bytes | None) -> File:
        want, edited = self.desired.get(path), self.kept.is_edited(path, now)
        anew = edited and self.installed_anew(path, now)
        if edited and not anew and now != want and (want is None or not self.on_edits):
            cause = "somebody's edit is in it and would be lost; undo it, or delete the file, and run again"
            raise Failure(Problem("edited after vpatch", path, cause))
        if backup.is_companion(path):
            return File(path, now, want, None, tracked=want is not None)
        origin = now if anew else self.origin(path, now, want)
        if want is None:
            return File(path, now, origin, origin, tracked=False)
        edited = edited and path in self.kept.after and origin is not now
        return File(path, now, want, origin, tracked=origin is not None and want != origin, edited=edited)

    def installed_anew(self, path: str, now: bytes | None) -> bool:
        """Whether an installer wrote the file and its row: then what is kept is of an earlier installation."""
        if now is None or backup.is_companion(path) or self.kept.provenance is None:
            return False
        row = self.rows.row(path) if self.rows else None
        return row is not None and row.is_true_of(now) and not marks_in(now)

    def origin(self, path: str, now: bytes | None, want: bytes | None) -> bytes | None:
        original = self.kept.originals.get(path)
        if now is None:
            if original is None and want is not None:
                raise Failure(Problem("no such file", path, "an overlay changes it"))
            return original
        ours = now == want or self.kept.wrote(path, now)
        pristine = not marks_in(now)
        if original is not None and (ours or not pristine):
            return original
        if self.kept.before.get(path) == backup.sha256(now) or (not ours and pristine):
            return now  # a revert was killed after it dropped the original; or the file is as it was installed
        if now == want:
            return None
        raise Failure(Problem("no original kept", path, self.why_lost(now)))

    def why_lost(self, now: bytes) -> str:
        names = dict.fromkeys(marks_in(now))
        if self.kept.anything or not names:
            return "it was changed before, and what it was is lost with the dist-info's vpatch folder; reinstall vLLM"
        # There is no trace of an earlier run: the comment may be part of the release.
        marks = ", ".join(f"`# vpatch: {name}`" for name in names)
        cause = f"vpatch keeps nothing of this tree, and the file has {marks}; if an overlay changed it, reinstall vLLM"
        return f"{cause}; if it is a mere comment, reword it"


def _provenance(kept: Kept, note: object, tracked: list[File]) -> bytes:
    """Return provenance; its bytes stay if nothing but time and user would differ."""
    overlays = json.loads(json.dumps(note))
    before = {file.path: None if file.origin is None else backup.sha256(file.origin) for file in tracked}
    after = {
        file.path: kept.after[file.path] if file.edited else (backup.sha256(file.want),)
        for file in tracked
        if file.want is not None
    }
    if kept.provenance is not None and (kept.overlays, kept.before, kept.after) == (overlays, before, after):
        return kept.provenance
    return backup.provenance(overlays, before, after)


def _under_way(kept: Kept, changed: list[File]) -> bytes:
    files = dict(kept.under_way)
    for file in changed:
        if file.edited or (file.goes_back and not backup.is_companion(file.path)):
            continue
        # A companion that exists, and of which nothing is kept, is vpatch's, too.
        ours = (file.want, file.now if backup.is_companion(file.path) else None)
        hashes = [backup.sha256(content) for content in ours if content is not None]
        files[file.path] = tuple(dict.fromkeys((*files.get(file.path, ()), *hashes)))
    return backup.under_way(files)
