"""What an image's history proves of its layers: where a copied folder went, and so where it did not."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from vpatch.image import limits

# The engine's own builder and BuildKit; only what they write is trusted to be the whole of a layer.
_COPIED = re.compile(
    r"(?:COPY|ADD) .*\s(?P<buildkit>/\S*) # buildkit|.*#\(nop\) +(?:COPY|ADD) .* in (?P<classic>/\S*)\s*"
)
# Links of every distribution with a merged /usr, and so the same folder by two names.
_MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")


def destinations(config: Mapping[str, Any], layers: int) -> tuple[str | None, ...]:
    """Say for each layer, from the lowest, which path it was copied to; None where its history does not prove it.

    A destination is believed to be reached through no link but those of a merged /usr.
    """
    history = config.get("history")
    made = [entry for entry in history if not entry.get("empty_layer")] if isinstance(history, list) else []
    if len(made) != layers:  # squashed, or edited: nothing lines up
        return (None,) * layers
    return tuple(_destination(str(entry.get("created_by"))) for entry in made)


def related(one: str, other: str) -> bool:
    """Say whether one of two paths is above, below or the same as the other."""
    one, other = f"{_plain(one)}/".lstrip("/"), f"{_plain(other)}/".lstrip("/")
    return one.startswith(other) or other.startswith(one)


def _destination(created_by: str) -> str | None:
    # Patterns of this kind take long for a long line that was made for them.
    found = _COPIED.fullmatch(created_by) if len(created_by) <= limits.PATH else None
    path = found and (found["buildkit"] or found["classic"])
    return path if path and "$" not in path else None


def _plain(path: str) -> str:
    path = posixpath.normpath(f"/{path}").strip("/")
    return f"usr/{path}" if path.partition("/")[0] in _MERGED else path
