"""A vLLM at a git revision: its files are read from the object store, and nothing is checked out."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem
from vpatch.matrix.git_fetch import environment, fetch_blobs, fetch_commit, hidden, is_url, missing, shown
from vpatch.matrix.verdicts import Tree, parsed_version

if TYPE_CHECKING:
    from git import Git

_LINK = "120000"
_SUBMODULE = "160000"


@dataclass(frozen=True)
class Revision:
    """A revision of a repository: a folder, with or without a checkout, or a URL.

    A folder is read where it lies, and not changed; it may be any revision that git knows. Of a URL one commit is
    fetched, into a temporary folder; `rev` is then a branch, a tag or the whole id of a commit.
    """

    address: str
    rev: str

    @property
    def name(self) -> str:
        """The revision as it was given."""
        return self.rev

    def read(self, files: Collection[str]) -> Tree:
        """Read these files as git stores them. The version is that of a tag that the commit has, if any.

        Raises:
            Failure: git or gitpython is not there, nor the repository or the revision, no vLLM is in it, a wanted file
                is no plain one, or a server does not answer.
        """
        where = shown(self.address)
        for what, given in (("address", where), ("revision", self.rev)):
            if given.startswith("-"):
                raise Failure(Problem("cannot read", given, f"a git {what} cannot begin with a hyphen"))
        folder = Path(self.address)
        with _naming(self.address):
            if folder.is_dir():
                git_dir = folder / ".git"
                return self._tree(git_dir if git_dir.exists() else folder, "", files)
            if not is_url(self.address):
                raise Failure(Problem("cannot read", where, "there is no such folder, and it is no URL"))
            with _temporary() as made:
                return self._tree(made, fetch_commit(self.address, self.rev, made), files)

    def _tree(self, git_dir: Path, fetched: str, files: Collection[str]) -> Tree:
        """Read the files of the commit that was fetched, if one was."""
        from git import Git

        git = Git(git_dir.parent if git_dir.name == ".git" else git_dir)
        git.update_environment(**environment(git_dir.absolute()))
        commit = fetched or self._resolved(git)
        blobs = _blobs(git, commit, files, f"{shown(self.address)} {self.rev}")
        if fetched and blobs:
            fetch_blobs(self.address, self.rev, git_dir, set(blobs.values()))
        return Tree(
            files={file: _content(git, blob) for file, blob in blobs.items()},
            version=_version(git, commit),
            origin=f"{shown(self.address)} {commit}",
            received=sum(pack.stat().st_size for pack in git_dir.glob("objects/pack/*.pack")) if fetched else 0,
        )

    def _resolved(self, git: Git) -> str:
        from git import GitCommandError

        git.rev_parse("--git-dir")
        try:
            # In two steps, as `:/text` takes all that follows for text.
            found = git.rev_parse("--quiet", "--verify", self.rev)
            return str(git.rev_parse("--quiet", "--verify", f"{found}^{{commit}}"))
        except GitCommandError as error:
            raise missing(self.address, f"{self.rev}: git knows no commit by that name there") from error


@contextmanager
def _temporary() -> Iterator[Path]:
    """Give a folder that is gone afterwards, and at the program's end, if this thread does not come so far."""
    made = Path(tempfile.mkdtemp(prefix="vpatch-git-"))
    remove = partial(shutil.rmtree, made, ignore_errors=True)
    atexit.register(remove)
    try:
        yield made
    finally:
        remove()
        atexit.unregister(remove)


@contextmanager
def _naming(address: str) -> Iterator[None]:
    """Turn what git and gitpython raise into a failure."""
    try:
        from git import GitError
    except ImportError as error:
        cause = "a git revision needs git and gitpython: pip install 'vpatch[git]'"
        raise Failure(Problem("cannot read", shown(address), cause)) from error
    try:
        yield
    except (GitError, OSError) as error:
        told = " ".join(str(getattr(error, "stderr", "") or error).split())
        cause = re.sub(r"^stderr: '(fatal: )?(.*)'$", r"\2", told)
        raise Failure(Problem("cannot read", shown(address), hidden(cause, address))) from error


def _blobs(git: Git, commit: str, files: Collection[str], where: str) -> Mapping[str, str]:
    """Give the ids of the files' contents, of those that are there."""
    listed = git.ls_tree("-r", "-z", "--full-tree", commit).split("\0")
    entries = {path: head.split() for head, _, path in (line.partition("\t") for line in listed if line)}
    if not any(path.startswith("vllm/") for path in entries):
        raise Failure(Problem("no vLLM", where, "it has no folder vllm/"))
    wanted = {place for file in files for place in (file, *map(str, Path(file).parents))}
    what = {_LINK: "a symbolic link", _SUBMODULE: "a submodule"}
    odd = [
        Problem("not a plain file", where, f"{path} is {what[mode]}")
        for path, (mode, _, _) in entries.items()
        if path in wanted and mode in what
    ]
    if odd:
        raise Failure(*odd)
    return {file: entries[file][2] for file in files if file in entries}


def _content(git: Git, blob: str) -> bytes:
    return bytes(git.cat_file("blob", blob, strip_newline_in_stdout=False, stdout_as_string=False))


def _version(git: Git, commit: str) -> str | None:
    """Give the newest version that a tag of this very commit says."""
    tags = git.for_each_ref("refs/tags", points_at=commit, format="%(refname:lstrip=2)").split()
    versions = [version for tag in tags if (version := parsed_version(tag))]
    return str(max(versions)) if versions else None
