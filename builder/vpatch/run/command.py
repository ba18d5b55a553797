"""Which interpreter a command runs, and whether a folder on PYTHONPATH reaches it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import is_zipfile

from vpatch.errors import Failure, Problem, naming

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
# How pip and uv write a first line that is too long or has spaces.
_LONG_PATH = re.compile(rb"""'''exec' ("[^"]+"|'[^']+'|\S+) "\$0" "\$@"\n""")
_VALUE = re.compile("[cmWX]")  # of a word of Python's flags, the one that takes what follows
_SEARCH = "sSP"  # of the flags, those with which Python searches other folders
# The variables that decide which vLLM is imported, and whether it loads the receipt.
_DECIDING = {"PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONUSERBASE", "VLLM_PLUGINS"}
_UNSET = re.compile("(?:-u|--unset=)(.+)|-u|--unset")  # of env's options


class Missing(Failure):
    """The command does not exist. A shell's exit status for that is 127."""


@dataclass(frozen=True)
class Command:
    """A command, and the Python that it runs.

    Attributes:
        program: its file.
        python: the interpreter; None if it is not known.
        first: what Python puts before the folders of PYTHONPATH, a folder or an archive; None if it puts none there.
        flags: those of Python's flags with which it searches other folders, such as -s.
    """

    program: Path
    python: Path | None
    first: Path | None
    flags: tuple[str, ...] = ()


def understood(words: Sequence[str]) -> Command:
    """Find out what a command runs.

    Raises:
        Missing: there is no such command.
        Failure: it runs an interpreter that ignores PYTHONPATH, or does not get it.
    """
    found = shutil.which(words[0])
    if not found:
        raise Missing(Problem("no such command", words[0], "neither a program on PATH nor an executable file"))
    program = Path(found).absolute()
    if _PYTHON.fullmatch(program.name):
        return _interpreter(words, program)
    python, options = _first_line(program)
    if python is None:
        return Command(program, None, None)
    _refuse_isolated(program, options)
    return _command(program, python, options, program.resolve())


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
    return _command(program, program, options, None if script in (None, "-") else Path(str(script)).resolve())


def _command(program: Path, python: Path, options: Sequence[str], script: Path | None) -> Command:
    flags = tuple(f"-{flag}" for flag in _SEARCH if any(flag in _letters(word) for word in options))
    if "-P" in flags or os.environ.get("PYTHONSAFEPATH"):
        # The folder of a script is left out; a folder or an archive that is run as a script is not.
        return Command(program, python, script if script and _is_run_whole(script) else None, flags)
    if script is None:
        return Command(program, python, current_folder(), flags)
    return Command(program, python, script if _is_run_whole(script) else script.parent, flags)


def _is_run_whole(script: Path) -> bool:
    """Whether Python runs the `__main__` in it, and imports from it: a folder, or an archive, as zipapp makes them."""
    return script.is_dir() or is_zipfile(script)


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
        words = _of_env(words[1:], program)
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return None, []
    found = shutil.which(words[0])
    if not found:
        raise Failure(Problem("no interpreter", str(program), f"its first line names {words[0]}, which does not exist"))
    return Path(found).absolute(), words[1:]


def _of_env(words: Sequence[str], program: Path) -> list[str]:
    """Return what the program `env` runs.

    Raises:
        Failure: it changes what decides which vLLM Python imports.
    """
    if words and words[0].startswith("-S"):  # splits what follows, as we have done
        words = [*filter(None, [words[0][2:]]), *words[1:]]
    rest = iter(words)
    for word in rest:
        name, sets, _ = word.partition("=")
        if unset := _UNSET.fullmatch(word):
            name, sets = unset[1] or next(rest, ""), ""
        elif word.startswith("-"):
            cause = f"its first line runs env with {word}, which can take PYTHONPATH away"
            raise Failure(Problem("out of reach", str(program), cause, hint="run it without"))
        elif not sets:
            return [word, *rest]
        if name in _DECIDING:
            cause, hint = f"its first line {'sets' if sets else 'unsets'} {name}", "do so before vpatch, not there"
            raise Failure(Problem("out of reach", str(program), cause, hint=hint))
    return []


def _refuse_isolated(program: Path, options: Sequence[str]) -> None:
    given = [word for word in options if set(_letters(word)) & set("EI")]
    if given:
        cause = f"it runs Python with {' '.join(given)}, which ignores PYTHONPATH"
        raise Failure(Problem("out of reach", str(program), cause, hint="run it without"))


def _letters(word: str) -> str:
    """Return the flags of an option word, without the value that ends it."""
    return _VALUE.split(word[1:])[0] if word.startswith("-") and not word.startswith("--") else ""
