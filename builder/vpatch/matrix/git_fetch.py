"""One commit of somebody's repository, fetched by git: as little of it as goes, without a word to the terminal."""

from __future__ import annotations

import atexit
import os
import re
import signal
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from vpatch.errors import Failure, Problem

if TYPE_CHECKING:
    from git import Git

SILENCE = 30.0
"""Seconds without a sign of life after which a server counts as gone."""

# Not those that run commands, as `ext::`. This holds for addresses that the user's settings rewrite, too.
_PROTOCOLS = ("file", "git", "http", "https", "ssh")
_REF = "refs/vpatch/rev"
_URL = r"((?:\w+::)?[\w+.-]+://)(.*)"
_UNADVERTISED = "unadvertised object"


def is_url(address: str) -> bool:
    """Tell an address that git fetches from, `host:path` included, from a folder."""
    return bool(re.match(r"[^/]+:", address))


def shown(address: str) -> str:
    """Give an address as messages may show it: without user name, password, query and fragment.

    Where nobody knows which is which, such as for a password that is not encoded, less is shown. A user name alone
    stays in `git@host:path`.
    """
    if not (url := re.match(_URL, address)):
        return re.sub(r"^[^/@:]+:.*@", "", address)
    place = re.split("[?#]", url[2], maxsplit=1)[0]
    if url[1] == "file://":
        return url[1] + place
    return url[1] + ("..." if "@" in url[2][len(place) :] else place.rpartition("@")[2])


def hidden(said: str, address: str) -> str:
    """Give what git said, a line, without what `shown` leaves out of this address, or of those it is rewritten to."""
    said = said.replace(address, shown(address))
    has_login = is_url(address) and not address.startswith("file://")
    login = re.sub(_URL, r"\2", address).rpartition("@")[0] if has_login else ""
    user, _, password = login.partition(":")
    for secret in filter(None, (login and f"{login}@", user and f"{user}@", password)):
        said = said.replace(secret, "").replace(unquote(secret), "")
    said = re.sub(r"\b(?!file://)[\w+.-]+://(.*@)?[^\s'\"]*", lambda url: shown(url[0]), said)
    return re.sub(r"(?<![^\s'\"])(?!file://)[^\s'\"/][^\s'\"]*@", "", said)  # as in `user:password@host:path`


def environment(git_dir: Path, protocols: Collection[str] = ()) -> dict[str, str]:
    """Give what git is to know: which repository, whoever started us for another; what it may fetch by; no questions.

    With no protocols it fetches nothing, not even what a partial clone lacks.
    """
    return {
        "GIT_DIR": str(git_dir),
        "GIT_WORK_TREE": str(git_dir),  # of no use, but the caller's would not do
        "GIT_ALLOW_PROTOCOL": ":".join(protocols) or "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "SSH_ASKPASS_REQUIRE": "never",  # and no terminal either, as it has a session of its own
    }


def fetch_commit(address: str, rev: str, folder: Path) -> str:
    """Fetch the commit of a branch or a tag, or the one with a whole id, into `folder`, which is empty; give its id.

    Files come later, by `fetch_blobs`, where the server can leave them out, else all at once. Tags of exactly that
    commit come along.

    Raises:
        Failure: there is none, the server does not answer, or git cannot.
    """
    from git import Git, GitCommandError

    git = Git(folder)
    git.update_environment(**environment(folder, _allowed()))
    git.init("--quiet", "--template=")
    try:
        git.check_ref_format("--allow-onelevel", rev)
    except GitCommandError as error:
        raise missing(address, f"{rev}: of a URL it is a branch, a tag or the whole id of a commit") from error
    git.remote("add", "origin", address)
    if said := _fetch(git, address, "--depth=1", "--filter=blob:none", "origin", f"+{rev}:{_REF}"):
        raise _failure(address, rev, said)
    return str(git.rev_parse("--verify", f"{_REF}^{{commit}}"))


def fetch_blobs(address: str, rev: str, folder: Path, ids: Collection[str]) -> None:
    """Fetch these files' contents all at once, those that are not there.

    Raises:
        Failure: the server does not answer, or git cannot.
    """
    from git import Git

    git = Git(folder)
    git.update_environment(**environment(folder, _allowed()))
    said = _fetch(git, address, "--no-tags", "--filter=blob:none", "origin", *ids)
    if _UNADVERTISED in said:  # a server that can leave files out, and then gives none by their ids
        said = _fetch(git, address, "--refetch", "--no-filter", "--depth=1", "origin", f"+{rev}:{_REF}")
    if said:
        raise _failure(address, rev, said)


def missing(address: str, cause: str) -> Failure:
    """Give the failure that says that a revision is not there."""
    return Failure(Problem("no such revision", shown(address), cause))


def _allowed() -> list[str]:
    """Give the protocols that are safe, as far as the user's own environment allows them."""
    allowed = os.environ.get("GIT_ALLOW_PROTOCOL")
    return [name for name in _PROTOCOLS if allowed is None or name in allowed.split(":")]


def _fetch(git: Git, address: str, *arguments: str) -> str:
    """Run `git fetch`; give what it said where it failed."""
    options = ("--progress", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules")
    settings = ("-c", "fetch.negotiationAlgorithm=noop", "-c", "fetch.unpackLimit=1")
    # With a session of its own it has no terminal to ask at, and can be ended with all that it started.
    running = git.execute(
        [git.GIT_PYTHON_GIT_EXECUTABLE, *settings, "fetch", *options, *arguments],
        as_process=True,
        with_stdout=False,
        start_new_session=True,
    )
    process: Any = running.proc  # `running` ends it when nobody has it any more
    end = partial(_end, process.pid)
    atexit.register(end)  # for the threads that an interrupted program does not wait for
    said = b""
    with process:
        try:
            while select([process.stderr], [], [], SILENCE)[0]:
                if not (more := os.read(process.stderr.fileno(), 1 << 16)):
                    break
                said += more
            else:
                raise Failure(Problem("cannot fetch", shown(address), f"no sign of life within {SILENCE:g} s"))
            failed = process.wait()
        except BaseException:
            end()
            raise
        finally:
            atexit.unregister(end)
    return said.decode("utf-8", "replace") if failed else ""


def _end(session: int) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


def _failure(address: str, rev: str, said: str) -> Failure:
    """Tell what git said, without what it says on the way, and without secrets."""
    lines = [line.strip() for line in re.split(r"[\r\n]", said) if not line.startswith("warning: ")]
    # Of ssh's failures git says no more than that there was one, in the end.
    fatal = [line for line in lines if line.startswith("fatal: ") and "not read from remote" not in line]
    told = next(filter(None, [*fatal, *lines]), "git fetch fails")
    if re.search(rf"couldn't find remote ref|not our ref|{_UNADVERTISED}", said):
        return missing(address, f"{rev}: there is neither a branch nor a tag nor a commit that is called so")
    told = hidden(told.removeprefix("fatal: "), address)
    return Failure(Problem("cannot fetch", shown(address), told[:1].lower() + told[1:]))
