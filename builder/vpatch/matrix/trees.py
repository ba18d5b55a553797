"""vLLMs outside of wheels: in a folder, or at a git revision, which is read or fetched without any checkout."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from select import select
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from vpatch.core.listing import among, is_folder
from vpatch.errors import Failure, Problem
from vpatch.installation import how_to_add
from vpatch.matrix.verdicts import FilesRead, parsed_version
from vpatch.tree.checkout import plumbing
from vpatch.tree.locate import locate

if TYPE_CHECKING:
    from git import Git

_LINE = 2000  # characters of a message of git: a server can send any, and each address in it is looked at
SILENCE = 30.0  # seconds without any output after which a server counts as gone

# Without those that run commands, such as `ext::`, even if the user's settings rewrite an address to one.
_PROTOCOLS = ("file", "git", "http", "https", "ssh")
_REF = "refs/vpatch/rev"
_URL = r"((?:\w+::)?[\w+.-]+://)(.*)"
_UNADVERTISED = "unadvertised object"
_ODD = {"120000": "a symbolic link", "160000": "a submodule"}  # by mode


@dataclass(frozen=True)
class LocalTree:
    """A vLLM in a site-packages folder, a virtual environment, an interpreter, or a source checkout."""

    path: Path

    @property
    def name(self) -> str:
        """The path as it was given."""
        return str(self.path)

    def read(self, files: Collection[str]) -> FilesRead:
        """Read those of these files that exist."""
        tree = locate(self.path)
        found = {name: data for name in files if (data := tree.read(name)) is not None}
        return FilesRead(found, tree.version, str(tree.root))


@dataclass(frozen=True)
class Revision:
    """A revision of a repository: a folder, with or without a checkout, or a URL.

    A folder is read in place, without any change to it; `rev` may be any revision that git knows. From a URL one commit
    is fetched into a temporary folder; `rev` is then a branch, a tag or the whole id of a commit.
    """

    address: str
    rev: str

    @property
    def name(self) -> str:
        """The revision as it was given."""
        return self.rev

    def read(self, files: Collection[str]) -> FilesRead:
        """Read these files as git stores them. The version is that of the commit's newest tag, if it has any."""
        where = shown(self.address)
        _refuse_options(address=where, revision=self.rev)
        folder = Path(self.address)
        with naming_git(self.address):
            if folder.is_dir():
                git = _git(folder)
                return self._tree(git, self.resolve(git), files)
            if not is_url(self.address):
                raise Failure(Problem("cannot read", where, "there is no such folder, and it is no URL"))
            with _temporary() as made:
                git = _git(made, fetches=True)
                return self._tree(git, self._fetch_commit(git), files, made)

    def _tree(self, git: Git, commit: str, files: Collection[str], fetched: Path | None = None) -> FilesRead:
        blobs, listings = _blobs(git, commit, files, f"{shown(self.address)} {self.rev}")
        if fetched and blobs:
            self._fetch_blobs(git, {*blobs.values()})
        tags = git.for_each_ref("refs/tags", points_at=commit, format="%(refname:lstrip=2)").split()
        versions = [version for tag in tags if (version := parsed_version(tag))]
        raw = {"strip_newline_in_stdout": False, "stdout_as_string": False}
        return FilesRead(
            files=listings | {file: bytes(git.cat_file("blob", blob, **raw)) for file, blob in blobs.items()},
            version=str(max(versions)) if versions else None,
            origin=f"{shown(self.address)} {commit}",
            received=sum(pack.stat().st_size for pack in fetched.glob("objects/pack/*.pack")) if fetched else 0,
        )

    def resolve(self, git: Git) -> str:
        """Return the id of the commit, in a repository that is a folder.

        Raises:
            Failure: git does not know it.
            GitError: there is no repository.
        """
        from git import GitCommandError

        _refuse_options(revision=self.rev)
        git.rev_parse("--git-dir")
        try:
            # In two steps, as `:/text` takes all that follows for text.
            found = git.rev_parse("--quiet", "--verify", self.rev)
            return str(git.rev_parse("--quiet", "--verify", f"{found}^{{commit}}"))
        except GitCommandError as error:
            raise self._missing("git knows no commit by that name there") from error

    def _fetch_commit(self, git: Git) -> str:
        """Fetch the commit and its tags, and the files unless the server can leave them out; return its id."""
        from git import GitCommandError

        git.init("--quiet", "--template=")
        try:
            git.check_ref_format("--allow-onelevel", self.rev)
        except GitCommandError as error:
            raise self._missing("of a URL it is a branch, a tag or the whole id of a commit") from error
        git.remote("add", "origin", self.address)
        if output := self._fetch(git, "--depth=1", "--filter=blob:none", "origin", f"+{self.rev}:{_REF}"):
            raise self._failure(output)
        return str(git.rev_parse("--verify", f"{_REF}^{{commit}}"))

    def _fetch_blobs(self, git: Git, ids: Collection[str]) -> None:
        output = self._fetch(git, "--no-tags", "--filter=blob:none", "origin", *ids)
        if _UNADVERTISED in output:  # the server can leave files out, but does not send single ones by their ids
            output = self._fetch(git, "--refetch", "--no-filter", "--depth=1", "origin", f"+{self.rev}:{_REF}")
        if output:
            raise self._failure(output)

    def _fetch(self, git: Git, *arguments: str) -> str:
        """Run `git fetch`; return its output if it failed, else ""."""
        options = ("--progress", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules")
        settings = ("-c", "fetch.negotiationAlgorithm=noop", "-c", "fetch.unpackLimit=1")
        command = [git.GIT_PYTHON_GIT_EXECUTABLE, *settings, "fetch", *options, *arguments]
        # In a session of its own it has no terminal to ask at, and can be ended with all that it started.
        running = git.execute(command, as_process=True, with_stdout=False, start_new_session=True)
        process: Any = running.proc  # gitpython ends the process when `running` is collected

        def end() -> None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        atexit.register(end)  # for the threads that an interrupted program does not wait for
        output = b""
        with process:
            try:
                while select([process.stderr], [], [], SILENCE)[0]:
                    if not (more := os.read(process.stderr.fileno(), 1 << 16)):
                        break
                    output += more
                else:
                    cause = f"no sign of life within {SILENCE:g} s"
                    raise Failure(Problem("cannot fetch", shown(self.address), cause))
                failed = process.wait()
            except BaseException:
                end()
                raise
            finally:
                atexit.unregister(end)
        return output.decode("utf-8", "replace") if failed else ""

    def _failure(self, output: str) -> Failure:
        """Return the failure of a fetch, without git's progress and without secrets."""
        lines = [line.strip() for line in re.split(r"[\r\n]", output) if not line.startswith("warning: ")]
        # The last line about a failure of ssh names no cause.
        fatal = [line for line in lines if line.startswith("fatal: ") and "not read from remote" not in line]
        cause = next(filter(None, [*fatal, *lines]), "git fetch fails")
        if re.search(rf"couldn't find remote ref|not our ref|{_UNADVERTISED}", output):
            return self._missing("there is neither a branch nor a tag nor a commit that is called so")
        cause = _hidden(cause.removeprefix("fatal: "), self.address)
        return Failure(Problem("cannot fetch", shown(self.address), cause[:1].lower() + cause[1:]))

    def _missing(self, cause: str) -> Failure:
        return Failure(Problem("no such revision", shown(self.address), f"{self.rev}: {cause}"))


def _refuse_options(**words: str) -> None:
    for what, given in words.items():
        if given.startswith("-"):
            raise Failure(Problem("cannot read", given, f"a git {what} cannot begin with a hyphen"))


@contextmanager
def _temporary() -> Iterator[Path]:
    """Make a folder, and remove it afterwards, or at the program's end if this thread does not get that far."""
    # Not a TemporaryDirectory: that counts as removed before it is, and the program may end in between.
    made = Path(mkdtemp(prefix="vpatch-git-"))
    remove = partial(shutil.rmtree, made, ignore_errors=True)
    atexit.register(remove)
    try:
        yield made
    finally:
        remove()
        atexit.unregister(remove)


@contextmanager
def naming_git(address: str) -> Iterator[None]:
    """Turn an error of git, or the lack of it, into a failure that names the repository.

    Raises:
        Failure: the block raised it.
    """
    try:
        from git import GitError
    except ImportError as error:
        cause = f"a git revision needs git and gitpython: {how_to_add('git')}"
        raise Failure(Problem("cannot read", shown(address), cause)) from error
    try:
        yield
    except (GitError, OSError) as error:
        message = " ".join(str(getattr(error, "stderr", "") or error).split())
        cause = re.sub(r"^stderr: '(fatal: )?(.*)'$", r"\2", message)
        raise Failure(Problem("cannot read", shown(address), _hidden(cause, address))) from error


def _blobs(git: Git, commit: str, files: Collection[str], where: str) -> tuple[Mapping[str, str], dict[str, bytes]]:
    """Return the ids of the contents of those files that exist, and the listings of those folders."""
    entries = entries_of(git, commit, where)
    plain = [file for file in files if not is_folder(file)]
    wanted = {place for file in plain for place in (file, *map(str, Path(file).parents))}
    odd = [f"{path} is {_ODD[mode]}" for path, (mode, _, _) in entries.items() if path in wanted and mode in _ODD]
    if odd:
        raise Failure(*(Problem("not a plain file", where, cause) for cause in odd))
    listings = {path: data for path in filter(is_folder, files) if (data := among(entries, path)) is not None}
    return {file: entries[file][2] for file in plain if file in entries}, listings


def entries_of(git: Git, commit: str, where: str) -> Mapping[str, Sequence[str]]:
    """Return the mode, type and id of each file of a commit, by its path.

    Raises:
        Failure: it has no vLLM; `where` names it.
    """
    listed = git.ls_tree("-r", "-z", "--full-tree", commit).split("\0")
    entries = {path: head.split() for head, _, path in (line.partition("\t") for line in listed if line)}
    if not any(path.startswith("vllm/") for path in entries):
        raise Failure(Problem("no vLLM", where, "it has no folder vllm/"))
    return entries


def _git(folder: Path, *, fetches: bool = False) -> Git:
    """Return git for one repository; it fetches only if it may, by safe protocols."""
    allowed = os.environ.get("GIT_ALLOW_PROTOCOL")
    safe = [name for name in _PROTOCOLS if allowed is None or name in allowed.split(":")]
    return plumbing(folder, safe if fetches else ())


def is_url(address: str) -> bool:
    """Return whether git fetches from an address, `host:path` included; else it is a folder."""
    return bool(re.match(r"[^/]+:", address))


def shown(address: str) -> str:
    """Return an address without user name, password, query and fragment.

    If these cannot be told apart, as with a password that is not encoded, less is left. A user name alone stays in
    `git@host:path`.
    """
    if not (url := re.match(_URL, address)):
        return re.sub(r"^[^/@:]+:.*@", "", address)
    place = re.split("[?#]", url[2], maxsplit=1)[0]
    if url[1] == "file://":
        return url[1] + place
    return url[1] + ("..." if "@" in url[2][len(place) :] else place.rpartition("@")[2])


def _hidden(line: str, address: str) -> str:
    """Remove from git's output what `shown` removes from this address, or from one it is rewritten to."""
    line = line.replace(address, shown(address))
    has_login = is_url(address) and not address.startswith("file://")
    login = re.sub(_URL, r"\2", address).rpartition("@")[0] if has_login else ""
    user, _, password = login.partition(":")
    for secret in filter(None, (login and f"{login}@", user and f"{user}@", password)):
        line = line.replace(secret, "").replace(unquote(secret), "")
    if len(line) > _LINE:
        line = line[:_LINE].rpartition(" ")[0]  # what is cut in two might show half of a password
    line = re.sub(r"\b(?!file://)[\w+.-]+://(.*@)?[^\s'\"]*", lambda url: shown(url[0]), line)
    return re.sub(r"(?<![^\s'\"])(?!file://)[^\s'\"/][^\s'\"]*@", "", line)  # as in `user:password@host:path`
