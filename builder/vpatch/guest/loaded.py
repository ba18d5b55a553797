"""What becomes of vLLM's modules when they are imported: which functions run, and why a module cannot be imported.

The interpreter of the vLLM in question, which need not have vpatch, runs this file as text. `answer_functions` gets
`[["vllm.config", [["A.f", "", [12]]]], ...]`, with functions as `Changed` tuples. Its last line on stdout is an object
of JSON, `{module: {"errors": ..., "replaced": {function: what is there instead}, "failed": {function: why it could not
be compared}}}`: `errors` says why the module cannot be imported, as `errors()` does, and is empty where it can.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, TypeAlias

Changed: TypeAlias = tuple[str, str, list[int]]
"""A function by qualified name; "setter", "getter" or "deleter" where it is that accessor of a property, else "";
and the first lines (from 1, decorators included) of its changed definitions, one of which has to run."""

DEPTH = 6  # wrappers within wrappers
CHAIN = 20  # exceptions that led to each other

# Errors that code makes. Others, as of libraries, devices and memory, come from the machine.
FAULTS = frozenset({"NameError", "AttributeError", "TypeError", "ValueError", "LookupError", "ArithmeticError"})
LIBRARY = re.compile(r"(?<!\S)(\S{1,300}\.so[\w.]{0,50}): cannot open shared object file")
COMPILED = re.compile(r"vllm\.(?:.*\.)?_\w*C(?:_\w+)?")  # `vllm._C` and the like: no overlay adds or removes one


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
    if issubclass(type(code := held(thing, "__code__")), CodeType):
        yield code
    if depth:
        cells = held(thing, "__closure__") or ()
        inner = [held(thing, name) for name in ("__wrapped__", "__func__", "fget", "fset", "fdel", "fn", "func")]
        for value in [*inner, *(held(cell, "cell_contents") for cell in cells)]:
            if value is not None and value is not thing and not issubclass(type(value), type):
                yield from within(value, depth - 1)


def held(thing: object, name: str) -> Any:
    """Return an attribute that an object really has; None if it has none, or if reading it fails.

    Lazy modules and proxies make up attributes when they are asked for them: that is slow, or raises anything.
    """
    try:
        return getattr(thing, name) if inspect.getattr_static(thing, name, None) is not None else None
    except Exception:  # whatever a foreign object does; an empty closure cell raises ValueError
        return None


def instead(module: object, changed: Changed) -> str:
    """Return what a module has instead of a changed function of its file; "" if it has that function."""
    name, _, lines = changed
    thing: object = module
    try:
        for step in attributes(name):
            thing = inspect.getattr_static(thing, step)
    except AttributeError:
        return "nothing"
    known = compiled(inspect.getsourcefile(module) or "", name.rpartition(".")[2], lines)  # type: ignore[arg-type]
    codes = list(within(thing))
    if any(code in known for code in codes):
        return ""
    return f"{codes[0].co_filename}:{codes[0].co_firstlineno}" if codes else type(thing).__name__


def compared(module: object, functions: list[Changed]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what a module has instead of functions of its file, and why others could not be compared."""
    replaced, failed = dict[str, str](), dict[str, str]()
    for changed in functions:
        name = f"{changed[0]}.{changed[1]}".strip(".")
        try:
            if there := instead(module, changed):
                replaced[name] = there
        except Exception as error:  # of a foreign object
            failed[name] = summary(error)
    return replaced, failed


def summary(error: BaseException) -> str:
    """Describe an exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def errors(error: BaseException | None) -> list[dict[str, Any]]:
    """Describe an exception and what came before it, each with the names of its classes and where it was raised.

    "cause" is whether all those before it name it as their cause. In the others, it was being handled.
    """
    found: list[dict[str, Any]] = []
    cause = True
    while error is not None and len(found) < CHAIN:
        frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        file, line = next((at for at in reversed(frames) if not at[0].startswith("<frozen importlib")), ("", 0))
        kinds = [kind.__name__ for kind in type(error).__mro__]
        about = {"summary": summary(error), "message": str(error), "name": getattr(error, "name", None), "kinds": kinds}
        found.append({**about, "file": file, "line": line, "cause": cause})
        cause = cause and error.__cause__ is not None
        error = error.__cause__ or error.__context__
    return found


def lacking(found: list[dict[str, Any]]) -> str | None:
    """Return the missing package or library that made an import fail, by what `errors` returns; None if none did.

    Libraries wrap the errors of their own imports, and raise another ImportError.
    """
    for error in found:
        if not {"ImportError", "OSError"}.intersection(error["kinds"]):
            break
        if library := LIBRARY.search(error["message"]):  # ctypes raises an OSError
            return library[1]
        name = (error["name"] or "") if "ImportError" in error["kinds"] else ""
        if name.partition(".")[0] == "vllm" and not COMPILED.fullmatch(name):
            break
        if name and "ModuleNotFoundError" in error["kinds"]:
            return str(name)
    return None


def is_of_code(error: dict[str, Any]) -> bool:
    """Whether an error is surely of the code that raised it, and not for want of something around it.

    vLLM is also imported where no device, no Triton and no compiled extension is. What it lacks there is None, or an
    attribute of a module. Modules that import each other lack attributes, too, if another one is imported first.
    """
    module = re.match(r"(partially initialized )?module '|cannot access submodule '", error["message"])
    if module or "'NoneType'" in error["message"] or lacking([error]):
        return False
    return not FAULTS.isdisjoint(error["kinds"])


def import_module(name: str) -> dict[str, object]:
    """Import a module; return `ok`, None if the image lacks what it needs, and `because`."""
    try:
        importlib.import_module(name)
    except Exception as error:
        if missing := lacking(errors(error)):
            return {"ok": None, "because": f"the image lacks {missing}"}
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:500]
        return {"ok": False, "because": f"{type(error).__name__}: {text} ({where.filename}:{where.lineno})"}
    except SystemExit as error:
        return {"ok": False, "because": f"it ends the interpreter with {error.code}"}
    return {"ok": True, "because": ""}


def answer_imports(names: str) -> None:
    """Import modules, a list in JSON; print `vpatch: ` and what `import_module` returns for each. Then exit.

    Threads and C libraries cannot write to stdout either.
    """
    stdout = os.dup(1)
    os.dup2(2, 1)
    found = {name: import_module(name) for name in json.loads(names)}
    sys.stdout.flush()
    os.write(stdout, f"\nvpatch: {json.dumps(found)}\n".encode())
    os._exit(0)  # what was imported may keep the interpreter from exiting


def answer_functions(wanted: str) -> None:
    """Import modules, and print what became of their functions: see the head of this file."""
    answers: dict[str, dict[str, object]] = {}
    for name, functions in json.loads(wanted):
        try:
            module = importlib.import_module(name)
        except BaseException as error:  # whatever a foreign module does
            answers[name] = {"errors": errors(error), "replaced": {}, "failed": {}}
            continue
        replaced, failed = compared(module, functions)
        answers[name] = {"errors": [], "replaced": replaced, "failed": failed}
    print(f"\n{json.dumps(answers)}", flush=True)  # noqa: T201
    os._exit(0)  # what was imported does not always let it end
