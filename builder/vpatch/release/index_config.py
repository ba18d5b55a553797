"""The user's settings of uv and pip: package indexes, credentials, certificates; and a session that uses them."""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests
from pypi_simple import PYPI_SIMPLE_ENDPOINT
from requests.auth import HTTPBasicAuth
from requests.utils import get_netrc_auth

from vpatch.errors import Failure, Problem, naming
from vpatch.foreign import TOML_BYTES, parse_toml, read_regular
from vpatch.net.session import Session


@dataclass(frozen=True)
class Settings:
    """Package indexes, credentials and certificates."""

    indexes: tuple[str, ...]  # in the order in which to ask them, without credentials
    logins: Mapping[str, tuple[str, str]] = field(repr=False)  # user name and password by origin
    bundle: str  # a file of certificates, "" for those of the library


def read_settings() -> Settings:
    """Read the settings that uv and pip would read: variables before files, uv's before pip's."""
    uv_default, uv_extra = _uv_indexes()
    pip = _pip_options()
    variable = os.environ.get
    variables = (variable("UV_DEFAULT_INDEX"), variable("UV_INDEX_URL"), variable("PIP_INDEX_URL"))
    default = next(filter(None, (*variables, *uv_default, pip.get("index-url"))), PYPI_SIMPLE_ENDPOINT)
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
    bundle = variable("PIP_CERT") or pip.get("cert") or variable("SSL_CERT_FILE", "")
    return Settings(tuple(indexes), logins, bundle)


def open_session(settings: Settings) -> requests.Session:
    """Return a session that trusts the user's certificates and logs in to the user's indexes."""
    session = Session()
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
    """Return the scheme, host and port of `url`: credentials belong to these."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()


def _pip_options() -> dict[str, str]:
    """Read the options in pip's files as `pip install` does: later files win, and `[install]` over `[global]`."""
    chosen = os.environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return {}
    files = [*(Path(folder, "pip", "pip.conf") for folder in _system_folders()), Path("/etc/pip.conf")]
    if not (chosen and Path(chosen).exists()):
        files += [_home() / ".pip" / "pip.conf", _config_home() / "pip" / "pip.conf"]
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
    """Read the default and the additional indexes of uv's files, the user's before the system's."""
    defaults: list[str] = []
    extra: list[str] = []
    for file in _uv_files():
        with naming("cannot read", str(file)), suppress(FileNotFoundError):
            try:
                options = parse_toml(read_regular(file, TOML_BYTES))
                entries = [entry for entry in options.get("index", []) if not entry.get("explicit")]
                defaults += [entry["url"] for entry in entries if entry.get("default")]
                defaults += [options["index-url"]] if "index-url" in options else []
                extra += [entry["url"] for entry in entries if not entry.get("default")]
                extra += options.get("extra-index-url", [])
                if not all(isinstance(url, str) for url in (*defaults, *extra)):
                    raise TypeError
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise Failure(Problem("cannot understand", str(file), "not a settings file of uv")) from error
    return defaults, extra


def _uv_files() -> list[Path]:
    if os.environ.get("UV_NO_CONFIG"):
        return []
    if chosen := os.environ.get("UV_CONFIG_FILE"):
        return [Path(chosen)]
    system = [*(Path(folder, "uv", "uv.toml") for folder in _system_folders()), Path("/etc/uv/uv.toml")]
    return [_config_home() / "uv" / "uv.toml", *[file for file in system if file.exists()][:1]]


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or _home() / ".config")


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user that the system does not know
        return Path("/nonexistent")


def _system_folders() -> list[str]:
    return [folder for folder in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if folder]
