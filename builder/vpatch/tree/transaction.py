"""Carry out what was decided, in two phases: stage every new file beside its target, then rename them one by one.

Wherever a run is killed, every file is whole, old or new. The run first notes what it will write, and removes the note
last, so that the next run recognizes its files and sweeps up the staged ones. What to do, the next run decides anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Problem, collecting, naming, raise_all
from vpatch.tree import backup, bytecode, disk, guard
from vpatch.tree.disk import Folders, parent
from vpatch.tree.locate import Loaded, Tree

LATER = "the next run completes what this one began"
_COMPANIONS = COMPANIONS.rstrip("/")


@dataclass(frozen=True)
class Steps:
    """Every change to an installed vLLM, by path relative to its root."""

    change: bool = False  # there is something to do besides removing stale bytecode
    originals: Mapping[str, bytes] = field(default_factory=dict)  # original bytes and patch files to keep
    files: Mapping[str, bytes] = field(default_factory=dict)  # new bytes of modules and companions
    added: frozenset[str] = frozenset()  # those of the files that vpatch adds
    removed: tuple[str, ...] = ()  # files that vpatch added, to remove
    folders: tuple[str, ...] = ()  # the folders that vpatch made for files that it adds, outer ones first
    lists: Mapping[str, bytes] = field(default_factory=dict)  # new bytes of provenance and RECORD
    dropped: tuple[str, ...] = ()  # originals and patch files to remove
    bytecode: tuple[Path, ...] = ()  # stale twins of files that stay
    under_way: bytes = b""  # the note for the time of the run
    ends: bool = False  # nothing stays applied
    unclean: bool = False  # a killed run left something


def carry_out(tree: Tree, steps: Steps, expected: Mapping[str, Loaded | None]) -> None:
    """Write and remove what `steps` has, inside the lock; if the system refuses a staged file, the tree is as it was.

    `expected` has the files that change, and RECORD, as they were read under the lock.
    """
    if expected:
        guard.refuse_links(tree, [*expected, backup.folder(tree), COMPANIONS, *steps.folders])
    with Folders(tree.root) as folders:
        with naming("cannot remove stale bytecode", f"{tree.root}"):
            folders.remove_bytecode(steps.bytecode)
        if steps.change:
            _Transaction(tree, steps, expected, folders, backup.folder(tree), tree.dist_info or "").carry_out()


@dataclass(frozen=True)
class _Transaction:
    tree: Tree
    steps: Steps
    expected: Mapping[str, Loaded | None]
    folders: Folders
    base: str
    info: str

    def carry_out(self) -> None:
        # New modules come first: a changed module must never import one that is not there yet.
        # Companions are there before what they mark, and after it.
        added = {path: content for path, content in self.steps.files.items() if path in self.steps.added}
        companions = {path: content for path, content in added.items() if backup.is_companion(path)}
        modules = {path: content for path, content in self.steps.files.items() if path not in added}
        with self.staged(({**added, **modules, **self.steps.lists}, self.steps.originals)):
            for group in (self.steps.originals, companions, [one for one in added if one not in companions], modules):
                self.put(group)
            for path in sorted(self.steps.removed, key=backup.is_companion):
                with naming("cannot remove", path, LATER):
                    self.folders.remove(path)
            self.sync(self.steps.removed)
            # Once more: an import may have compiled the old source meanwhile.
            self.remove_bytecode(LATER)
            self.put(self.steps.lists)
            with naming("cannot tidy up", self.base, LATER):
                self.tidy_up()

    @contextmanager
    def staged(self, groups: Sequence[Mapping[str, bytes]]) -> Iterator[None]:
        """Stage the files in `groups` for the time of the block. If that fails, the tree is as it was."""
        note = f"{self.base}/under-way.json"
        targets, made = [note], list[str]()
        begun = False
        try:
            with naming("cannot write", self.base):
                if self.steps.unclean:
                    self.folders.sweep("vllm")
                    self.folders.sweep(self.info)
                self.folders.make_folder(self.base, self.info, made)
                self.folders.stage(note, self.steps.under_way, (self.tree.record,))
                self.folders.put(note)
                self.folders.sync(self.base)
                self.folders.sync(self.info)
            self.check_removals()
            # The originals come last: what refuses an original also refuses its module, which the user knows.
            for content in groups:
                self.stage(content, targets, made)
            # Before the sources change, so that a kill in between cannot leave old code to run.
            self.remove_bytecode()
            begun = True
            yield
        except BaseException:
            self.folders.discard(map(disk.waiting, targets))
            if not begun:
                # The note of a killed run stays until what that run left is tidied up.
                self.folders.discard([] if self.steps.unclean else [note], made)
            raise

    def stage(self, content: Mapping[str, bytes], targets: list[str], made: list[str]) -> None:
        problems: list[Problem] = []
        originals = f"{self.base}/originals/"
        for path, new in content.items():
            # An original is as private as its module; a module that was deleted comes back as private as its original.
            twin = path.removeprefix(originals) if path.startswith(originals) else originals + path
            with collecting(problems), naming("cannot write", path):
                self.folders.make_folder(parent(path), self.info, made)
                guard.check(self.folders, path, self.expected)
                targets.append(path)
                self.folders.stage(path, new, (twin, self.tree.record))
        raise_all(problems)
        for folder in made:
            with naming("cannot write", folder):
                self.folders.sync(parent(folder))

    def check_removals(self) -> None:
        problems: list[Problem] = []
        for path in self.steps.removed:
            with collecting(problems), naming("cannot remove", path):
                guard.check(self.folders, path, self.expected)
        with collecting(problems), naming("cannot tidy up", self.base):
            problems += guard.refusals(self.folders, self.leavings())
        raise_all(dict.fromkeys(problems))

    def put(self, paths: Iterable[str]) -> None:
        for path in paths:
            with naming("cannot write", path, LATER):
                self.folders.put(path)
        self.sync(paths)

    def sync(self, paths: Iterable[str]) -> None:
        for folder in sorted({parent(path) for path in paths}):
            with naming("cannot write", folder, LATER):
                self.folders.sync(folder)

    def remove_bytecode(self, hint: str = "") -> None:
        for path in (*self.steps.files, *self.steps.removed):
            with naming("cannot remove bytecode of", path, hint):
                self.folders.remove_bytecode(bytecode.twins(self.tree.root / path))

    def leavings(self) -> list[str]:
        # Before anything is changed: the files and folders that `tidy_up` will remove.
        going = self.going(self.steps.removed)
        if self.steps.ends:
            return [*going, self.base]
        dropped, new = self.steps.dropped, self.steps.originals
        kept = (f"{self.base}/originals", f"{self.base}/{backup.PATCHES}")
        empty = (path for folder in kept for path in guard.emptied(self.folders, folder, dropped, new))
        return [*going, *dropped, *empty, *self.strays()]

    def tidy_up(self) -> None:
        for folder in self.going():
            self.clear(folder)
        for path in (self.base,) if self.steps.ends else self.steps.dropped:
            self.folders.remove(path)
        if not self.steps.ends:
            for folder in ("originals", backup.PATCHES):
                self.folders.prune(f"{self.base}/{folder}")
            for stray in self.strays():
                self.folders.remove(stray)
            self.folders.sync(self.base)
        self.folders.sync(self.info)

    def strays(self) -> list[str]:
        """List what does not belong in the folder of what is kept, the note included."""
        strays = self.folders.names(self.base) - backup.NAMES - {backup.PATCHES}
        return [f"{self.base}/{name}" for name in sorted(strays)]

    def going(self, removed: Collection[str] = ()) -> list[str]:
        """List the outermost folders of added files that will hold nothing but bytecode."""
        found: list[str] = []
        for folder in (_COMPANIONS, *self.steps.folders):
            if not any(f"{folder}/".startswith(f"{above}/") for above in found) and self.is_left(folder, removed):
                found.append(folder)
        return found

    def clear(self, folder: str) -> None:
        """Remove bytecode and empty folders; a file that another program puts there meanwhile stays."""
        above = self.folders.root / parent(folder)
        caches = ((above / at, files) for at, _, files, _ in self.folders.walk(folder) if at.endswith("/__pycache__"))
        self.folders.remove_bytecode([at / name for at, files in caches for name in files if name.endswith(".pyc")])
        self.folders.prune(folder)
        self.folders.sync(parent(folder))

    def is_left(self, folder: str, removed: Collection[str]) -> bool:
        """Whether a folder will hold nothing but bytecode; a file, or a link to a folder, is a user's."""
        walked = False
        if any(path.startswith(f"{folder}/") for path in self.steps.files):
            return False
        with suppress(FileNotFoundError, NotADirectoryError):
            for where, inner, files, at in self.folders.walk(folder):
                here, walked = f"{parent(folder)}/{where}", True
                suffix = ".pyc" if PurePosixPath(where).name == "__pycache__" else "\0"
                stay = [name for name in files if not name.endswith(suffix) and f"{here}/{name}" not in removed]
                if stay or not all(disk.is_folder(name, at) for name in inner):
                    return False
        return walked
