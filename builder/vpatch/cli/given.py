"""What the user gave `find`: a text, a log in a file or on standard input, and perhaps a TREE behind it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import BinaryIO

import click

from vpatch.cli.output import on_terminal
from vpatch.errors import Failure, naming
from vpatch.known import logs
from vpatch.tree.locate import locate

_PASTED = 128 << 10  # bytes of a text that may be broken anywhere; of a longer one, each line stands alone
_MIB = 1 << 20
_PATH = re.compile(r"[\w./~+-]*[\w~+-]\.(?:log|txt|out|err)(?:\.\d+)?|[.~]?[\w.-]*/[\w./~+-]+")


def parted(
    text: tuple[str, ...], tree: Path | None, python: Path | None
) -> tuple[tuple[str, ...], Path | None, list[str]]:
    """Return the text without a TREE behind it, the tree, and a note of how the last word was taken, if it is a path.

    A program, which might be an interpreter, is not run.
    """
    *words, last = text or ("",)
    if not words or tree or python:
        return text, tree, []
    place = Path(last)
    if not os.path.isdir(last):  # noqa: PTH112 - false, too, where a text is no path
        is_path = "/" in last and "://" not in last
        return text, None, [f"{last} is taken as text: it is no folder; --tree names a vLLM"] if is_path else []
    try:
        locate(place)
    except Failure as failure:
        return text, None, [f"{last} is taken as text, for in this folder is no vLLM: {failure.problems[0].cause}"]
    return tuple(words), place, [f"{last} is taken as TREE, not as text"]


def given(text: tuple[str, ...]) -> tuple[str | logs.Tail, list[str]]:
    """Return what the user gave, a long text as a log, with a note if only its end was read."""
    if text and text != ("-",):
        if not "".join(text).strip():
            raise click.UsageError("TEXT is empty")
        absent = len(text) == 1 and _PATH.fullmatch(text[0])
        note = [f"{text[0]} is no file here, so that it was searched for as a text"] if absent else []
        return _log(text) or (" ".join(text), note)
    if sys.stdin is None or (not text and on_terminal(sys.stdin)):
        raise click.UsageError("give a line, or - and the line on standard input")
    with naming("cannot read", "standard input"):
        return _end_of(sys.stdin.buffer)


def _log(text: tuple[str, ...]) -> tuple[str | logs.Tail, list[str]] | None:
    """Return the end of a log, if the text is its path; None if it is no file."""
    if len(text) > 1 or not os.path.isfile(text[0]):  # noqa: PTH113 - false, too, where a text is no path
        return None
    with naming("cannot read", text[0]), Path(text[0]).open("rb") as stream:
        found, notes = _end_of(stream)
    return found, [f"{text[0]} is a file, so that its lines are searched", *notes]


def _end_of(stream: BinaryIO) -> tuple[str | logs.Tail, list[str]]:
    """Return a short text, or the end of a log, with a note if only that was read."""
    found = logs.tail(stream)
    part = f"only the last {found.read // _MIB} of {found.size // _MIB} MiB were searched"
    return (found.text if found.size <= _PASTED else found), [part] if found.read < found.size else []
