"""A vLLM source checkout: git has the originals, and knows what users changed."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from vpatch import manifest
from vpatch.core.marks import begins_marked, data_marked, marks_in
from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Failure, Problem, collecting, naming, raise_all
from vpatch.foreign import parse_json, read_regular
from vpatch.installation import how_to_add
from vpatch.manifest import sha256
from vpatch.tree import bytecode, disk, guard
from vpatch.tree.apply import Writes
from vpatch.tree.backup import STAGED, is_companion
from vpatch.tree.disk import Folders, parent
from vpatch.tree.guard import locked
from vpatch.tree.locate import Reads, Tree
from vpatch.tree.standing import ways_out
from vpatch.tree.transaction import LATER

_CONVERSIONS = ("filter", "ident", "working-tree-encoding")  # besides line endings
_NO_CONVERSION = ("unspecified", "unset")

if TYPE_CHECKING:
    from git import Git


@dataclass(frozen=True)
class _Found:
    """What git has of a checkout, what is in its files, and what vpatch noted in the repository."""

    blobs: Mapping[str, str]  # the ids of the files below `vllm/` in the commit that is checked out
    marked: tuple[str, ...]  # the Python files below `vllm/` that carry marks, and the data files that these mark
    staged: tuple[str, ...]  # the files that a killed run staged
    written: Mapping[str, Sequence[str]]  # hashes of what vpatch wrote: they tell users' edits apart


class Checkout:
    """A source checkout, a `vpatch.tree.apply.Snapshot`; its originals are those of the commit that is checked out.

    A file is vpatch's own work if it has marks and the commit's has none. What else differs from the commit is a user's
    change, and is never overwritten. Files are compared here and not by git, see `plumbing`.
    """

    def __init__(self, tree: Tree, git: Git, git_dir: Path) -> None:
        self.tree = tree
        self._reads = Reads(tree)
        self.git = git
        self.git_dir = git_dir
        self._committed: dict[str, bytes | None] = {}

    @classmethod
    def at(cls, tree: Tree) -> Checkout:
        """Open the repository at the root of `tree`."""
        try:
            git = plumbing(tree.root)
        except ImportError as error:
            cause = f"a source checkout needs git and gitpython: {how_to_add('git')}"
            raise Failure(Problem("cannot read the checkout", str(tree.root), cause)) from error
        with _naming(tree.root):
            git_dir = Path(git.rev_parse("--absolute-git-dir"))
            tag = git.describe(tags=True, always=True, dirty=False)
        return cls(replace(tree, version=tag.removeprefix("v")), git, git_dir)

    def snapshot(self) -> Checkout:
        """Begin another run."""
        return Checkout(self.tree, self.git, self.git_dir)

    def read(self, path: str) -> bytes | None:
        """Read a file; return None if it does not exist."""
        return self._reads.read(path)

    @cached_property
    def found(self) -> _Found:
        """What the commit and the files have."""
        with _naming(self.tree.root):
            listed = str(self.git.ls_tree("-r", "-z", "--full-tree", "HEAD", "--", "vllm")).split("\0")
        entries = [(*head.split(), path) for head, _, path in (line.partition("\t") for line in listed if line)]
        blobs = {path: name for _mode, kind, name, path in entries if kind == "blob"}
        try:
            known = manifest.files_in(parse_json(read_regular(self._ledger)))
            written = {file: found.after for file, found in known.items()}
        except (OSError, ValueError):
            written = {}
        files = list(_files(self.tree.root))
        modules = (file for file in files if file.endswith(".py"))
        marked = tuple(file for file in modules if b"vpatch" in (now := self._now(file)) and marks_in(now))
        texts = (one for file in marked if is_companion(file) for one in data_marked(self._now(file)))
        data = tuple(one for one in texts if one in written)  # others had the text before vpatch came
        staged = tuple(name for name in files if name.endswith(STAGED))
        return _Found(blobs, (*marked, *data), staged, written)

    def _now(self, file: str) -> bytes:
        """Return the content of a file that may be anything; empty if it is no file that vpatch could have written."""
        if loaded := self._reads.loaded.get(file):
            return loaded.content
        try:
            return read_regular(self.tree.root / file)
        except OSError:
            return b""

    def committed(self, file: str) -> bytes | None:
        """Return a file of the commit, with the line endings that it has in the checkout."""
        if file not in self._committed:
            blob = self.found.blobs.get(file)
            raw = {"strip_newline_in_stdout": False, "stdout_as_string": False}
            with _naming(self.tree.root):
                stored = None if blob is None else bytes(self.git.cat_file("blob", blob, **raw))
            self._committed[file] = stored and _as_in(self.read(file) or b"", stored)
        return self._committed[file]

    @property
    def originals(self) -> Mapping[str, bytes | None]:
        """The bytes of the commit."""
        files = self.found.marked
        return {file: self.committed(file) for file in files if not marks_in(self.committed(file) or b"")}

    @property
    def unrecognized(self) -> tuple[str, ...]:
        """The files whose hash is not noted in the repository."""
        return tuple(file for file in self.originals if self._edited(file))

    def lock(self) -> AbstractContextManager[None]:
        """Lock the repository's git folder."""
        return locked(self.git_dir, self.tree.root, "vpatch.lock", os.O_RDWR | os.O_CREAT)

    def refresh(self) -> bool:
        """Read files and ask git again; return whether something differs."""
        before, changed = self.found, self._reads.refresh()
        del self.found
        self._committed.clear()
        return changed or self.found != before

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
        """Compare the files with `desired`, see `Snapshot.decide`; nothing is kept of `note` and `patches`."""
        wanted = {**self.originals, **desired}
        todo = {file: new for file, new in sorted(wanted.items()) if new != self.read(file)}
        foreign = (file for file in sorted(wanted) if self._edited(file) and self.read(file) != made.get(file))
        edited = tuple(file for file in foreign if not (discard and file in todo))
        raise_all(problem for file in todo for problem in self._unsafe(file, () if on_edits else edited))
        work = bool(todo) or not self._is_tidy()
        return Writes(tuple(todo), edited, work, partial(self._carry_out, wanted, todo, edited), files=todo)

    def _unsafe(self, file: str, edited: Collection[str]) -> Iterator[Problem]:
        now, committed, adds = self.read(file), self.committed(file), self._adds(file)
        if committed is None and not adds:
            yield Problem("unknown file", file, "git does not have it: there would be nothing to revert to")
        elif now != committed and not self._wrote(file) and not (now is None and adds):
            yield Problem("dirty file", file, self._why_dirty(file))
        elif file in edited:
            cause = "an edit that is not vpatch's would be lost"
            yield Problem("edited after vpatch", file, cause, hint=ways_out(self.tree.root, keep=False))

    def _adds(self, file: str) -> bool:
        """Whether vpatch adds the file, or has added it."""
        now = self.read(file)
        added = now is None or (begins_marked(now) if file.endswith(".py") else self._wrote(file))
        return is_companion(file) or (self.committed(file) is None and added)

    def _wrote(self, file: str) -> bool:
        """Whether vpatch wrote a file that differs from the commit: it has marks, or is a data file that is noted."""
        return bool(marks_in(self.read(file) or b"")) or (not file.endswith(".py") and file in self.found.written)

    def _why_dirty(self, file: str) -> str:
        with _naming(self.tree.root):
            answer = str(self.git.check_attr("-z", *_CONVERSIONS, "--", file)).split("\0")
        if found := [
            name for name, value in zip(answer[1::3], answer[2::3], strict=False) if value not in _NO_CONVERSION
        ]:
            return f"git converts it on checkout, by the attribute {found[0]}, and vpatch runs no program for that"
        return "it has uncommitted changes: commit or stash them, and run again"

    def _edited(self, file: str) -> bool:
        """Whether a file is neither as committed nor as vpatch wrote it."""
        now = self.read(file)
        return now not in (None, self.committed(file)) and sha256(now or b"") not in self.found.written.get(file, [])

    def _is_tidy(self) -> bool:
        """Whether no killed run left anything, an empty folder of added files included."""
        folders = [self.tree.root / one for one in self._own_folders(self.found.written)]
        return not self.found.staged and not any(one.is_dir() and not _holds_files(one) for one in folders)

    def _own_folders(self, files: Iterable[str]) -> list[str]:
        """List the outermost folders of files in which git has nothing, and that of companions.

        As git does, vpatch removes them with their last file.
        """
        paths = (PurePosixPath(file) for file in files if file not in self.found.blobs)
        above = {str(folder) for path in paths for folder in [*path.parents][:-2]} | {COMPANIONS.rstrip("/")}
        found: list[str] = []
        for folder in sorted(above):
            inner = any(f"{folder}/".startswith(f"{one}/") for one in found)
            if not inner and not any(blob.startswith(f"{folder}/") for blob in self.found.blobs):
                found.append(folder)
        return found

    @property
    def _ledger(self) -> Path:
        return self.git_dir / "vpatch.json"

    def _note(self, written: Mapping[str, Sequence[str]]) -> None:
        with naming("cannot write", str(self._ledger)), Folders(self.git_dir.resolve()) as folders:
            folders.stage(self._ledger.name, json.dumps(written, indent=1).encode(), ("HEAD",))
            folders.put(self._ledger.name)

    def _carry_out(
        self, wanted: Mapping[str, bytes | None], todo: Mapping[str, bytes | None], edited: Collection[str]
    ) -> None:
        before = self.found.written
        # The hashes of an edited file stay those from before the edit, so that `revert` goes on refusing it.
        ours = {
            file: before.get(file, []) if file in edited else [sha256(new)]
            for file, new in wanted.items()
            if new is not None and (marks_in(new) or (not file.endswith(".py") and new != self.committed(file)))
        }
        with Folders(self.tree.root) as folders:
            folders.discard(self.found.staged)
            made: list[str] = []
            own = self._own_folders([*todo, *before])
            try:
                # What is being written, and what was: a kill from here on may leave either, and new folders.
                self._note({file: [*before.get(file, []), *ours.get(file, [])] for file in {**before, **ours}})
                self._stage(folders, todo, made, own)
            except BaseException:
                folders.discard(map(disk.waiting, todo), made)
                with suppress(OSError), Folders(self.git_dir.resolve()) as git:
                    git.discard([disk.waiting(self._ledger.name)])
                raise
            # A module must never import one that is not there yet, or no longer.
            # Companions are there before what they mark, and after it.
            for file in sorted(todo, key=partial(self._turn, todo)):
                with naming("cannot write", file, LATER):
                    folders.remove(file) if todo[file] is None else folders.put(file)
                    folders.remove_bytecode(bytecode.twins(folders.root / file))
                    folders.sync(parent(file))
            for folder in own:
                with naming("cannot tidy up", folder, LATER):
                    folders.prune(folder)
            self._note(ours)

    def _turn(self, todo: Mapping[str, bytes | None], file: str) -> tuple[bool, bool, bool, str]:
        goes = todo[file] is None
        return goes, not self._adds(file), goes is is_companion(file), file

    def _stage(self, folders: Folders, todo: Mapping[str, bytes | None], made: list[str], own: Iterable[str]) -> None:
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
        gone = [file for file, new in todo.items() if new is None]
        for folder in own:
            with naming("cannot tidy up", folder):
                problems += guard.refusals(folders, guard.emptied(folders, folder, gone, todo.keys() - gone))
        raise_all(dict.fromkeys(problems))


