"""Carry out what was decided, in two phases: stage every new file beside its target, then rename them one by one.

Wherever a run is killed, every file is whole, old or new. The run first notes what it will write, and removes the note
last, so that the next run recognizes its files and sweeps up the staged ones. What to do, the next run decides anew.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Failure, Problem, naming
from vpatch.tree import backup, disk, precheck, record
from vpatch.tree.disk import Folders

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from vpatch.tree import Loaded, Tree

LATER = "; the next run completes what this one began"
_NOTE = "under-way.json"
_COMPANIONS = COMPANIONS.rstrip("/")


@dataclass(frozen=True)
class Steps:
    """Every change to an installed vLLM, by path relative to its root.

    Attributes:
        originals: original bytes to keep.
        files: new bytes of modules and companions.
        removed: companions to remove.
        provenance: its new bytes; None if it stays.
        record: RECORD's new bytes; None if it stays.
        dropped: originals to remove.
        bytecode: stale twins of files that stay.
        under_way: the note for the time of the run.
        ends: nothing stays applied.
        kept: something is kept, or was left by a killed run.
        unclean: a killed run left something.
    """

    originals: Mapping[str, bytes] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    provenance: bytes | None = None
    record: bytes | None = None
    dropped: tuple[str, ...] = ()
    bytecode: tuple[Path, ...] = ()
    under_way: bytes = b""
    ends: bool = False
    kept: bool = False
    unclean: bool = False

    @property
    def work(self) -> bool:
        """Whether there is anything to do."""
        written = self.originals or self.files or self.provenance is not None or self.record is not None
        gone = self.removed or self.dropped or self.bytecode or (self.ends and self.kept)
        return bool(written or gone or self.unclean)


def carry_out(tree: Tree, steps: Steps, expected: Mapping[str, Loaded | None]) -> None:
    """Write and remove what `steps` has, inside the lock.

    Args:
        tree: the tree.
        steps: what to do.
        expected: the files that change, and RECORD, as they were read under the lock.

    Raises:
        Failure: the system refuses. If it refused while files were staged, the tree is as it was.
    """
    if expected:
        precheck.refuse_links(tree, [*expected, backup.folder(tree), COMPANIONS])
    with Folders(tree.root) as folders:
        with naming("cannot remove stale bytecode", f"{tree.root}"):
            disk.remove_files(folders, (twin.relative_to(tree.root).as_posix() for twin in steps.bytecode))
        if replace(steps, bytecode=()).work:
            _Transaction(tree, steps, expected, folders).carry_out()


@dataclass(frozen=True)
class _Transaction:
    tree: Tree
    steps: Steps
    expected: Mapping[str, Loaded | None]
    folders: Folders

    @property
    def base(self) -> str:
        """The folder of what is kept."""
        return backup.folder(self.tree)

    @property
    def info(self) -> str:
        return self.tree.dist_info or ""

    @property
    def note(self) -> str:
        return f"{self.base}/{_NOTE}"

    def carry_out(self) -> None:
        steps, folders = self.steps, self.folders
        originals = {f"{self.base}/originals/{path}": content for path, content in steps.originals.items()}
        # Companions come first: a changed module must never import one that is not there yet.
        companions = {path: content for path, content in steps.files.items() if backup.is_companion(path)}
        modules = {path: content for path, content in steps.files.items() if path not in companions}
        last = {f"{self.base}/provenance.json": steps.provenance, record.path_of(self.tree): steps.record}
        lists = {path: content for path, content in last.items() if content is not None}

        with self.staged(({**companions, **modules, **lists}, originals)):
            for group in (originals, companions, modules):
                self.put(group)
            for path in steps.removed:
                with naming("cannot remove", path, LATER):
                    disk.remove(folders, path)
            self.sync(steps.removed)
            # Once more: an import may have compiled the old source meanwhile.
            self.remove_bytecode(LATER)
            self.put(lists)
            with naming("cannot tidy up", self.base, LATER):
                self.tidy_up()

    @contextmanager
    def staged(self, groups: Sequence[Mapping[str, bytes]]) -> Iterator[None]:
        """Stage the files in `groups` for the time of the block. If that fails, the tree is as it was."""
        targets, made = [self.note], list[str]()
        begun = False
        try:
            with naming("cannot write", self.base):
                self.begin(made)
            self.check_removals()
            # The originals come last: what refuses an original also refuses its module, which the user knows.
            for content in groups:
                self.stage(content, targets, made)
            # Before the sources change, so that a kill in between cannot leave old code to run.
            self.remove_bytecode()
            begun = True
            yield
        except BaseException:
            disk.discard(self.folders, map(disk.waiting, targets))
            if not begun:
                # The note of a killed run stays until what that run left is tidied up.
                disk.discard(self.folders, [] if self.steps.unclean else [self.note], made)
            raise

    def begin(self, made: list[str]) -> None:
        folders = self.folders
        if self.steps.unclean:
            disk.sweep(folders, "vllm")
            disk.sweep(folders, self.info)
        disk.make_folder(folders, self.base, self.info, made)
        disk.stage(folders, self.note, self.steps.under_way, (record.path_of(self.tree),))
        disk.put(folders, self.note)
        disk.sync(folders, self.base)
        disk.sync(folders, self.info)

    def stage(self, content: Mapping[str, bytes], targets: list[str], made: list[str]) -> None:
        problems: list[Problem] = []
        for path, new in content.items():
            with collecting(problems), naming("cannot write", path):
                disk.make_folder(self.folders, _parent(path), self.info, made)
                precheck.check(self.folders, path, self.expected)
                targets.append(path)
                disk.stage(self.folders, path, new, self.models(path))
        if problems:
            raise Failure(*problems)
        for folder in made:
            with naming("cannot write", folder):
                disk.sync(self.folders, _parent(folder))

    def models(self, path: str) -> tuple[str, ...]:
        """List the files, best first, whose owner and mode a new file should have."""
        originals = f"{self.base}/originals/"
        # An original is as private as its module, and a module that was deleted comes back as private as its original.
        twin = path.removeprefix(originals) if path.startswith(originals) else originals + path
        return (twin, record.path_of(self.tree))

    def check_removals(self) -> None:
        problems: list[Problem] = []
        for path in self.steps.removed:
            with collecting(problems), naming("cannot remove", path):
                precheck.check(self.folders, path, self.expected)
        with collecting(problems), naming("cannot tidy up", self.base):
            problems += precheck.refusals(self.folders, self.leavings())
        if problems:
            raise Failure(*dict.fromkeys(problems))

    def put(self, paths: Iterable[str]) -> None:
        for path in paths:
            with naming("cannot write", path, LATER):
                disk.put(self.folders, path)
        self.sync(paths)

    def sync(self, paths: Iterable[str]) -> None:
        for folder in sorted({_parent(path) for path in paths}):
            with naming("cannot write", folder, LATER):
                disk.sync(self.folders, folder)

    def remove_bytecode(self, more: str = "") -> None:
        for path in (*self.steps.files, *self.steps.removed):
            with naming("cannot remove bytecode of", path, more):
                disk.remove_bytecode(self.folders, path)

    def leavings(self) -> list[str]:
        """List, before anything is changed, the files and folders that `tidy_up` will remove."""
        companions = [_COMPANIONS] if self.no_companion_stays(self.steps.removed) else []
        if self.steps.ends:
            return [*companions, self.base]
        top = f"{self.base}/originals"
        dropped = [f"{top}/{path}" for path in self.steps.dropped]
        empty = precheck.emptied(self.folders, top, dropped, [f"{top}/{path}" for path in self.steps.originals])
        return [*companions, *dropped, *empty, *self.strays()]

    def tidy_up(self) -> None:
        """Remove what nothing needs once the files are in place."""
        if self.no_companion_stays():
            disk.remove(self.folders, _COMPANIONS)
        if self.steps.ends:
            disk.remove(self.folders, self.base)
        else:
            for path in self.steps.dropped:
                disk.remove(self.folders, f"{self.base}/originals/{path}")
            disk.prune(self.folders, f"{self.base}/originals")
            for stray in self.strays():
                disk.remove(self.folders, stray)
            disk.sync(self.folders, self.base)
        disk.sync(self.folders, self.info)

    def strays(self) -> list[str]:
        """List what does not belong into the folder of what is kept, the note included."""
        return [f"{self.base}/{name}" for name in sorted(disk.names(self.folders, self.base) - backup.NAMES)]

    def no_companion_stays(self, removed: Collection[str] = ()) -> bool:
        """Whether the folder of companions will hold nothing but bytecode; a link to a folder is a user's."""
        if any(map(backup.is_companion, self.steps.files)):
            return False
        try:
            for where, inner, files, at in self.folders.walk(_COMPANIONS):
                stay = [name for name in files if not name.endswith(".pyc") and f"vllm/{where}/{name}" not in removed]
                if stay or not all(disk.is_folder(name, at) for name in inner):
                    return False
        except FileNotFoundError:
            return False
        return True


@contextmanager
def collecting(problems: list[Problem]) -> Iterator[None]:
    """Append the problems of a failure that the block raises, and go on."""
    try:
        yield
    except Failure as failure:
        problems += failure.problems


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent)
