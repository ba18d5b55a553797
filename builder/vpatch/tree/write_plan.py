"""What has to change in an installed vLLM, decided from what is there before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Self

from vpatch.core.marks import begins_marked, marks_in
from vpatch.errors import Code, Failure, Problem, collecting, raise_all
from vpatch.guest.record import Record
from vpatch.manifest import sha256
from vpatch.tree import backup, bytecode, record
from vpatch.tree.apply import Writes
from vpatch.tree.backup import Kept
from vpatch.tree.guard import lock
from vpatch.tree.locate import Reads, Tree
from vpatch.tree.record import FileState
from vpatch.tree.standing import Differences, standing
from vpatch.tree.transaction import Steps, carry_out


class SitePackages:
    """An installed vLLM, a `vpatch.tree.apply.Snapshot`; see `vpatch.tree.transaction` for what its writer promises."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._reads = Reads(tree)
        self._stale: dict[str, tuple[Path, ...]] = {}

    def snapshot(self) -> Self:
        """Begin another run."""
        return type(self)(self.tree)

    def read(self, path: str) -> bytes | None:
        """Read a file; return None if it does not exist."""
        return self._reads.read(path)

    @cached_property
    def kept(self) -> Kept:
        """What vpatch keeps beside the tree."""
        return backup.read(self.tree)

    @property
    def originals(self) -> Mapping[str, bytes | None]:
        """The original bytes, from the dist-info."""
        return backup.originals(self.tree, self.kept)

    @property
    def unrecognized(self) -> tuple[str, ...]:
        """The files whose hash is not kept."""
        kept = self.kept
        return () if kept.broken else tuple(p for p in sorted(kept.paths) if kept.is_edited(p, self.read(p)))

    def stale(self, path: str) -> tuple[Path, ...]:
        """List the stale bytecode of a file."""
        if path not in self._stale:
            self._stale[path] = bytecode.stale(self.tree.root / path)
        return self._stale[path]

    def lock(self) -> AbstractContextManager[None]:
        """Lock the dist-info."""
        return lock(self.tree)

    def refresh(self) -> bool:
        """Read files, what is kept, and bytecode again; return whether something differs."""
        kept, stale = self.kept, self._stale
        del self.kept
        self._stale = {}
        differs = self._reads.refresh() or self.kept != kept
        return differs or any(self.stale(path) != twins for path, twins in stale.items())

    def decide(
        self,
        desired: Mapping[str, bytes],
        note: object,
        *,
        on_edits: bool,
        made: Mapping[str, bytes],
        patches: Mapping[str, bytes],
        discard: bool = False,
    ) -> Writes:
        """Compare the tree with `desired`; see `Snapshot.decide`."""
        tree, kept = self.tree, self.kept
        if kept.broken and (not on_edits or kept.paths - set(desired)):
            raise Failure(Problem("cannot read provenance", backup.folder(tree), kept.broken, code=Code.PROVENANCE))
        rows = record.present(tree, self.read)
        stands = partial(standing, self, made)
        decision = _Decision(tree, kept, rows, desired, on_edits, made, patches, discard, stands)
        files = decision.files(self.read)
        twins = tuple(twin for file in files if file.now == file.want for twin in self.stale(file.path))
        steps = replace(decision.steps(files, note), bytecode=twins)
        changed = {*steps.files, *steps.removed, *({tree.record} & steps.lists.keys())}
        edited = tuple(file.path for file in files if file.edited)
        written = {**steps.files, **dict.fromkeys(steps.removed)}
        carried = partial(self._carry_out, steps)
        return Writes(tuple(sorted(changed)), edited, steps.change or bool(twins), carried, files=written)

    def _carry_out(self, steps: Steps) -> None:
        # Without RECORD, nothing is done but to remove bytecode.
        written = (*steps.files, *steps.removed, self.tree.record) if self.read(self.tree.record) is not None else ()
        carry_out(self.tree, steps, {path: self._reads.loaded[path] for path in written})


