"""A vLLM source checkout: git has the originals, and knows what users changed."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from vpatch.core.marks import marks_in
from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Failure, Problem, naming
from vpatch.foreign import parse_json, read_regular
from vpatch.installation import how_to_add
from vpatch.tree import bytecode, disk, guard
from vpatch.tree.apply import Writes
from vpatch.tree.backup import STAGED, hashes_in, is_companion, sha256
from vpatch.tree.disk import Folders, parent
from vpatch.tree.guard import locked
from vpatch.tree.locate import Reads, Tree
from vpatch.tree.transaction import LATER, collecting

if TYPE_CHECKING:
    from git import Repo


@dataclass(frozen=True)
class _Git:
    """What git reports about a checkout, and what vpatch noted in the repository."""

    head: str  # the commit that is checked out
    differing: tuple[str, ...]  # the Python files below `vllm/` that differ from the commit, unknown ones included
    staged: tuple[str, ...]  # the files that a killed run staged
    written: Mapping[str, Sequence[str]]  # hashes of what vpatch wrote: they tell users' edits apart


class Checkout:
    """A source checkout, a `vpatch.tree.apply.Snapshot`; its originals are those of the commit that is checked out.

    A file is vpatch's own work if it has marks and the commit's has none. What else differs from the commit is a user's
    change, and is never overwritten.
    """

    def __init__(self, tree: Tree, repo: Repo) -> None:
        self.tree = tree
        self._reads = Reads(tree)
        self.repo = repo
        self._committed: dict[str, bytes | None] = {}

    @classmethod
    def at(cls, tree: Tree) -> Checkout:
        """Open the repository at the root of `tree`."""
        try:
            from git import Repo
        except ImportError as error:
            cause = f"a source checkout needs git and gitpython: {how_to_add('git')}"
            raise Failure(Problem("cannot read the checkout", str(tree.root), cause)) from error
        with _naming(tree.root):
            repo = Repo(tree.root)
            tag = repo.git.describe(tags=True, always=True, dirty=False)
        return cls(replace(tree, version=tag.removeprefix("v")), repo)

    def snapshot(self) -> Checkout:
        """Begin another run."""
        return Checkout(self.tree, self.repo)

    def read(self, path: str) -> bytes | None:
        """Read a file; return None if it does not exist."""
        return self._reads.read(path)

    @cached_property
    def git(self) -> _Git:
        """What git reports."""
        with _naming(self.tree.root):
            head = self.repo.git.rev_parse("HEAD")
            changed = self.repo.git.diff("HEAD", "--name-only", "--no-renames", "-z", "--", "vllm").split("\0")
            unknown = str(self.repo.git.ls_files("--others", "-z", "--", "vllm")).split("\0")
        try:
            written = {file: hashes_in(said) for file, said in parse_json(read_regular(self._ledger)).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            written = {}
        differing = tuple(name for name in (*changed, *unknown) if name.endswith(".py"))
        return _Git(head, differing, tuple(name for name in unknown if name.endswith(STAGED)), written)

    def committed(self, file: str) -> bytes | None:
        """Return a file as the commit would check it out, line endings and filters included."""
        if file not in self._committed:
            with _naming(self.tree.root):
                known = self.repo.git.ls_tree("HEAD", "--", file)
                options = {"strip_newline_in_stdout": False, "stdout_as_string": False}
                found = self.repo.git.cat_file("--filters", f"HEAD:{file}", **options) if known else None
            self._committed[file] = None if found is None else bytes(found)
        return self._committed[file]

    @property
    def originals(self) -> Mapping[str, bytes | None]:
        """The bytes of the commit."""
        files = [file for file in self.git.differing if marks_in(self.read(file) or b"")]
        return {file: self.committed(file) for file in files if not marks_in(self.committed(file) or b"")}

    @property
    def unrecognized(self) -> tuple[str, ...]:
        """The files whose hash is not noted in the repository."""
        return tuple(file for file in self.originals if self._edited(file))

    def lock(self) -> AbstractContextManager[None]:
        """Lock the repository's git folder."""
        return locked(Path(self.repo.git_dir), self.tree.root, "vpatch.lock", os.O_RDWR | os.O_CREAT)

    def refresh(self) -> bool:
        """Read files and ask git again; return whether something differs."""
        before = self.git
        del self.git
        self._committed.clear()
        return self._reads.refresh() or self.git != before

    def decide(
        self, desired: Mapping[str, bytes], note: object, *, on_edits: bool, made: Mapping[str, bytes]
    ) -> Writes:
        """Compare the files with `desired`, see `Snapshot.decide`; nothing is kept of `note`."""
        wanted = {**self.originals, **desired}
        todo = {file: new for file, new in sorted(wanted.items()) if new != self.read(file)}
        edited = tuple(file for file in sorted(wanted) if self._edited(file) and self.read(file) != made.get(file))
        if problems := [problem for file in todo for problem in self._unsafe(file, () if on_edits else edited)]:
            raise Failure(*problems)
        work = bool(todo) or not self._is_tidy()
        return Writes(tuple(todo), edited, work, partial(self._carry_out, wanted, todo, edited))

    def _unsafe(self, file: str, edited: Collection[str]) -> Iterator[Problem]:
        now, committed = self.read(file), self.committed(file)
        if committed is None and not is_companion(file):
            yield Problem("unknown file", file, "git does not have it: there would be nothing to revert to")
        elif now != committed and not marks_in(now or b"") and not (now is None and is_companion(file)):
            yield Problem("dirty file", file, "it has uncommitted changes: commit or stash them, and run again")
        elif file in edited:
            yield Problem("edited after vpatch", file, "undo the edit, and run again; or `git checkout` the file")

    def _edited(self, file: str) -> bool:
        """Whether a file is neither as committed nor as vpatch wrote it."""
        now = self.read(file)
        return now not in (None, self.committed(file)) and sha256(now or b"") not in self.git.written.get(file, [])

    def _is_tidy(self) -> bool:
        """Whether no killed run left anything, an empty folder of companions included."""
        companions = self.tree.root / COMPANIONS
        return not self.git.staged and (not companions.is_dir() or any(companions.glob("*.py")))

    @property
    def _ledger(self) -> Path:
        return Path(self.repo.git_dir) / "vpatch.json"

    def _note(self, written: Mapping[str, Sequence[str]]) -> None:
        with naming("cannot write", str(self._ledger)), Folders(Path(self.repo.git_dir).resolve()) as folders:
            folders.stage(self._ledger.name, json.dumps(written, indent=1).encode(), ("HEAD",))
            folders.put(self._ledger.name)

    def _carry_out(
        self, wanted: Mapping[str, bytes | None], todo: Mapping[str, bytes | None], edited: Collection[str]
    ) -> None:
        before = self.git.written
        # The hashes of an edited file stay those from before the edit, so that `revert` goes on refusing it.
        ours = {
            file: before.get(file, []) if file in edited else [sha256(new)]
            for file, new in wanted.items()
            if new is not None and marks_in(new)
        }
        with Folders(self.tree.root) as folders:
            folders.discard(self.git.staged)
            made: list[str] = []
            try:
                self._stage(folders, todo, made)
                # What is being written, and what was: a kill from here on may leave either.
                self._note({file: [*before.get(file, []), *ours.get(file, [])] for file in {**before, **ours}})
            except BaseException:
                folders.discard(map(disk.waiting, todo), made)
                with suppress(OSError), Folders(Path(self.repo.git_dir).resolve()) as own:
                    own.discard([disk.waiting(self._ledger.name)])
                raise
            for file in sorted(todo, key=lambda file: (not is_companion(file), file)):
                with naming("cannot write", file, LATER):
                    folders.remove(file) if todo[file] is None else folders.put(file)
                    folders.remove_bytecode(bytecode.twins(folders.root / file))
                    folders.sync(parent(file))
            with naming("cannot tidy up", COMPANIONS, LATER):
                folders.prune(COMPANIONS)
            self._note(ours)

    def _stage(self, folders: Folders, todo: Mapping[str, bytes | None], made: list[str]) -> None:
        problems: list[Problem] = []
        for file, new in todo.items():
            with collecting(problems), naming("cannot write" if new is not None else "cannot remove", file):
                if new is not None:
                    folders.make_folder(parent(file), "vllm", made)
                guard.check(folders, file, self._reads.loaded)
                if new is not None:
                    folders.stage(file, new, ("vllm/__init__.py",))
        for file in todo if not problems else ():
            with naming("cannot remove bytecode of", file):
                folders.remove_bytecode(bytecode.twins(folders.root / file))
        with naming("cannot tidy up", COMPANIONS):
            gone = [file for file, new in todo.items() if new is None]
            empty = guard.emptied(folders, COMPANIONS.rstrip("/"), gone, todo.keys() - gone)
            problems += guard.refusals(folders, empty)
        if problems:
            raise Failure(*dict.fromkeys(problems))


@contextmanager
def _naming(root: Path) -> Iterator[None]:
    from git import GitError

    try:
        yield
    except (GitError, OSError, ValueError) as error:
        told = " ".join(str(getattr(error, "stderr", "") or error).split())
        cause = "there is a .git, and yet no repository" if told == str(root) else told
        raise Failure(Problem("git fails", str(root), cause)) from error
