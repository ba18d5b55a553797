"""`python -c SCRIPT '["vllm.config", ...]'`: import modules of vLLM, one after the other, and say of each how it went.

The last line on stdout is `vpatch: ` and an object of JSON, `{module: {"ok": ..., "because": ...}}`: `ok` is true,
false where the module is to blame, or null where the image lacks what it needs. All that is imported on the way writes
to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import traceback

Outcome = dict[str, object]

LIBRARY = re.compile(r"(\S+\.so[\w.]*): cannot open shared object file")
COMPILED = re.compile(r"vllm\.(?:.*\.)?_\w*C(?:_\w+)?")  # `vllm._C` and the like: no overlay makes or removes any


def lacking(error: BaseException | None) -> str | None:
    """Give the module or library for want of which an import failed; None: it failed by itself.

    Libraries wrap the errors of their own imports, and raise another ImportError.
    """
    while isinstance(error, ImportError | OSError):
        if library := LIBRARY.search(str(error)):  # an OSError where ctypes wants it
            return library[1]
        name = (error.name or "") if isinstance(error, ImportError) else ""
        if name.partition(".")[0] == "vllm" and not COMPILED.fullmatch(name):
            return None
        if isinstance(error, ModuleNotFoundError) and name:
            return name
        error = error.__cause__ or error.__context__
    return None


def told(error: Exception) -> str:
    """Say what went wrong, and where, on one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]} ({where.filename}:{where.lineno})"


def outcome(name: str) -> Outcome:
    """Import a module."""
    try:
        importlib.import_module(name)
    except Exception as error:
        if lacks := lacking(error):
            return {"ok": None, "because": f"the image lacks {lacks}"}
        return {"ok": False, "because": told(error)}
    except SystemExit as error:
        return {"ok": False, "because": f"it ends the interpreter with {error.code}"}
    return {"ok": True, "because": ""}


def main(names: list[str]) -> None:
    """Import the modules with nothing else on stdout, also from threads and libraries in C, and say how it went."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    found = {name: outcome(name) for name in names}
    sys.stdout.flush()
    os.write(stdout, f"\nvpatch: {json.dumps(found)}\n".encode())
    os._exit(0)  # what was imported does not always let it end


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
