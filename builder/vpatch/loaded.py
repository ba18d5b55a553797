"""`python -c THIS '[["vllm.config", [["A.f", "", [12]]]], ...]'`: whether an interpreter runs the functions of files.

Run as text by the interpreter of the vLLM in question, which need not have vpatch. Functions are `Changed` tuples. The
last line on stdout is an object of JSON, `{module: {"error": ..., "replaced": {function: what is there instead}}}`:
`error` says why the module cannot be imported, and is null where it can.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, TypeAlias

Changed: TypeAlias = tuple[str, str, list[int]]
"""A function by qualified name; "setter", "getter" or "deleter" where it is that accessor of a property, else "";
and the first lines (from 1, decorators included) of its changed definitions, one of which has to run."""

DEPTH = 6  # wrappers within wrappers


def compiled(path: str, name: str, lines: list[int]) -> list[CodeType]:
    """Compile a file and return the code of its functions called `name` that begin in one of `lines`."""
    found: list[CodeType] = []
    codes = [compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)]
    while codes:
        code = codes.pop()
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        if code.co_name == name and code.co_firstlineno in lines:
            found.append(code)
    return found


def attributes(name: str) -> list[str]:
    """Split a qualified name into the attributes that lead to it, with Python's names for private ones."""
    around, found = "", list[str]()
    for step in name.split("."):
        private = step.startswith("__") and not step.endswith("__") and around.strip("_")
        found.append(f"_{around.lstrip('_')}{step}" if private else step)
        around = step
    return found


def within(thing: object, depth: int = DEPTH) -> Iterator[CodeType]:
    """Yield the code of a function and of those that decorators, properties and closures keep in it."""
    if isinstance(code := getattr(thing, "__code__", None), CodeType):
        yield code
    if depth:
        cells = getattr(thing, "__closure__", None) or ()
        inner = [
            getattr(thing, name, None) for name in ("__wrapped__", "__func__", "fget", "fset", "fdel", "fn", "func")
        ]
        for value in [*inner, *(_content(cell) for cell in cells)]:
            if value is not None and value is not thing and not isinstance(value, type):
                yield from within(value, depth - 1)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None


def replaced(module: object, functions: list[Changed]) -> dict[str, str]:
    """Find the functions of a module that are not the changed ones of its file, with what is there instead."""
    wrong = {}
    for name, accessor, lines in functions:
        full = f"{name}.{accessor}".strip(".")
        thing: object = module
        try:
            for step in attributes(name):
                thing = inspect.getattr_static(thing, step)
        except AttributeError:
            wrong[full] = "nothing"
            continue
        known = compiled(inspect.getsourcefile(module) or "", name.rpartition(".")[2], lines)  # type: ignore[arg-type]
        if not any(code in known for code in within(thing)):
            code = next(within(thing), None)
            wrong[full] = f"{code.co_filename}:{code.co_firstlineno}" if code else type(thing).__name__
    return wrong


def main(wanted: list[tuple[str, list[Changed]]]) -> None:
    """Import the modules and print what became of their functions."""
    sys.path[:] = [path for path in sys.path if path]  # the current folder would shadow what is really imported
    answers: dict[str, dict[str, object]] = {}
    for module, names in wanted:
        try:
            answers[module] = {"error": None, "replaced": replaced(importlib.import_module(module), names)}
        except BaseException as error:  # whatever a foreign module does
            answers[module] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", "replaced": {}}
    print(f"\n{json.dumps(answers)}", flush=True)  # noqa: T201
    os._exit(0)  # what was imported does not always let it end


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
