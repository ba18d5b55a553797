"""The wheel of a release, found on the package index that the user's own settings of uv and pip name."""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
import warnings
from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    NoSuchProjectError,
    PyPISimple,
    UnexpectedRepoVersionWarning,
    UnsupportedRepoVersionError,
)
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth
from requests.utils import get_netrc_auth
from urllib3.util import Retry

from vpatch.errors import Failure, Problem
from vpatch.release import ranges

BACKOFF = 0.2  # seconds, doubled with each try
RETRIES = 3
BUSY = (429, 500, 502, 503, 504)

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


def find_wheel(version: str, project: str = "vllm") -> Wheel:
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
    for listed in _listings(project):
        matching = [one for one in listed if one.version == wanted]
        if matching:
            return max(matching, key=lambda one: one.rank).wheel
        seen.update(one.version for one in listed)
    raise Failure(Problem("no such release", f"{project} {wanted}", f"the index has {_around(wanted, sorted(seen))}"))


def releases(project: str = "vllm") -> tuple[str, ...]:
    """Give every version that has a wheel and is not yanked, oldest first, pre-releases included.

    Raises:
        Failure: no such project, or an index is down, slow or broken.
    """
    versions = {one.version for listed in _listings(project) for one in listed if not one.yanked}
    return tuple(map(str, sorted(versions)))


def open_session() -> requests.Session:
    """Give a session that tries again, trusts the user's certificates and knows the indexes' credentials.

    Raises:
        Failure: a settings file of uv or pip cannot be understood.
    """
    return _session(_settings())


# --- the indexes' pages -------------------------------------------------------------------------------------


def _listings(project: str) -> Iterator[list[_Listed]]:
    """Give the wheels of each index that has any, asking the next index only when it is wanted."""
    settings = _settings()
    if not settings.indexes:
        raise Failure(Problem("no package index", project, "the settings of uv and pip name local folders only"))
    found = False
    with _session(settings) as session:
        for index in settings.indexes:
            listed = _wheels(session, index, project)
            if listed:
                found = True
                yield listed
    if not found:
        raise Failure(
            Problem("no such project", project, f"no wheel at {', '.join(map(ranges.shown, settings.indexes))}")
        )


def _wheels(session: requests.Session, index: str, project: str) -> list[_Listed]:
    where = ranges.shown(index)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnexpectedRepoVersionWarning)  # a newer minor version: still readable
            page = PyPISimple(index, session=session).get_project_page(project, timeout=ranges.TIMEOUT)
    except NoSuchProjectError:
        return []
    except requests.HTTPError as error:
        raise Failure(Problem("package index failed", where, ranges.answers(error.response))) from error
    except (OSError, ValueError, AssertionError, UnsupportedRepoVersionError) as error:
        transport = isinstance(error, OSError) and not isinstance(error, requests.JSONDecodeError)
        why = ranges.cause(error) if transport else "it sent something else than a project page"
        raise Failure(Problem("package index failed", where, why)) from error
    listed = []
    for package in page.packages:
        try:
            name, version, build, tags = parse_wheel_filename(package.filename)
        except InvalidWheelFilename:
            continue
        if name == canonicalize_name(project):
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


# --- the session --------------------------------------------------------------------------------------------