def _holds_files(folder: Path) -> bool:
    """Whether a folder has more than bytecode in it."""
    return any(path.is_file() and path.suffix != ".pyc" for path in folder.rglob("*"))


def _files(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root / "vllm"):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        below = folder[len(str(root)) :].lstrip("/")
        yield from (f"{below}/{name}" for name in sorted(names))


def _as_in(now: bytes, stored: bytes) -> bytes:
    """Return what git stores, with the line endings that the file has now: vpatch keeps them in what it writes.

    Attributes and settings say which it had, but a file that a user converted counts as unchanged there, too.
    """
    if b"\r" in stored or not now.count(b"\n") or now.count(b"\n") != now.count(b"\r\n"):
        return stored
    return stored.replace(b"\n", b"\r\n")


@contextmanager
def _naming(root: Path) -> Iterator[None]:
    from git import GitError

    try:
        yield
    except (GitError, OSError, ValueError) as error:
        message = " ".join(str(getattr(error, "stderr", "") or error).split())
        cause = "there is a .git, and yet no repository" if "not a git repository" in message else message
        raise Failure(Problem("git fails", str(root), cause)) from error


def plumbing(folder: Path, protocols: Sequence[str] = ()) -> Git:
    """Return git for the repository in a folder: a work tree, or without one.

    Whoever wrote the repository chose its settings and attributes: `core.fsmonitor`, filters, hooks, pagers, `ext::`
    addresses. So git is asked only by commands that read objects, references and attributes (`rev-parse`, `describe`,
    `ls-tree`, `cat-file blob`, `for-each-ref`, `check-attr`), and by none that compares the files of a work tree. It
    asks no questions, and fetches only by the named protocols, not even what a partial clone lacks.

    Raises:
        ImportError: there is no gitpython, or no git.
    """
    from git import Git

    git_dir = folder / ".git" if (folder / ".git").exists() else folder
    git = Git(folder)
    git.update_environment(
        GIT_DIR=str(git_dir.absolute()),  # both may be set for another repository, whose hook started vpatch
        GIT_WORK_TREE=str(folder.absolute()),  # not what `core.worktree` names
        GIT_ALLOW_PROTOCOL=":".join(protocols) or "none",
        GIT_NO_LAZY_FETCH="1",
        GIT_NO_REPLACE_OBJECTS="1",
        GIT_TERMINAL_PROMPT="0",
        SSH_ASKPASS_REQUIRE="never",  # nor is there a terminal, as a fetch runs in a session of its own
    )
    return git
