"""`python -c THIS '[["vllm.config", ["A.f"]], ...]'`: whether an interpreter imports the functions that files define.

Run as text by the interpreter of the vLLM in question, which need not have vpatch. The last line on stdout is an object
of JSON, `{module: {"error": ..., "replaced": {function: what is there instead}}}`: `error` says why the module cannot
be imported, and is null where it can.
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
from typing import Any

DEPTH = 6  # wrappers within wrappers


def compiled(path: str, name: str) -> list[CodeType]:
    """Compile a file and find the code of the function with this qualified name; a property may have several."""
    found = [compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)]
    for step in name.split("."):
        inner = [code for outer in found for code in outer.co_consts if isinstance(code, CodeType)]
        found = [code for code in inner if code.co_name == step]
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


def replaced(module: object, names: list[str]) -> dict[str, str]:
    """List the functions whose code is not that of the module's file, with what is there instead."""
    wrong = {}
    for name in names:
        thing: object = module
        try:
            for step in name.split("."):
                thing = inspect.getattr_static(thing, step)
        except AttributeError:
            wrong[name] = "nothing"
            continue
        known = compiled(inspect.getsourcefile(module) or "", name)  # type: ignore[arg-type]
        if not any(code in known for code in within(thing)):
            code = next(within(thing), None)
            wrong[name] = f"{code.co_filename}:{code.co_firstlineno}" if code else type(thing).__name__
    return wrong


def main(wanted: list[tuple[str, list[str]]]) -> None:
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
