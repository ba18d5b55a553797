"""Read a project's page on a package index: the files that it lists, in HTML or JSON.

The page is whatever a server sent. So it is read in a time and a memory that grow with its length alone: html.parser,
which libraries for such pages rest on, needs a minute for 200 KB of `<!--`, and their expressions for names of files
need longer.

Source: https://packaging.python.org/en/latest/specifications/simple-repository-api/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import urldefrag, urljoin

from vpatch.foreign import parse_json
from vpatch.net.session import LIMITS

PROJECT_JSON = "application/vnd.pypi.simple.v1+json"
PROJECT_HTML = ("application/vnd.pypi.simple.v1+html", "text/html")
ACCEPT = f"{PROJECT_JSON}, {PROJECT_HTML[0]};q=0.2, {PROJECT_HTML[1]};q=0.01"

# Each name and value ends where its first character that it cannot have stands, so that nothing is tried twice.
_NAME = r"""[^\s"'<>=/]++"""
_VALUE = r"""(?:"[^"]*+"|'[^']*+'|[^\s"'<>]++)"""
_TAG = re.compile(rf"<(/?(?:a|base|meta))((?:\s++{_NAME}(?:\s*+=\s*+{_VALUE})?)*+)\s*+/?>", re.IGNORECASE)
_ATTRIBUTE = re.compile(rf"({_NAME})(?:\s*+=\s*+({_VALUE}))?")
_OTHER_TAG = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class Listed:
    """A file on a page. `url` has no fragment; `sha256` is None if the page has none."""

    filename: str
    url: str
    sha256: str | None
    yanked: bool


def read_page(body: bytes, kind: str, url: str) -> Iterator[Listed]:
    """Yield the files on a page.

    Args:
        body: what the server sent.
        kind: its `Content-Type`.
        url: its address, which relative ones start from.

    Raises:
        ValueError: it is no page of a project, or of a version that is not known.
    """
    kind = kind.partition(";")[0].strip().lower()
    if kind == PROJECT_JSON:
        return _from_json(parse_json(body, LIMITS.answer), url)
    if kind in PROJECT_HTML:
        return _from_html(body.decode("utf-8", "replace"), url)
    raise ValueError("no page of a project")


def _from_json(page: Any, url: str) -> Iterator[Listed]:
    match page:
        case {"meta": {"api-version": str(version)}, "files": list(files)}:
            _check_version(version)
        case _:
            raise ValueError("no page of a project")
    for file in files:
        match file:
            case {"filename": str(name), "url": str(address), "hashes": dict(hashes)}:
                yanked = file.get("yanked", False) is not False  # the reason, which may be empty
                sha256 = hashes.get("sha256")
                address = urldefrag(urljoin(url, address)).url
                yield Listed(name, address, sha256 if isinstance(sha256, str) else None, yanked)
            case _:
                raise ValueError("a file without a name, an address or hashes")


def _from_html(page: str, url: str) -> Iterator[Listed]:
    first, *rest = page.split("<!--")
    page = first + "".join(part.partition("-->")[2] for part in rest)
    link: Mapping[str, str] = {}
    after = 0
    for tag in _TAG.finditer(page):
        if "href" in link:
            yield _linked(link, page[after : tag.start()], url)
        name, link, after = tag[1].lower(), {}, tag.end()
        if name == "a":
            link = _attributes(tag[2])
        elif name == "base":
            url = urljoin(url, _attributes(tag[2]).get("href", ""))
        elif name == "meta" and (about := _attributes(tag[2])).get("name") == "pypi:repository-version":
            _check_version(about.get("content", "1.0"))
    if "href" in link:
        yield _linked(link, page[after:], url)


def _linked(link: Mapping[str, str], inside: str, url: str) -> Listed:
    address, fragment = urldefrag(urljoin(url, link["href"]))
    algorithm, _, digest = fragment.partition("=")
    name = unescape(_OTHER_TAG.sub("", inside)).strip()
    return Listed(name, address, digest if algorithm == "sha256" and digest else None, yanked="data-yanked" in link)


def _attributes(text: str) -> dict[str, str]:
    """Return a tag's attributes; of several with one name the first counts, as in HTML."""
    found: dict[str, str] = {}
    for name, value in _ATTRIBUTE.findall(text):
        found.setdefault(name.lower(), unescape(value[1:-1] if value[:1] in ("'", '"') else value))
    return found


def _check_version(version: str) -> None:
    if version.partition(".")[0] != "1":
        raise ValueError("a page of another version")
