"""The names of images, parsed as Docker does, and the addresses of their registries."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem

if TYPE_CHECKING:
    from urllib3.util import Url

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

_HUB = "docker.io"
# The grammar of github.com/distribution/reference.
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MAX_NAME = 255  # characters of host and repository


@dataclass(frozen=True)
class Reference:
    """The name of an image."""

    host: str  # as users write it: `docker.io`, `ghcr.io`, `localhost:5000`
    repository: str  # in full: `library/ubuntu`
    tag: str | None = None
    digest: str | None = None  # `sha256:<hex>`, which decides, whatever the tag

    @property
    def name(self) -> str:
        """Host and repository as Docker shows them: `vllm/vllm-openai`, `ubuntu`, `ghcr.io/a/b`."""
        if self.host != _HUB:
            return f"{self.host}/{self.repository}"
        return self.repository.removeprefix("library/")

    @property
    def full(self) -> str:
        """The name with its registry, without its digest: `docker.io/vllm/vllm-openai:v0.20.2`."""
        return f"{self.host}/{self.repository}" + (f":{self.tag}" if self.tag else "")

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> Reference:
    """Parse an image's name; without tag and digest it means `latest`. Raises `Failure` if it is invalid."""
    rest, at, digest = text.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise _invalid(text, "after @ comes a digest, sha256: and 64 hexadecimal digits")
    head, slash, last = rest.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _invalid(text, f"{tag!r} is no tag")
    host, repository = _split(f"{head}{slash}{last}")
    if not _is_host(host):
        raise _invalid(text, f"{host!r} is no registry")
    if not _REPOSITORY.fullmatch(repository):
        capital = ": it has capital letters" if repository != repository.lower() else ""
        raise _invalid(text, f"{repository.removeprefix('library/')!r} is no repository{capital}")
    if re.fullmatch(r"[0-9a-f]{64}", rest):
        raise _invalid(text, "it is an image's ID, which no registry knows")
    if len(host) + len(repository) >= _MAX_NAME:
        raise _invalid(text, f"it is longer than {_MAX_NAME} characters")
    return Reference(host, repository, tag if colon else None if at else "latest", digest if at else None)


def _split(name: str) -> tuple[str, str]:
    host, slash, repository = name.partition("/")
    # Anything that could be a folder of Docker Hub is not a host.
    if not slash or not (set(host) & set(".:") or host == "localhost" or host != host.lower()):
        host, repository = _HUB, name
    host = _HUB if host == f"index.{_HUB}" else host
    if host == _HUB and "/" not in repository:
        repository = f"library/{repository}"
    return host, repository


def _is_host(text: str) -> bool:
    try:
        return bool(_HOST.fullmatch(text) and (text[0] != "[" or ipaddress.IPv6Address(text[1:].partition("]")[0])))
    except ValueError:
        return False


def _invalid(text: str, why: str) -> Failure:
    return Failure(Problem("not an image's name", repr(text), why))


def registry_url(host: str) -> str:
    """Return the address of a registry, `https://ghcr.io`; as in Docker, plain HTTP is for loopback only."""
    if host == _HUB:
        return "https://registry-1.docker.io"
    return f"{'http' if _is_loopback(_parsed(f'//{host}').host) else 'https'}://{host}"


def login_command(host: str) -> str:
    """Return the command by which a user logs in to a registry."""
    return "docker login" if host == _HUB else f"docker login {host}"


def is_private(url: str) -> bool:
    """Whether what is sent to `url` stays private: over HTTPS, or by plain HTTP to loopback."""
    parts = _parsed(url)
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.host))


def is_address(url: str) -> bool:
    """Whether `url` can be parsed; for HTTP and HTTPS, also whether it has a host and no backslash."""
    try:
        parts = _parsed(url)
    except ValueError:
        return False
    return parts.scheme not in ("http", "https") or bool(parts.host and "\\" not in url)


def origin(url: str) -> str:
    """Return scheme, host and port of `url`: `https://auth.docker.io`."""
    return f"{_parsed(url).scheme}://{host_of(url)}"


def host_of(url: str) -> str:
    """Return host and port of `url`: `auth.docker.io`, `127.0.0.1:5000`."""
    return _parsed(url).netloc or ""


def same_origin(one: str, other: str) -> bool:
    """Whether two addresses belong to one server: equal scheme, host and port, however they are written."""
    ports = {"http": 80, "https": 443}
    servers = {(url.scheme, url.host, url.port or ports.get(url.scheme or "")) for url in map(_parsed, (one, other))}
    return len(servers) == 1


def _is_loopback(name: str | None) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address((name or "").strip("[]")).is_loopback
    except ValueError:
        return False


def _parsed(url: str) -> Url:
    # urllib3 also connects: for `https://one\@other/`, the standard library finds another host.
    from urllib3.util import parse_url  # late: a name is parsed before anything of the extra is needed

    return parse_url(url)
