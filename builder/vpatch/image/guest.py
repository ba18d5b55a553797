"""Check the files of an image, or import modules, with the image's own interpreter.

    python -c "$SCRIPT" files '{"root": "/...", "dist_info": "vllm-....dist-info", "provenance": "..."}'
    python -c "$SCRIPT" imports '["vllm.config", ...]'

The script is `vpatch/tree/marshalled.py`, and then this file: `vpatch.image.checks.guest_script()`.

`files` compares the files in `root`, the folder that holds `vllm/`, with the provenance, and prints one line of JSON,
`[[name, ok, because], ...]`. vpatch also calls `check_tree` itself, on files that it reads from a registry.

`imports` prints as its last line `vpatch: ` and a JSON object, `{module: {"ok": ..., "because": ...}}`. `ok` is true,
false if the module is to blame, or null if the image lacks what it needs. All other output goes to stderr.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib
import importlib.util
import json
import os
import re
import stat
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

if __name__ != "__main__":  # else that file was run before this one, see above
    from vpatch.tree.marshalled import is_compiled_from, is_of_this_interpreter

LIBRARY = re.compile(r"(?<!\S)(\S{1,300}\.so[\w.]{0,50}): cannot open shared object file")
COMPILED = re.compile(r"vllm\.(?:.*\.)?_\w*C(?:_\w+)?")  # `vllm._C` and the like: no overlay adds or removes one

_MOST = 1 << 26  # bytes of a file

Read = Callable[[str], bytes | None]
Names = Callable[[str], Sequence[str]]


def read_file(path: str) -> bytes | None:
    """Return a file's bytes, None without one, or of a pipe, a device or a file that no module is as large as."""
    with suppress(FileNotFoundError, NotADirectoryError):
        of = os.stat(path)  # noqa: PTH116 - pathlib takes time
        if stat.S_ISREG(of.st_mode) and of.st_size <= _MOST:
            with open(path, "rb") as file:  # noqa: PTH123 - as above
                return file.read()
    return None


