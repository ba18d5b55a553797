"""A vLLM source checkout: git has the originals, and knows what somebody else changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from vpatch.core.marks import marks_in
from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Failure, Problem, naming
from vpatch.tree import bytecode, cleanup, disk, precheck
from vpatch.tree.backup import STAGED, is_companion, sha256
from vpatch.tree.folders import Folders
from vpatch.tree.lock import locked
from vpatch.tree.store import is_pristine
from vpatch.tree.tree import Site

if TYPE_CHECKING:
    from git import Repo


@contextmanager
def _naming(root: Path) -> Iterator[None]:
    """Turn an error of git's into a failure."""
    from git import GitError

    try:
        yield
    except (GitError, OSError, ValueError) as error:
        told = " ".join(str(getattr(error, "stderr", "") or error).split())
        cause = "there is a .git, and yet no repository" if told == str(root) else told
        raise Failure(Problem("git fails", str(root), cause)) from error


@dataclass(frozen=True)
class Checkout:
    """A source checkout; its originals are those of the commit that is checked out.

    A file is vpatch's own work if it carries marks and that commit's has none. What else differs from the commit is
    somebody's, and is never written over.
    """

    site: Site
    repo: Repo
    _blobs: dict[str, bytes | None] = field(default_factory=dict, compare=False)

    @classmethod
    def at(cls, site: Site) -> Checkout:
        """Open the repository at the root of `site`.

        Raises:
            Failure: gitpython is not installed, or there is no repository with a commit.
        """
        try:
            from git import Repo
        except ImportError as error:
            cause = "a source checkout needs git and gitpython: pip install 'vpatch[git]'"
            raise Failure(Problem("cannot read the checkout", str(site.root), cause)) from error
        with _naming(site.root):
            repo = Repo(site.root)
            tag = repo.git.describe(tags=True, always=True, dirty=False)
        return cls(replace(site, version=tag.removeprefix("v")), repo)

    def _committed(self, file: str) -> bytes | None:
        """Give a file as the commit would check it out, line endings and filters included."""
        if file not in self._blobs:
            self._blobs[file] = self._checked_out(file)
        return self._blobs[file]

    def _checked_out(self, file: str) -> bytes | None:
        with _naming(self.site.root):
            if not self.repo.git.ls_tree("HEAD", "--", file):
                return None
            found = self.repo.git.cat_file(
                "--filters", f"HEAD:{file}", strip_newline_in_stdout=False, stdout_as_string=False
            )
        return bytes(found)

    @property
    def _ledger(self) -> Path:
        return Path(self.repo.git_dir) / "vpatch.json"

    def _written(self) -> dict[str, list[str]]:
        """Give the hashes of what vpatch wrote, by file. It decides no state: it only tells edits from our own work."""
        try:
            return dict(json.loads(self._ledger.read_bytes()))
        except (OSError, ValueError, TypeError):
            return {}

    def _note(self, written: Mapping[str, list[str]]) -> None:
        with naming("cannot write", str(self._ledger)), Folders(Path(self.repo.git_dir).resolve()) as folders:
            disk.stage(folders, self._ledger.name, json.dumps(written, indent=1).encode(), ("HEAD",))
            disk.put(folders, self._ledger.name)

    def _differing(self) -> list[str]:
        with _naming(self.site.root):
            changed = self.repo.git.diff("HEAD", "--name-only", "--no-renames", "-z", "--", "vllm")
        return [name for name in (*changed.split("\0"), *self._unknown()) if name.endswith(".py")]

    def _unknown(self) -> list[str]:
        with _naming(self.site.root):
            return str(self.repo.git.ls_files("--others", "-z", "--", "vllm")).split("\0")

    def _left(self) -> list[str]:
        """Return the files that a killed run staged."""
        return [name for name in self._unknown() if name.endswith(STAGED)]

    def _is_tidy(self) -> bool:
        """Tell whether no killed run left anything, an empty folder of companions included."""
        companions = self.site.root / COMPANIONS
        return not self._left() and (not companions.is_dir() or any(companions.glob("*.py")))

    def originals(self) -> Mapping[str, bytes | None]:
        """Take them from the commit."""
        found = {}
        for file in self._differing():
            committed = self._committed(file)
            if marks_in(self.site.read(file) or b"") and not marks_in(committed or b""):
                found[file] = committed
        return found

    def settled(self, desired: Mapping[str, bytes], note: object) -> bool:
        """Compare the files; something is to do, too, where a killed run left its own."""
        return self._is_tidy() and all(self.site.read(file) == new for file, new in self._wanted(desired).items())

    def _wanted(self, desired: Mapping[str, bytes]) -> dict[str, bytes | None]:
        return {**self.originals(), **desired}

    def lock(self) -> AbstractContextManager[None]:
        """Lock the repository's folder of git's."""
        return locked(Path(self.repo.git_dir), self.site.root, "vpatch.lock", os.O_RDWR | os.O_CREAT)

    def settle(self, desired: Mapping[str, bytes], note: object, *, on_edits: bool) -> tuple[str, ...]:
        """Stage beside the files, then rename one by one, companions first; of `note` nothing is kept."""
        wanted = self._wanted(desired)
        todo = {f: new for f, new in sorted(wanted.items()) if new != self.site.read(f)}
        if problems := [p for file in todo for p in self._unsafe(file, on_edits=on_edits)]:
            raise Failure(*problems)
        with Folders(self.site.root) as tree:
            self._write(tree, wanted, todo)
        return tuple(todo)

    def _write(self, tree: Folders, wanted: Mapping[str, bytes | None], todo: Mapping[str, bytes | None]) -> None:
        disk.discard(tree, self._left())
        before = self._written()
        # The hashes of an edited file stay those from before the edit, so that `revert` goes on refusing it.
        ours = {
            file: before.get(file, []) if self._edited(file) else [sha256(new)]
            for file, new in wanted.items()
            if new is not None and not is_pristine(file, new)
        }
        made: list[str] = []
        try:
            self._stage(tree, todo, made)
            # What is being written, and what was: a kill from here on may leave either.
            self._note({file: [*before.get(file, []), *ours.get(file, [])] for file in {**before, **ours}})
        except BaseException:
            disk.discard(tree, map(disk.waiting, todo), made)
            with suppress(OSError), Folders(Path(self.repo.git_dir).resolve()) as folders:
                disk.discard(folders, [disk.waiting(self._ledger.name)])
            raise
        later = "; the next run completes what this one began"
        for file in sorted(todo, key=lambda file: (not is_companion(file), file)):
            with naming("cannot write", file, later):
                disk.remove(tree, file) if todo[file] is None else disk.put(tree, file)
                twins = bytecode.twins(tree.root / file)
                disk.remove_files(tree, (twin.relative_to(tree.root).as_posix() for twin in twins))
                disk.sync(tree, str(PurePosixPath(file).parent))
        with naming("cannot tidy up", COMPANIONS, later):
            disk.prune(tree, COMPANIONS)
        self._note(ours)

    def _stage(self, tree: Folders, todo: Mapping[str, bytes | None], made: list[str]) -> None:
        problems: list[Problem] = []
        for file, new in todo.items():
            try:
                with naming("cannot write" if new is not None else "cannot remove", file):
                    if new is not None:
                        disk.make_folder(tree, str(PurePosixPath(file).parent), "vllm", made)
                    precheck.check(tree, file, {file: self.site.read(file)})
                    if new is not None:
                        disk.stage(tree, file, new, ("vllm/__init__.py",))
            except Failure as failure:
                problems += failure.problems
        for file in todo if not problems else ():
            with naming("cannot remove bytecode of", file):
                twins = bytecode.twins(tree.root / file)
                disk.remove_files(tree, (twin.relative_to(tree.root).as_posix() for twin in twins))
        with naming("cannot tidy up", COMPANIONS):
            gone = [file for file, new in todo.items() if new is None]
            problems += cleanup.refused(tree, cleanup.emptied(tree, COMPANIONS.rstrip("/"), gone, todo.keys() - gone))
        if problems:
            raise Failure(*dict.fromkeys(problems))

    def _edited(self, file: str) -> bool:
        """Tell whether a file is neither as committed nor as vpatch wrote it."""
        now = self.site.read(file)
        return now not in (None, self._committed(file)) and sha256(now or b"") not in self._written().get(file, [])

    def _unsafe(self, file: str, *, on_edits: bool) -> Iterator[Problem]:
        now, committed = self.site.read(file), self._committed(file)
        if committed is None and not is_companion(file):
            yield Problem("unknown file", file, "git does not have it: there would be nothing to revert to")
        elif now != committed and not marks_in(now or b"") and not (now is None and is_companion(file)):
            yield Problem("dirty file", file, "it has uncommitted changes: commit or stash them, and run again")
        elif not on_edits and self._edited(file):
            yield Problem("edited after vpatch", file, "undo the edit, and run again; or `git checkout` the file")
