"""Code that Python runs before vLLM, and folders that hold another vLLM: `.pth` files, sitecustomize, PYTHONPATH."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vpatch.doctor.findings import Finding, Level
from vpatch.doctor.interpreter import pythonpath
from vpatch.doctor.subject import Subject
from vpatch.errors import shell
from vpatch.foreign import read_regular
from vpatch.tree.interpreter import Interpreter

_VLLM = re.compile(rb"\bvllm\b")
_IMPORT = re.compile(rb"^import[ \t]+([\w.]+)")  # of a `.pth` file, Python runs the lines that begin so


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield start-up code that mentions vLLM, and every other vLLM that could be imported instead."""
    python = subject.python
    code = list(_startup_code(python)) if python else []
    for path, line in code:
        what = f"{line} runs when Python starts, and mentions vllm"
        do = "to rule it out, rename it, restart the server, and rename it back"
        yield Finding("startup", Level.WARNING, what, (str(path),), do)
    others = list(_others(subject, python))
    yield from others
    if python and not code and not others:
        yield Finding("startup", Level.OK, "no start-up code mentions vllm, and no search path has another one")


def _startup_code(python: Interpreter) -> Iterator[tuple[Path, str]]:
    for file in python.startup:
        if _VLLM.search(_read(file)):
            yield file, file.name
    for pth in sorted(path for site in python.sites if site.is_dir() for path in site.glob("*.pth")):
        if not re.search(r"(^|[._])vllm(-[^-]*)?\.pth$", pth.name):  # vLLM's own editable install
            for line in _read(pth).splitlines():
                if (found := _IMPORT.match(line)) and _VLLM.search(line + _module(python, found[1].decode())):
                    yield pth, f"`{line.decode('utf-8', 'replace')[:60]}`"


def _module(python: Interpreter, name: str) -> bytes:
    """Return the code of a module that a `.pth` file imports; empty if it is not found."""
    path = Path(*name.split("."))
    for base in python.paths:
        for file in (base / path.with_suffix(".py"), base / path / "__init__.py"):
            if file.is_file():
                return _read(file)
    return b""


def _read(file: Path) -> bytes:
    try:
        return read_regular(file)
    except OSError:
        return b""


def _others(subject: Subject, python: Interpreter | None) -> Iterator[Finding]:
    root, named = subject.tree.root, pythonpath()
    for folder in named:
        if _holds_vllm(folder) and folder.resolve() != root:
            what = "PYTHONPATH of this shell has another vLLM: a server that is started with it imports that one"
            yield Finding(
                "search-path", Level.WARNING, what, (str(folder),), "start the server with `env -u PYTHONPATH`"
            )
    for folder in python.paths if python else ():
        if _holds_vllm(folder) and folder.resolve() != root and folder not in named:
            what = "this folder, which Python searches, has another vLLM"
            do = f"{shell('vpatch', 'doctor', folder)} examines it; remove the one that you do not use"
            yield Finding("search-path", Level.NOTE, what, (str(folder),), do)
    here = Path.cwd()
    if _holds_vllm(here) and here.resolve() != root:
        what = "the current folder has another vLLM: `python -m vllm...` and `python -c` import it when started here"
        yield Finding(
            "search-path", Level.WARNING, what, (str(here),), "start the server in another folder, or with `vllm serve`"
        )


def _holds_vllm(folder: Path) -> bool:
    return (folder / "vllm/__init__.py").is_file()