def list_names(folder: str) -> Sequence[str]:
    """Return the names in a folder, none for a missing one."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(folder))  # noqa: PTH208 - as above
    return ()


def check_tree(
    root: str, dist_info: str, provenance: str, read: Read = read_file, names: Names = list_names
) -> Iterator[tuple[str, bool | None, str]]:
    """Compare the folder that holds `vllm/` with its provenance; `read` and `names` get paths that start with `root`.

    Yield each check's name, its answer (None: undecided) and the reason.
    """
    files: dict[str, Any] = json.loads(provenance)["files"]
    own, record = f"{dist_info}/vpatch-image.json", f"{dist_info}/RECORD"
    contents = {path: read(f"{root}/{path}") for path in (*files, own, record)}
    wrong = [path for path in files if _sha256(contents[path]) not in files[path]["after"]]
    wrong += [] if contents[own] == provenance.encode() else [own]
    yield "files", not wrong, _reason(wrong, "is not what was built", f"{len(files)} files are as planned")
    modules = {path: contents[path] or b"" for path in files if path.endswith(".py")}
    broken = [f"{path}: {why}" for path, source in modules.items() if (why := _syntax_error(source, path))]
    yield "compile", not broken, _reason(broken, "", f"{len(modules)} modules compile")
    yield ("bytecode", *_check_bytecode(root, modules, read, names))
    rows = _rows(contents[record] or b"")
    untrue = [path for path in (*files, own) if rows.get(path) != _row(contents[path] or b"")]
    yield "record", not untrue, _reason(untrue, "has no true row in RECORD", "RECORD is true of them")


def check_interpreter(root: str, modules: Sequence[str]) -> tuple[str, bool, str]:
    """Check that this interpreter would import exactly these modules; import none of them."""
    wrong = []
    for path in modules:
        name = path[: -len(".py")].replace("/", ".")
        origin = _origin(name.removesuffix(".__init__"))
        if origin is None or os.path.realpath(origin) != os.path.realpath(f"{root}/{path}"):
            wrong.append(f"{path}: {sys.executable} would import {origin or 'no such module'}")
    return "interpreter", not wrong, _reason(wrong, "", f"{sys.executable} imports exactly these")


def _origin(name: str) -> str | None:
    folders: list[str] | None = None
    spec = None
    for above in accumulate(name.split("."), "{}.{}".format):
        spec = next(filter(None, (finder.find_spec(above, folders) for finder in sys.meta_path)), None)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
        # Namespace packages look up their parent in `sys.modules`.
        sys.modules[above] = types.ModuleType(above)
        sys.modules[above].__path__ = folders
    return spec.origin if spec else None


def _reason(wrong: Sequence[str], what: str, fine: str) -> str:
    return "; ".join(f"{one} {what}".strip() for one in wrong) or fine


def _sha256(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _rows(record: bytes) -> dict[str, list[str]]:
    try:
        return {row[0]: row[1:] for row in csv.reader(record.decode().splitlines()) if row}
    except (ValueError, csv.Error):
        return {}


def _row(content: bytes) -> list[str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return [f"sha256={digest}", str(len(content))]


def _syntax_error(content: bytes, path: str) -> str:
    try:
        compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return str(error)
    except (RecursionError, MemoryError):
        return "nested too deeply"
    return ""


def _check_bytecode(root: str, modules: Mapping[str, bytes], read: Read, names: Names) -> tuple[bool | None, str]:
    unknown: list[str] = []
    stale: list[str] = []
    for path, source in modules.items():
        folder, _, name = path.rpartition("/")
        cache = f"{folder}/__pycache__"
        for pyc in names(f"{root}/{cache}"):
            if pyc.startswith(name[: -len("py")]) and pyc.endswith(".pyc"):
                content = read(f"{root}/{cache}/{pyc}") or b""
                if not is_of_this_interpreter(content):
                    unknown.append(f"{cache}/{pyc}")
                elif not is_compiled_from(content, source, pyc):
                    stale.append(f"{cache}/{pyc}")
    if stale:
        return False, _reason(stale, "is not compiled from the source beside it", "")
    if unknown:
        return None, _reason(unknown, "is of another interpreter: not told", "")
    return True, "no stale bytecode"


def lacking(error: BaseException | None) -> str | None:
    """Return the missing module or library that made an import fail, None if it failed by itself."""
    # Libraries wrap the errors of their own imports, and raise another ImportError.
    while isinstance(error, ImportError | OSError):
        if library := LIBRARY.search(str(error)):  # ctypes raises an OSError
            return library[1]
        name = (error.name or "") if isinstance(error, ImportError) else ""
        if name.partition(".")[0] == "vllm" and not COMPILED.fullmatch(name):
            return None
        if isinstance(error, ModuleNotFoundError) and name:
            return name
        error = error.__cause__ or error.__context__
    return None


def import_module(name: str) -> dict[str, object]:
    """Import a module; return `ok` and `because`."""
    try:
        importlib.import_module(name)
    except Exception as error:
        if missing := lacking(error):
            return {"ok": None, "because": f"the image lacks {missing}"}
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:500]
        return {"ok": False, "because": f"{type(error).__name__}: {text} ({where.filename}:{where.lineno})"}
    except SystemExit as error:
        return {"ok": False, "because": f"it ends the interpreter with {error.code}"}
    return {"ok": True, "because": ""}


def import_modules(names: list[str]) -> None:
    """Import modules and print the outcomes; threads and C libraries cannot write to stdout either. Then exit."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    found = {name: import_module(name) for name in names}
    sys.stdout.flush()
    os.write(stdout, f"\nvpatch: {json.dumps(found)}\n".encode())
    os._exit(0)  # what was imported may keep the interpreter from exiting


def check_files(question: Any) -> None:
    """Check the tree in `question["root"]` and print the answers."""
    warnings.simplefilter("ignore")
    # As a server is started: without the current folder.
    sys.path[:] = [path for path in sys.path if path]
    root, provenance = question["root"], question["provenance"]
    modules = [path for path in json.loads(provenance)["files"] if path.endswith(".py")]
    answers = [*check_tree(root, question["dist_info"], provenance), check_interpreter(root, modules)]
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    {"files": check_files, "imports": import_modules}[sys.argv[1]](json.loads(sys.argv[2]))
