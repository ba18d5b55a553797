"""Where the registry of a name is, and which addresses are safe to send a secret to.

Addresses are parsed by urllib3, which connects: of `https://one\\@other/`, the standard library names another host.
"""

from __future__ import annotations

import ipaddress

from urllib3.util import parse_url

from vpatch.image.registry.reference import HUB

_HUB_API = "https://registry-1.docker.io"


def origin_of(host: str) -> str:
    """Give the address of a registry, `https://ghcr.io`: with plain HTTP only on loopback, as Docker has it."""
    if host == HUB:
        return _HUB_API
    return f"{'http' if _is_loopback(parse_url(f'//{host}').host) else 'https'}://{host}"


def is_private(url: str) -> bool:
    """Say whether nobody between here and there can read what is sent to `url`."""
    parts = parse_url(url)
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.host))


def is_address(url: str) -> bool:
    """Whether `url` can be parsed, and has a host and no backslash if it is of the web."""
    try:
        parts = parse_url(url)
    except ValueError:
        return False
    return parts.scheme not in ("http", "https") or bool(parts.host and "\\" not in url)


def origin(url: str) -> str:
    """Scheme, host and port of `url`: `https://auth.docker.io`."""
    return f"{parse_url(url).scheme}://{host_of(url)}"


def host_of(url: str) -> str:
    """Host and port of `url`: `auth.docker.io`, `127.0.0.1:5000`."""
    return parse_url(url).netloc or ""


def same_origin(one: str, other: str) -> bool:
    """Whether two addresses are of one server: scheme, host and port, however they are written."""
    return _server(one) == _server(other)


def login_command(host: str) -> str:
    """Give the command by which a user logs in to a registry."""
    return "docker login" if host == HUB else f"docker login {host}"


def _is_loopback(name: str | None) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address((name or "").strip("[]")).is_loopback
    except ValueError:
        return False


def _server(url: str) -> tuple[str | None, str | None, int | None]:
    parts = parse_url(url)
    return parts.scheme, parts.host, parts.port or {"http": 80, "https": 443}.get(parts.scheme or "")
