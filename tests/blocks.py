"""Parts of a document that a command writes, each between two marks."""

from __future__ import annotations

import re


def put(text: str, name: str, body: str) -> str:
    """Give a document's text with another body between `<!-- name: ... -->` and `<!-- /name -->`.

    Raises:
        ValueError: it has no such place, or several.
    """
    place = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- /{name} -->\n)", re.DOTALL)
    new, count = place.subn(lambda found: found[1] + body + found[2], text)
    if count != 1:
        raise ValueError(f"there are {count} places for {name}")
    return new