@dataclass(frozen=True)
class _Decision:
    tree: Tree
    kept: Kept
    rows: Record | None
    desired: Mapping[str, bytes]
    on_edits: bool
    made: Mapping[str, bytes]
    patches: Mapping[str, bytes]
    discard: bool
    stands: Callable[[], Differences]

    def steps(self, files: Sequence[FileState], note: object) -> Steps:
        changed = [file for file in files if file.now != file.want]
        # A tree that was patched elsewhere, dist-info and all, is as desired already: nothing is kept of it.
        tracked = [file for file in files if file.tracked and (changed or self.kept.anything)]
        if self.rows is not None:
            return self.listed(self.rows, files, changed, tracked, note)
        if changed or tracked:
            raise Failure(backup.lacking(self.tree))
        return Steps()

    def listed(
        self,
        rows: Record,
        files: Sequence[FileState],
        changed: Sequence[FileState],
        tracked: Sequence[FileState],
        note: object,
    ) -> Steps:
        tree, kept = self.tree, self.kept
        base = record.before(tree, rows, kept.record, files)
        originals = {file.path: file.origin for file in tracked if file.origin is not None}
        folders = self.folders(tracked)
        provenance = self.provenance(note, tracked, folders) if tracked else None
        patches = self.patches if tracked else {}
        keep = backup.own_files(tree, originals, patches, base.serialize() if tracked else None, provenance)
        had = backup.own_files(tree, kept.originals, kept.patches, kept.record, kept.provenance)
        new = {path: content for path, content in keep.items() if had.get(path) != content}
        lists = {path: content for path, content in new.items() if path == f"{backup.folder(tree)}/provenance.json"}
        if (content := record.revised(tree, rows, base, files, keep).serialize()) != rows.serialize():
            lists[tree.record] = content
        dropped = tuple(sorted(had.keys() - keep.keys()))
        return Steps(
            change=any((changed, new, lists, dropped, kept.unclean, kept.anything and not tracked)),
            originals={path: content for path, content in new.items() if path not in lists},
            files={file.path: file.want for file in changed if file.want is not None},
            added=frozenset(file.path for file in changed if file.added),
            removed=tuple(file.path for file in changed if file.want is None),
            folders=tuple(sorted(folders | kept.folders)),
            lists=lists,
            dropped=dropped,
            under_way=self.under_way(changed, folders),
            ends=not tracked,
            unclean=kept.unclean,
        )

    def files(self, read: Callable[[str], bytes | None]) -> list[FileState]:
        files: list[FileState] = []
        problems: list[Problem] = []
        for path in sorted({*self.desired, *self.kept.paths}):
            with collecting(problems):
                files.append(self.file(path, read(path)))
        raise_all(problems)
        return files

    def file(self, path: str, now: bytes | None) -> FileState:
        want, edited = self.desired.get(path), now != self.made.get(path) and self.kept.is_edited(path, now)
        anew = edited and self.installed_anew(path, now)
        if edited and not anew and now != want and (want is None or not self.on_edits) and not self.discard:
            cause = "an edit that is not vpatch's would be lost"
            raise Failure(Problem("edited after vpatch", path, cause, hint=self.stands().way_out(path)))
        edited = edited and want is not None and bool(self.kept.hashes(path)) and not (self.discard and now != want)
        if not anew and self.adds(path, now, want):
            return FileState(path, now, want, None, tracked=want is not None, edited=edited, added=True)
        origin = now if anew else self.origin(path, now, want)
        if want is None:
            return FileState(path, now, origin, origin, tracked=False)
        tracked = origin is not None and want != origin
        return FileState(path, now, want, origin, tracked=tracked, edited=edited and origin is not now)

    def adds(self, path: str, now: bytes | None, want: bytes | None) -> bool:
        """Whether vpatch adds the file, or has added it, also if that is known from RECORD alone."""
        if backup.is_companion(path) or path in self.kept.added:
            return True
        if path in self.kept.paths or not (now is None or (now == want and begins_marked(now))):
            return False
        return self.installed is None or self.installed.row(path) is None

    @cached_property
    def installed(self) -> Record | None:
        """The RECORD from before vpatch."""
        if self.kept.record is None:
            return self.rows
        return record.parsed(self.kept.record, f"{backup.folder(self.tree)}/originals/{self.tree.record}")

    def folders(self, tracked: Sequence[FileState]) -> frozenset[str]:
        """Return the folders that vpatch makes, or has made, for the files that it adds, besides that of companions."""
        paths = (PurePosixPath(file.path) for file in tracked if file.added and not backup.is_companion(file.path))
        above = {str(folder) for path in paths for folder in [*path.parents][:-2]}
        return frozenset(filter(self.makes, above))

    def makes(self, folder: str) -> bool:
        """Whether vpatch makes a folder, or has made it; where provenance is lost, RECORD lists no file in it."""
        if folder in self.kept.folders or not (self.tree.root / folder).is_dir():
            return True
        rows = self.installed.rows if self.installed and self.kept.broken else ()
        return bool(rows) and not any(row.path.startswith(f"{folder}/") for row in rows)

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
        ours = now in (want, self.made.get(path)) or self.kept.wrote(path, now)
        pristine = not marks_in(now)
        if original is not None and (ours or not pristine or self.discard):
            return original
        if self.kept.before.get(path) == sha256(now) or (not ours and pristine):
            return now  # a revert was killed after it dropped the original; or the file is as it was installed
        if now == want:
            return None
        raise Failure(self.lost(path, now))

    def lost(self, path: str, now: bytes) -> Problem:
        names = dict.fromkeys(marks_in(now))
        cause = "it was changed before, and what it was is lost with the dist-info's vpatch folder"
        hint = backup.REINSTALL
        if names and not self.kept.anything:
            # There is no trace of an earlier run: the comment may be part of the release.
            marks = ", ".join(f"`# vpatch: {name}`" for name in names)
            cause = f"vpatch keeps nothing of this tree, and the file has {marks}"
            hint = f"if an overlay changed it, {backup.REINSTALL}; if it is a mere comment, reword it"
        return Problem("no original kept", path, cause, hint=hint)

    def provenance(self, note: object, tracked: Sequence[FileState], folders: frozenset[str]) -> bytes:
        """Return provenance; its bytes stay if nothing but time and user would differ."""
        kept, overlays = self.kept, json.loads(json.dumps(note))
        before = {file.path: None if file.origin is None else sha256(file.origin) for file in tracked}
        wanted = [(file, sha256(file.want)) for file in tracked if file.want is not None]
        after = {file.path: kept.hashes(file.path) if file.edited else (digest,) for file, digest in wanted}
        known = (kept.overlays, kept.before, kept.after, kept.folders) == (overlays, before, after, folders)
        if kept.provenance is not None and known:
            return kept.provenance
        return backup.provenance(overlays, before, after, folders)

    def under_way(self, changed: Sequence[FileState], folders: frozenset[str]) -> bytes:
        files, added = dict(self.kept.under_way), {*self.kept.adding}
        for file in changed:
            if file.edited or (file.want == file.origin and not file.added):
                continue
            # A companion that exists, and of which nothing is kept, is vpatch's, too.
            ours = (file.want, file.now if file.added else None)
            added |= {file.path} if file.added else set()
            hashes = [sha256(content) for content in ours if content is not None]
            files[file.path] = tuple(dict.fromkeys((*files.get(file.path, ()), *hashes)))
        return backup.under_way(files, added, folders | self.kept.folders)
