"""Text for people: counts, lists of names, commands to copy, and lines that fit the terminal."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 overlay", "4 overlays"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str]) -> str:
    """Return names as in a sentence: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def command(*words: object) -> str:
    """Return a command of vpatch to copy, quoted for a shell."""
    return f"`vpatch {shlex.join(map(str, words))}`"


def options(name: str, values: Iterable[str]) -> list[str]:
    """Return an option once for each value."""
    return [word for value in values for word in (name, value)]


def wrapped(text: str, width: int | None, indent: str = "", hanging: str = "") -> list[str]:
    """Break a text between words into lines of `width` columns; None: one line.

    What stands in backticks stays on one line, so that a command can be copied. The first line begins with `indent`,
    the others with `hanging`.
    """
    if width is None or len(indent) + len(text) <= width:
        return [indent + text]
    kept = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        kept,
        width,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return [line.replace("\0", " ") for line in lines]
