"""Run an interpreter of the user's, and ask it where it imports vLLM from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpatch import guest
from vpatch.errors import Failure, Problem, UnknownName, cause, did_you_mean, naming
from vpatch.foreign import kind_of

_PATIENCE = 60
_LINE = 4096  # bytes of a script's first lines that are read
_NO_ANSWER = "its answer is not that of a Python interpreter"

# `python -c` also searches the current folder, which programs do not: a script could import what lies there.
_BEGIN = "import sys; sys.path[:] = [p for p in sys.path if p]; exec(compile(sys.argv.pop(1), '<vpatch>', 'exec'))"


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter, as it describes itself or as the files of its environment do.

    Attributes:
        python: the program.
        version: its version, "3.12.3"; from files, it may also be "3.12", or "" if they do not show it.
        prefix: the folder of its environment.
        paths: the folders that it imports from, in order.
        sites: the folders whose `.pth` files it reads when it starts.
        startup: the files of `sitecustomize` and `usercustomize` that it runs when it starts.
        root: the resolved folder from which it imports `vllm`; None if it has none.
        behind: the same without the folder that `asked` leaves out.
    """

    python: Path
    version: str
    prefix: Path
    paths: tuple[Path, ...]
    sites: tuple[Path, ...]
    startup: tuple[Path, ...]
    root: Path | None
    behind: Path | None = None


def interpreter(python: Path) -> Path:
    """Return the absolute path of an interpreter; a name that is no file here is searched on PATH, as by a shell.

    Raises:
        UnknownName: no such program exists.
        Failure: it is a file that cannot be executed, or a script that an interpreter runs.
    """
    if python.is_file():
        if os.access(python, os.X_OK):
            _refuse_script(python)
            return python.absolute()
        raise Failure(Problem("not an interpreter", str(python), "the file is not executable"))
    found = shutil.which(python) if python.name == str(python) else None
    if found is None:
        with naming("not an interpreter", str(python)):
            cause = "it is a folder: name the interpreter in it" if python.is_dir() else _no_file(python)
        raise UnknownName(Problem("not an interpreter", str(python), cause))
    _refuse_script(Path(found))
    return Path(found).absolute()  # PATH may have a relative folder


def _refuse_script(program: Path) -> None:
    """Refuse a console script, such as `vllm`, which would be run; one that is called `python` may be a wrapper."""
    with suppress(OSError), program.open("rb") as file:  # who may not read a program may still run it
        line, second = file.readline(_LINE), file.readline(_LINE)
        names = [word.rpartition(b"/")[2] for word in line[2:].split()] if line.startswith(b"#!") else []
        # So pip and uv begin a script whose first line would be too long, or have spaces.
        if not names or not (any(map(_is_python, names)) or second.startswith(b"'''exec'")):
            return
        if not _is_python(program.name.encode()):
            beside = program.with_name("python")
            hint = did_you_mean([str(beside)] if beside.is_file() else [])
            raise Failure(Problem("not an interpreter", str(program), "it is a script that Python runs", hint=hint))


def _is_python(name: bytes) -> bool:
    return name.startswith((b"python", b"pypy"))


def _no_file(path: Path) -> str:
    try:
        return f"{kind_of(path.stat().st_mode)}, not a program"
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"


def asked(
    python: Path, without: Path | None = None, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Interpreter:
    """Ask an interpreter to describe itself; `without` is a folder on its path, the others are as in `ask`.

    Raises:
        Failure: it does not answer.
    """
    answer = ask(python, guest.script("describe", "ask"), str(without or ""), flags=flags, environment=environment)
    try:
        return Interpreter(
            python,
            answer["version"],
            Path(answer["prefix"]),
            tuple(dict.fromkeys(map(Path, answer["paths"]))),
            tuple(dict.fromkeys(map(Path, answer["sites"]))),
            tuple(map(Path, answer["startup"])),
            *(Path(answer[which]).parent.resolve() if answer[which] else None for which in ("vllm", "behind")),
        )
    except (TypeError, LookupError) as error:
        raise Failure(Problem("cannot ask the interpreter", str(python), _NO_ANSWER)) from error


def ask(
    python: Path,
    script: str,
    *arguments: str,
    flags: Sequence[str] = (),
    patience: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Run a script, without bytecode, for at most `patience` seconds (default: 60); parse its last line as JSON.

    It runs as by `python -c`, but imports nothing from the current folder. `flags` are further ones of Python's own.

    Raises:
        Failure: it does not answer.
    """
    import json
    import subprocess

    patience, command = patience or _PATIENCE, [str(python), *flags, "-B", "-c", _BEGIN, script, *arguments]
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="replace",
            timeout=patience,
            env=environment,
            check=False,
        )
        if ran.returncode == 0:
            return json.loads(ran.stdout.splitlines()[-1])
        why = _complaint(ran.stderr) or f"it exits with code {ran.returncode}"
    except OSError as error:
        why = cause(error)
    except subprocess.TimeoutExpired:
        why = f"no answer in {patience:g} seconds"
    except (ValueError, IndexError):
        why = _NO_ANSWER
    raise Failure(Problem("cannot ask the interpreter", str(python), why))


def _complaint(stderr: str) -> str:
    """Return the line that says why a program failed: the last of a traceback, else the first (of pyenv's shims)."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    if any(_BEGIN.partition(";")[0] in line for line in lines):  # another program, which repeats its arguments
        return _NO_ANSWER
    traceback = any(line.startswith("Traceback (most recent") for line in lines)
    return lines[-1 if traceback else 0] if lines else ""
