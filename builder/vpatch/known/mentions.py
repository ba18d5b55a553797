"""What a text names in place of an error line: an overlay's id, or pull requests and issues that overlays mention."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vpatch.core.overlay import Catalogued
from vpatch.known.lines import telling

_LONGEST = 1000  # characters of a text that may be a name or an address
_URL = re.compile(r"\bgithub\.com/(?P<of>[\w.-]{1,100}/[\w.-]{1,100})/(?:pull|issues)/(?P<number>\d{2,6})(?!\d)")
_HASH = re.compile(r"(?<![\w#/.-])(?P<of>[\w.-]{1,100}/[\w.-]{1,100})?#(?P<number>\d{3,6})\b")
_NUMBER = re.compile(r"(?:(?:pr|pull|issue) )?(?P<number>\d{3,6})", re.IGNORECASE)
_VLLM = "vllm-project/vllm"


def named(text: str) -> set[str]:
    """Return the ids of overlays that a short text may name: words with a hyphen, else the only one that tells."""
    if len(text) > _LONGEST:
        return set()
    words = {word.strip("-") for word in re.findall(r"[\w-]+", text.lower().replace("_", "-"))}
    return words if len(telling(text)) == 1 else {word for word in words if "-" in word}


def mentioned(overlays: Sequence[Catalogued]) -> dict[str, list[Catalogued]]:
    """Return the overlays by each pull request and issue among their links, or in their texts for people."""
    found: dict[str, list[Catalogued]] = {}
    for item in overlays:
        overlay = item.overlay
        links = (*overlay.upstream, *(link for part in overlay.parts for link in part.upstream))
        texts = "\n".join((overlay.summary, *overlay.releases.values(), item.why))
        for reference in dict.fromkeys((*links, *_all_in(texts))):
            found.setdefault(reference, []).append(item)
    return found


def references(text: str) -> list[str]:
    """Return the pull requests and issues that a short text names, each once, as `owner/repository#number`."""
    return _all_in(text.strip()) if len(text) <= _LONGEST else []


def _all_in(text: str) -> list[str]:
    found = [*_URL.finditer(text), *_HASH.finditer(text)]
    named = [f"{one['of'] or _VLLM}#{one['number']}" for one in found]
    if only := _NUMBER.fullmatch(text):
        named.append(f"{_VLLM}#{only['number']}")
    return list(dict.fromkeys(named))
