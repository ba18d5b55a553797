"""The names of images, read as Docker reads them. Nothing is asked of a registry here, and nothing heavy imported."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from vpatch.errors import Failure, Problem

HUB = "docker.io"

# The grammar of github.com/distribution/reference.
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST = 255  # characters of host and repository


@dataclass(frozen=True)
class Reference:
    """Names an image: `host` as users write it (`docker.io`, `ghcr.io`, `localhost:5000`), `repository` in full
    (`library/ubuntu`), and a tag, a digest (`sha256:<hex>`) or both, of which the digest decides.
    """

    host: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """Host and repository as Docker shows them: `vllm/vllm-openai`, `ubuntu`, `ghcr.io/a/b`."""
        if self.host != HUB:
            return f"{self.host}/{self.repository}"
        return self.repository.removeprefix("library/")

    @property
    def full(self) -> str:
        """It with its registry and without its digest: `docker.io/vllm/vllm-openai:v0.20.2`."""
        return f"{self.host}/{self.repository}" + (f":{self.tag}" if self.tag else "")

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.name}{tag}{digest}"


def parse(text: str) -> Reference:
    """Read an image's name; without tag and digest it is `latest`.

    Raises:
        Failure: it is no name of an image.
    """
    rest, at, digest = text.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise _nonsense(text, "after @ comes a digest, sha256: and 64 hexadecimal digits")
    head, slash, last = rest.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _nonsense(text, f"{tag!r} is no tag")
    host, repository = _split(f"{head}{slash}{last}")
    if not _HOST.fullmatch(host) or not _is_address(host):
        raise _nonsense(text, f"{host!r} is no registry")
    if not _REPOSITORY.fullmatch(repository):
        capital = ": it has capital letters" if repository != repository.lower() else ""
        raise _nonsense(text, f"{repository.removeprefix('library/')!r} is no repository{capital}")
    if re.fullmatch(r"[0-9a-f]{64}", rest):
        raise _nonsense(text, "it is an image's ID, which no registry knows")
    if len(host) + len(repository) >= _LONGEST:
        raise _nonsense(text, f"it is longer than {_LONGEST} characters")
    return Reference(host, repository, tag if colon else None if at else "latest", digest if at else None)


def _split(name: str) -> tuple[str, str]:
    host, slash, repository = name.partition("/")
    # Only what cannot be a folder of Docker Hub is a host.
    if not slash or not (set(host) & set(".:") or host == "localhost" or host != host.lower()):
        host, repository = HUB, name
    if host == f"index.{HUB}":
        host = HUB
    if host == HUB and "/" not in repository:
        repository = f"library/{repository}"
    return host, repository


def _is_address(host: str) -> bool:
    """Say whether what is between brackets, if there are any, is an address."""
    found = re.match(r"\[(.*)\]", host)
    try:
        return not found or bool(ipaddress.IPv6Address(found[1]))
    except ValueError:
        return False


def _nonsense(text: str, why: str) -> Failure:
    return Failure(Problem("not an image's name", repr(text), why))
