"""Which interpreter a command runs, and whether a folder on PYTHONPATH reaches it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vpatch.errors import Failure, Problem, naming

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
# How pip and uv write a first line that is too long or has spaces.
_LONG_PATH = re.compile(rb"""'''exec' ("[^"]+"|'[^']+'|\S+) "\$0" "\$@"\n""")
_VALUE = re.compile("[cmWX]")  # of a word of Python's flags, the one that takes what follows
_ISOLATED = "it runs Python with {}, which ignores PYTHONPATH; run it without"


class Missing(Failure):
    """The command does not exist. A shell's exit status for that is 127."""


@dataclass(frozen=True)
class Command:
    """A command, and the Python that it runs.

    Attributes:
        program: its file.
        python: the interpreter; None if it is not known.
        first: the folder that Python puts before those of PYTHONPATH; None if it puts none there.
    """

    program: Path
    python: Path | None
    first: Path | None


def understood(words: Sequence[str]) -> Command:
    """Find out what a command runs.

    Raises:
        Missing: there is no such command.
        Failure: it runs an interpreter that ignores PYTHONPATH.
    """
    found = shutil.which(words[0])
    if not found:
        raise Missing(Problem("no such command", words[0], "neither a program on PATH nor an executable file"))
    program = Path(found).absolute()
    if _PYTHON.fullmatch(program.name):
        return _interpreter(words, program)
    python, options = _first_line(program)
    _refuse_isolated(program, options)
    safe = _is_safe(options)
    return Command(program, python, None if python is None or safe else program.resolve().parent)


def current_folder() -> Path:
    """Return the current folder.

    Raises:
        Failure: it was removed.
    """
    with naming("cannot read", "the current folder"):
        return Path.cwd()


def _interpreter(words: Sequence[str], program: Path) -> Command:
    """Read Python's own options: those before the script, or up to -c or -m."""
    options: list[str] = []
    rest = iter(words[1:])
    script: str | None = None
    for word in rest:
        if not word.startswith("-") or word == "-":
            script = word
            break
        options.append(word)
        with_value = _VALUE.search(word[1:])
        if word.startswith("--"):
            next(rest, None)  # of --check-hash-based-pycs, the only one that a command would have
        elif with_value and with_value[0] in "cm":
            break
        elif with_value and word.endswith(with_value[0]):
            next(rest, None)
    _refuse_isolated(program, options)
    if _is_safe(options):
        return Command(program, program, None)
    if script in (None, "-"):
        return Command(program, program, current_folder())
    place = Path(str(script)).resolve()
    return Command(program, program, place if place.is_dir() else place.parent)


def _first_line(program: Path) -> tuple[Path | None, list[str]]:
    """Return the interpreter that a script names, and its options; None if it is no script of Python's."""
    with naming("cannot read", str(program)), program.open("rb") as file:
        line, second = file.readline(4096), file.readline(4096)
    if line.rstrip() == b"#!/bin/sh" and (long := _LONG_PATH.fullmatch(second)):
        line = b"#!" + long[1]
    if not line.startswith(b"#!"):
        return None, []
    text = line[2:].decode(errors="replace")
    try:
        words = shlex.split(text)
    except ValueError:  # the system knows no quotes there
        words = text.split()
    if words and Path(words[0]).name == "env":
        if any(word.startswith("PYTHONPATH=") for word in words):
            raise Failure(Problem("out of reach", str(program), "its first line sets PYTHONPATH"))
        words = [word for word in words[1:] if word != "-S" and "=" not in word]
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return None, []
    found = shutil.which(words[0])
    if not found:
        raise Failure(Problem("no interpreter", str(program), f"its first line names {words[0]}, which does not exist"))
    return Path(found).absolute(), words[1:]


def _refuse_isolated(program: Path, options: Sequence[str]) -> None:
    given = [word for word in options if set(_letters(word)) & set("EI")]
    if given:
        raise Failure(Problem("out of reach", str(program), _ISOLATED.format(" ".join(given))))


def _is_safe(options: Sequence[str]) -> bool:
    """Whether Python puts no folder before those of PYTHONPATH."""
    return bool(os.environ.get("PYTHONSAFEPATH")) or any("P" in _letters(word) for word in options)


def _letters(word: str) -> str:
    """Return the flags of an option word, without the value that ends it."""
    return _VALUE.split(word[1:])[0] if word.startswith("-") and not word.startswith("--") else ""
