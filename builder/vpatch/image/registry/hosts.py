"""Where the registry of a name is, and which addresses are safe to send a secret to."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from urllib3.util import parse_url

from vpatch.image.registry.reference import HUB

_HUB_API = "https://registry-1.docker.io"


def origin_of(host: str) -> str:
    """Give the address of a registry, `https://ghcr.io`: with plain HTTP only on loopback, as Docker has it."""
    if host == HUB:
        return _HUB_API
    return f"{'http' if _is_loopback(urlsplit(f'//{host}').hostname) else 'https'}://{host}"


def is_private(url: str) -> bool:
    """Say whether nobody between here and there can read what is sent to `url`."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname))


def is_address(url: str) -> bool:
    """Whether `url` can be parsed, and has a host if it is of the web."""
    try:
        return bool(urlsplit(url).netloc and parse_url(url).host) or not url.startswith(("http://", "https://"))
    except ValueError:
        return False


def origin(url: str) -> str:
    """Scheme, host and port of `url`: `https://auth.docker.io`."""
    scheme, netloc = urlsplit(url)[:2]
    return f"{scheme}://{netloc.rpartition('@')[2]}"


def same_origin(one: str, other: str) -> bool:
    """Whether two addresses are of one server: scheme, host and port, however they are written."""
    return _server(one) == _server(other)


def login_command(host: str) -> str:
    """Give the command by which a user logs in to a registry."""
    return "docker login" if host == HUB else f"docker login {host}"


def _is_loopback(name: str | None) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address(name or "").is_loopback
    except ValueError:
        return False


def _server(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