def _session(settings: _Settings) -> requests.Session:
    session = requests.Session()
    # A server's Retry-After may be an hour: a command line gives up before that.
    retry = Retry(
        RETRIES,
        backoff_factor=BACKOFF,
        status_forcelist=BUSY,
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    if settings.bundle:  # requests itself prefers REQUESTS_CA_BUNDLE to this
        session.verify = settings.bundle
    if settings.logins:

        def log_in(request: requests.PreparedRequest) -> requests.PreparedRequest:
            url = request.url or ""
            login = settings.logins.get(_origin(url)) or get_netrc_auth(url)
            return HTTPBasicAuth(*login)(request) if login else request

        session.auth = log_in
    return session


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()


# --- the user's settings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Settings:
    indexes: tuple[str, ...]  # in the order in which to ask them, without credentials
    logins: Mapping[str, tuple[str, str]] = field(repr=False)  # by origin
    bundle: str | None


def _settings() -> _Settings:
    """Read what uv and pip would read: variables before files, uv's before pip's."""
    uv_default, uv_extra = _uv_indexes()
    pip = _pip_options()
    variable = os.environ.get
    defaults = (
        variable("UV_DEFAULT_INDEX"),
        variable("UV_INDEX_URL"),
        variable("PIP_INDEX_URL"),
        *uv_default,
    )
    default = next(filter(None, (*defaults, pip.get("index-url"))), PYPI_SIMPLE_ENDPOINT)
    before = [*variable("UV_INDEX", "").split(), *variable("UV_EXTRA_INDEX_URL", "").split(), *uv_extra]
    after = (variable("PIP_EXTRA_INDEX_URL") or pip.get("extra-index-url", "")).split()

    indexes: dict[str, None] = {}
    logins: dict[str, tuple[str, str]] = {}
    for value in (*before, default, *after):
        url = re.sub(r"^[\w.-]+=", "", value.strip())  # uv's NAME=URL
        try:
            parts = urlsplit(url)
        except ValueError as error:  # its text may have the password in it
            raise Failure(Problem("cannot understand", "settings of uv and pip", "an index's address")) from error
        if parts.scheme not in ("http", "https"):
            continue  # a folder serves no ranges
        user, at, host = parts.netloc.rpartition("@")
        if at:
            name, _, password = user.partition(":")
            logins.setdefault(_origin(url), (unquote(name), unquote(password)))
        indexes[parts._replace(netloc=host).geturl()] = None
    bundle = variable("PIP_CERT") or pip.get("cert") or variable("SSL_CERT_FILE")
    return _Settings(tuple(indexes), logins, bundle or None)


def _pip_options() -> dict[str, str]:
    """Give the options in pip's files, as `pip install` sees them: later files win, and `[install]`."""
    chosen = os.environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return {}
    files = [*(Path(folder, "pip", "pip.conf") for folder in _system_folders()), Path("/etc/pip.conf")]
    if not (chosen and Path(chosen).exists()):
        files += [Path.home() / ".pip" / "pip.conf", _config_home() / "pip" / "pip.conf"]
    files += [Path(sys.prefix, "pip.conf"), *([Path(chosen)] if chosen else [])]
    options: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except (configparser.Error, UnicodeDecodeError) as error:
            raise Failure(Problem("cannot understand", str(file), "not a settings file of pip")) from error
        for section in options.keys() & set(parser.sections()):
            options[section] |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    return options["global"] | options["install"]


def _uv_indexes() -> tuple[list[str], list[str]]:
    """Give the default and the additional indexes of uv's files, the user's before the system's."""
    defaults: list[str] = []
    extra: list[str] = []
    if os.environ.get("UV_NO_CONFIG"):
        return defaults, extra
    system = [*(Path(folder, "uv", "uv.toml") for folder in _system_folders()), Path("/etc/uv/uv.toml")]
    files = [_config_home() / "uv" / "uv.toml", *[file for file in system if file.exists()][:1]]
    if chosen := os.environ.get("UV_CONFIG_FILE"):
        files = [Path(chosen)]
    for file in files:
        try:
            options = tomllib.loads(file.read_text("utf-8"))
            entries = [entry for entry in options.get("index", []) if not entry.get("explicit")]
            defaults += [entry["url"] for entry in entries if entry.get("default")]
            defaults += [options["index-url"]] if "index-url" in options else []
            extra += [entry["url"] for entry in entries if not entry.get("default")]
            extra += options.get("extra-index-url", [])
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Failure(Problem("cannot read", str(file), ranges.cause(error))) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Failure(Problem("cannot understand", str(file), "not a settings file of uv")) from error
    return defaults, extra


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _system_folders() -> list[str]:
    return [folder for folder in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if folder]
