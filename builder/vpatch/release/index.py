"""The wheel of a release, found on the user's package indexes."""

from __future__ import annotations

import warnings
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import requests
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from pypi_simple import NoSuchProjectError, PyPISimple, UnexpectedRepoVersionWarning, UnsupportedRepoVersionError

from vpatch.errors import Failure, Problem
from vpatch.release import causes
from vpatch.release.session import open_session
from vpatch.release.settings import read_settings

PROJECT = "vllm"
NEIGHBOURS = 3  # releases named on each side of one that does not exist


@dataclass(frozen=True)
class Wheel:
    """One wheel on an index.

    `version` is in its canonical form, `url` is without credentials (sessions know them), `sha256` is that of the
    whole file in hexadecimal, None where the index does not say.
    """

    version: str
    filename: str
    url: str
    sha256: str | None


@dataclass(frozen=True)
class _Listed:
    version: Version
    rank: tuple[bool, int, tuple[()] | tuple[int, str], str]  # the highest is the one to take
    yanked: bool
    wheel: Wheel


def find_wheel(version: str) -> Wheel:
    """Give the wheel of exactly this release: for x86-64 manylinux if there is one, of the highest build tag.

    The first index that has the release decides: uv's additional ones, the default, pip's additional ones.

    Raises:
        Failure: no such version or release, or an index is down, slow or broken.
    """
    try:
        wanted = Version(version)
    except InvalidVersion as error:
        raise Failure(Problem("not a version", version, "a release reads like 0.20.2")) from error
    seen: set[Version] = set()
    for listed in _listings():
        matching = [one for one in listed if one.version == wanted]
        if matching:
            return max(matching, key=lambda one: one.rank).wheel
        seen.update(one.version for one in listed)
    raise Failure(Problem("no such release", f"{PROJECT} {wanted}", f"the index has {_around(wanted, sorted(seen))}"))


def releases() -> tuple[str, ...]:
    """Give every version that has a wheel and is not yanked, oldest first, pre-releases included.

    Raises:
        Failure: no such project, or an index is down, slow or broken.
    """
    versions = {one.version for listed in _listings() for one in listed if not one.yanked}
    return tuple(map(str, sorted(versions)))


def _listings() -> Iterator[list[_Listed]]:
    """Give the wheels of each index that has any, asking the next index only when it is wanted."""
    settings = read_settings()
    if not settings.indexes:
        raise Failure(Problem("no package index", PROJECT, "the settings of uv and pip name local folders only"))
    found = False
    with open_session(settings) as session:
        for index in settings.indexes:
            listed = _wheels(session, index)
            if listed:
                found = True
                yield listed
    if not found:
        where = ", ".join(map(causes.shown, settings.indexes))
        raise Failure(Problem("no such project", PROJECT, f"no wheel at {where}"))


def _wheels(session: requests.Session, index: str) -> list[_Listed]:
    where = causes.shown(index)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnexpectedRepoVersionWarning)  # a newer minor version: still readable
            page = PyPISimple(index, session=session).get_project_page(PROJECT, timeout=causes.TIMEOUT)
    except NoSuchProjectError:
        return []
    except requests.HTTPError as error:
        raise Failure(Problem("package index failed", where, causes.answers(error.response))) from error
    except (OSError, ValueError, AssertionError, UnsupportedRepoVersionError) as error:
        transport = isinstance(error, OSError) and not isinstance(error, requests.JSONDecodeError)
        why = causes.cause(error) if transport else "it sent something else than a project page"
        raise Failure(Problem("package index failed", where, why)) from error
    listed = []
    for package in page.packages:
        try:
            name, version, build, tags = parse_wheel_filename(package.filename)
        except InvalidWheelFilename:
            continue
        if name == PROJECT:
            platform = max(map(_preference, (tag.platform for tag in tags)))
            wheel = Wheel(str(version), package.filename, package.url, package.digests.get("sha256"))
            rank = (not package.is_yanked, platform, build, package.filename)
            listed.append(_Listed(version, rank, package.is_yanked, wheel))
    return listed


def _preference(platform: str) -> int:
    return 2 * platform.endswith("x86_64") + platform.startswith("manylinux")


def _around(wanted: Version, versions: list[Version]) -> str:
    """Name the releases next to the one that does not exist, and the newest."""
    at = bisect(versions, wanted)
    near = versions[max(0, at - NEIGHBOURS) : at + NEIGHBOURS]
    text = ", ".join(map(str, near))
    return text if versions[-1:] == near[-1:] else f"{text} ... {versions[-1]}"
