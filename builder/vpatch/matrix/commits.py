"""The commits of a branch, and the vLLM that they are based on, read from a repository without any checkout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from vpatch.core.listing import among, is_folder
from vpatch.errors import Failure, Problem
from vpatch.matrix.trees import Revision, entries_of, naming_git
from vpatch.matrix.verdicts import parsed_version
from vpatch.tree.checkout import plumbing

if TYPE_CHECKING:
    from git import Git

COMMITS = 1000
_RAW: dict[str, Any] = {"strip_newline_in_stdout": False, "stdout_as_string": False}
# A repository can have programs for its diffs. `diff-tree -p` also refreshes the index, and that runs others.
_WITHOUT_INDEX = {
    "GIT_INDEX_FILE": "/nonexistent/index",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "core.fsmonitor",
    "GIT_CONFIG_VALUE_0": "false",
}
_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--full-index", "--ignore-submodules=none")
_FAILED = "cannot read commits"


@dataclass(frozen=True)
class Commit:
    """A commit.

    Attributes:
        id: its whole id.
        mail: its author, subject and message, as `git format-patch` writes them.
        diff: its diff against its parent.
    """

    id: str
    mail: bytes
    diff: bytes


@dataclass(frozen=True)
class CommitRange:
    """The commits of a range, the oldest first, and the files of the commit that they are based on.

    Attributes:
        base: the id of that commit.
        version: its version by the newest tag before it, as setuptools-scm counts; None without a tag.
        commits: the commits.
    """

    base: str
    version: str | None
    commits: Sequence[Commit]
    _git: Git
    _address: str
    _entries: dict[str, Sequence[str]] = field(default_factory=dict)

    def read(self, file: str) -> bytes | None:
        """Return a file of the base, or the listing of a folder; None if the base does not have it."""
        with naming_git(self._address):
            if not self._entries:
                self._entries.update(entries_of(self._git, self.base, f"{self._address} {self.base}"))
            if is_folder(file):
                return among(self._entries, file)
            mode, kind, blob = self._entries.get(file, ("", "", ""))
            if kind != "blob" or mode == "120000":  # a link
                return None
            return bytes(self._git.cat_file("blob", blob, **_RAW))


def commits_of(address: str, span: str) -> CommitRange:
    """Read the commits of a range, such as `v0.31.0..my-branch`; without an end, it ends with HEAD.

    The base is the commit where the history of the end leaves that of the start.

    Args:
        address: the folder of a repository, with or without a checkout.
        span: the range.

    Raises:
        Failure: the repository or a commit does not exist, or the commits are not in a line.
    """
    start, dots, end = span.partition("..")
    if not start or not dots or end.startswith("."):
        raise Failure(Problem(_FAILED, span, "a range reads like v0.31.0..my-branch"))
    if not Path(address).is_dir():
        raise Failure(Problem(_FAILED, address, "there is no such folder", hint="clone the repository first"))
    with naming_git(address):
        git = plumbing(Path(address))
        git.update_environment(**_WITHOUT_INDEX)
        first, last = (Revision(address, rev).resolve(git) for rev in (start, end or "HEAD"))
        base = _fork(git, first, last, span)
        ids = [
            one.split() for one in git.rev_list("--reverse", "--topo-order", "--parents", f"{base}..{last}").split("\n")
        ]
        _check([one for one in ids if one], span)
        commits = [_commit(git, one[0]) for one in ids]
        return CommitRange(base, _version(git, base), commits, git, address)


def _fork(git: Git, first: str, last: str, span: str) -> str:
    from git import GitCommandError

    try:
        return str(git.merge_base(first, last))
    except GitCommandError as error:
        raise Failure(Problem(_FAILED, span, "the two have no commit in common")) from error


def _check(ids: Sequence[Sequence[str]], span: str) -> None:
    if not ids:
        raise Failure(Problem(_FAILED, span, "it has no commits"))
    if len(ids) > COMMITS:
        raise Failure(Problem(_FAILED, span, f"it has {len(ids):,} commits, more than {COMMITS:,}"))
    if merge := next((one[0] for one in ids if len(one) > 2), ""):
        cause = f"{merge[:12]} is a merge, and has no patch of its own"
        raise Failure(Problem(_FAILED, span, cause, hint="rebase the branch, or name a range without it"))


def _commit(git: Git, name: str) -> Commit:
    mail = git.diff_tree("-s", "--pretty=email", "--encoding=UTF-8", "--no-notes", name, **_RAW)
    diff = git.diff_tree("-p", "-r", "--no-commit-id", *_DIFF, name, **_RAW)
    return Commit(name, bytes(mail), bytes(diff))


def _version(git: Git, commit: str) -> str | None:
    from git import GitCommandError

    tags = git.for_each_ref("refs/tags", points_at=commit, format="%(refname:lstrip=2)").split()
    if versions := [version for tag in tags if (version := parsed_version(tag))]:
        return str(max(versions))
    try:
        described = git.describe("--tags", "--long", "--abbrev=9", "--match=v[0-9]*", commit)
    except GitCommandError:  # no tag
        return None
    tag, count, name = str(described).rsplit("-", 2)
    version = parsed_version(tag)
    return None if version is None else f"{_next(version)}.dev{count}+{name}"


def _next(version: Version) -> str:
    """Return the version that follows: vLLM's own builds between two tags are `.devN` of it."""
    if version.pre:
        return f"{version.base_version}{version.pre[0]}{version.pre[1] + 1}"
    *head, last = version.release
    return ".".join(map(str, (*head, last + 1)))
