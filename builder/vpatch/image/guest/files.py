"""Are the files of an image as planned? Prints one JSON line, `[[name, ok, because], ...]`.

    python -c "$(cat files.py)" '{"root": "/...", "dist_info": "vllm-....dist-info", "said": "<provenance>"}'

`root` is the folder that holds `vllm/`. The host asks the same of files that it reads from a registry, where no
interpreter of the image can run; `ok` is None for what it cannot tell then.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import json
import marshal
import os
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

_HEADER = 16


class Tree(Protocol):
    """A folder that holds `vllm/`; paths are relative to it."""

    def read(self, path: str) -> bytes | None:
        """Give a file's bytes, None where there is none."""
        ...

    def names(self, folder: str) -> Sequence[str]:
        """Give the names in a folder, none where there is no folder."""
        ...


class Disk:
    """The tree at a folder of this file system."""

    def __init__(self, root: str) -> None:
        self.root = root

    def read(self, path: str) -> bytes | None:
        """Give a file's bytes."""
        try:
            with open(f"{self.root}/{path}", "rb") as file:  # noqa: PTH123 - plain and quick: this is a script
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> Sequence[str]:
        """Give the names in a folder."""
        try:
            return sorted(os.listdir(f"{self.root}/{folder}"))  # noqa: PTH208 - as above
        except (FileNotFoundError, NotADirectoryError):
            return ()


def checks(tree: Tree, dist_info: str, said: str) -> Iterator[tuple[str, bool | None, str]]:
    """Compare a tree with what provenance says; give each check with its answer and the reason."""
    files: dict[str, Any] = json.loads(said)["files"]
    modules = [path for path in files if path.endswith(".py")]
    provenance = f"{dist_info}/vpatch-image.json"
    wrong = [path for path in files if _sha256(tree.read(path)) not in files[path]["after"]]
    wrong += [] if tree.read(provenance) == said.encode() else [provenance]
    yield "files", not wrong, _told(wrong, "is not what was built", f"{len(files)} files are as planned")
    broken = [f"{path}: {why}" for path in modules if (why := _error(tree.read(path) or b"", path))]
    yield "compile", not broken, _told(broken, "", f"{len(modules)} modules compile")
    yield ("bytecode", *_bytecode(tree, modules))
    rows = {
        row[0]: row[1:] for row in csv.reader((tree.read(f"{dist_info}/RECORD") or b"").decode().splitlines()) if row
    }
    untrue = [path for path in (*files, provenance) if rows.get(path) != _row(tree.read(path) or b"")]
    yield "record", not untrue, _told(untrue, "has no true row in RECORD", "RECORD is true of them")


def imported(root: str, modules: Sequence[str]) -> tuple[str, bool, str]:
    """Say whether this interpreter would import exactly these modules. Imports nothing."""
    wrong = []
    for path in modules:
        name = path[: -len(".py")].replace("/", ".")
        origin = _origin(name.removesuffix(".__init__"))
        if origin is None or os.path.realpath(origin) != os.path.realpath(f"{root}/{path}"):
            wrong.append(f"{path}: {sys.executable} would import {origin or 'no such module'}")
    return "interpreter", not wrong, _told(wrong, "", f"{sys.executable} imports exactly these")


def _origin(name: str) -> str | None:
    folders: list[str] | None = None
    spec = None
    parts = name.split(".")
    for index in range(len(parts)):
        above = ".".join(parts[: index + 1])
        spec = next(filter(None, (finder.find_spec(above, folders) for finder in sys.meta_path)), None)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
        # Namespace packages look for their parent there.
        sys.modules[above] = types.ModuleType(above)
        sys.modules[above].__path__ = folders
    return spec.origin if spec else None


def _told(wrong: Sequence[str], what: str, fine: str) -> str:
    return "; ".join(f"{one} {what}".strip() for one in wrong) or fine


def _sha256(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _row(content: bytes) -> list[str]:
    said = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return [f"sha256={said}", str(len(content))]


def _error(content: bytes, path: str) -> str:
    try:
        compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return str(error)
    return ""


def _bytecode(tree: Tree, modules: Sequence[str]) -> tuple[bool | None, str]:
    """Look for compiled twins that are not of their source."""
    unknown: list[str] = []
    stale: list[str] = []
    for path in modules:
        folder, _, name = path.rpartition("/")
        stem = name[: -len("py")]
        for twin in tree.names(f"{folder}/__pycache__"):
            if twin.startswith(stem) and twin.endswith(".pyc"):
                content = tree.read(f"{folder}/__pycache__/{twin}") or b""
                of = _compiled_from(content, tree.read(path) or b"", path, twin)
                (unknown if of is None else [] if of else stale).append(f"{folder}/__pycache__/{twin}")
    if stale:
        return False, _told(stale, "is not compiled from the source beside it", "")
    if unknown:
        return None, _told(unknown, "is of another interpreter: not told", "")
    return True, "no stale bytecode"


def _compiled_from(content: bytes, source: bytes, path: str, name: str) -> bool | None:
    if content[:4] != importlib.util.MAGIC_NUMBER:
        return None
    optimize = next((level for level in (1, 2) if f".opt-{level}." in name), 0)
    try:
        fresh = compile(source, path, "exec", dont_inherit=True, optimize=optimize)
        # The interpreter would load just the same bytes.
        return bool(marshal.loads(content[_HEADER:]) == fresh)  # noqa: S302
    except (SyntaxError, ValueError, EOFError, TypeError):
        return False


def main(asked: Any) -> None:
    """Answer for the tree that `asked` names."""
    warnings.simplefilter("ignore")
    # As a server is started: without the current folder.
    sys.path[:] = [path for path in sys.path if path]
    modules = [path for path in json.loads(asked["said"])["files"] if path.endswith(".py")]
    answers = [*checks(Disk(asked["root"]), asked["dist_info"], asked["said"]), imported(asked["root"], modules)]
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
