"""Text for people: broken into lines that fit a terminal, and without characters that control one."""

from __future__ import annotations

import re
import textwrap
from contextlib import suppress
from pathlib import Path

_COMMAND = re.compile(r'`(?:(?:vpatch|docker|git|patch|pipx?|sudo|uvx?|\S*python[\d.]*) |env (?:-u |\w+=)|"\$\()')
_WORD = r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+"  # of a shell
_PIECE = re.compile(rf"--?[\w-]+ (?!-){_WORD}|{_WORD}")  # an option with its value, or another word
_SPACE, _BREAK = "\0", "\1"  # in place of a space, and of a line break, that `textwrap` does not see
_ESCAPED = {ord(_SPACE): "\\x00", ord(_BREAK): "\\x01"}


def printable(text: str) -> str:
    r"""Return `text` on one line, with characters that control or deceive a terminal escaped: `\x1b`, `\n`, `\u202e`.

    Labels, file names and code of an image or a wheel may hold any. This is the only place that escapes them: for what
    `cli.output` prints, and for the page of the matrix.
    """
    if text.isprintable():
        return text
    # In some locales Python reads names as ASCII, and keeps other bytes as surrogates.
    with suppress(UnicodeEncodeError):
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def from_here(path: Path) -> str:
    """Return a path relative to the current folder, if it is below it."""
    try:
        relative = path.relative_to(Path.cwd().resolve())
    except (OSError, ValueError):  # the current folder is gone, or not above it
        return str(path)
    return str(relative if relative.parts else path)


def shortened(text: str, most: int) -> str:
    """Return a text, cut to at most `most` characters, the last three of them dots if it is longer."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def wrapped(text: str, width: int | None, indent: str = "", hanging: str = "") -> list[str]:
    """Break a text between words into lines of `width` columns; None: one line.

    What stands in backticks stays on one line if it fits. A command that does not fit is continued by backslashes, so
    that it can be copied. The first line begins with `indent`, the others with `hanging`.
    """
    if width is None or len(indent) + len(text) <= width:
        return [indent + text]
    text = text.translate(_ESCAPED)
    room = width - len(hanging)
    kept = re.sub(r"`[^`]*`", lambda code: _kept(code[0], room), text)
    lines = textwrap.wrap(
        kept,
        width,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return [line.replace(_SPACE, " ") for one in lines for line in one.replace(_BREAK, f"\n{hanging}").split("\n")]


def _kept(code: str, room: int) -> str:
    """Return code in backticks as one word if it fits, or is a command, which may then contain line breaks."""
    if len(code) < room:  # the sentence may end behind it
        return code.replace(" ", _SPACE)
    if not _COMMAND.match(code):
        return code
    first, *pieces = _PIECE.findall(code)
    lines = [first]
    for piece in pieces:
        if len(f"{lines[-1]} {piece} \\") < room:
            lines[-1] += f" {piece}"
        else:
            lines.append(f"  {piece}")
    return f" \\{_BREAK}".join(lines).replace(" ", _SPACE)
