"""Parts of a document that a command writes, each between two HTML comments."""

from __future__ import annotations

import re


def put(text: str, name: str, body: str) -> str:
    """Replace the body between `<!-- name: ... -->`, or `<!-- name -->`, and `<!-- /name -->` in a document.

    Raises:
        ValueError: the document has no such pair of comments, or several.
    """
    place = re.compile(rf"(<!-- {name}(?:: [^\n]*)? -->\n).*?(<!-- /{name} -->\n)", re.DOTALL)
    new, count = place.subn(lambda found: found[1] + body + found[2], text)
    if count != 1:
        raise ValueError(f"there are {count} places for {name}")
    return new
