"""What a plan came to, remembered by what it read, so that a second start neither parses nor imports overlays."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vpatch.core.catalogue import GROUP, Selection
from vpatch.farm.content import BYTECODE, Content, digest_of
from vpatch.farm.store import make_private
from vpatch.farm.upkeep import MEMOS, touch
from vpatch.tree.backup import sha256
from vpatch.tree.locate import Loaded, Tree

_OWN = Path(__file__).parents[1]

Stamp = list[list[str | int]]
"""What tells one state of a file or folder from another, without a read of its files; [] of what does not exist."""


@dataclass(frozen=True)
class Watched(Tree):
    """A tree that notes the hash of whatever is read of it; None for what does not exist."""

    seen: dict[str, str | None] = field(default_factory=dict, compare=False)

    def load(self, path: str) -> Loaded | None:
        """Read `path` as any tree does."""
        loaded = super().load(path)
        self.seen[path] = None if loaded is None else sha256(loaded.content)
        return loaded


@dataclass(frozen=True)
class Memo:
    """A file of the farms' folder that remembers one plan.

    Attributes:
        file: its path; its name follows from the vLLM, the selection, and where this vpatch finds itself and overlays.
    """

    file: Path

    @classmethod
    def of(cls, store: Path, tree: Tree, selection: Selection) -> Memo:
        """Return the memo of a plan."""
        only = None if selection.only is None else sorted(selection.only)
        asked = json.dumps([str(tree.root), only, sorted(selection.also), sys.executable, str(_OWN), sys.path])
        return cls(store / MEMOS / f"{sha256(asked.encode())[:32]}.json")

    def recall(self, tree: Tree) -> Content | None:
        """Return what the plan came to.

        None if vpatch, an overlay or a file that it read is not as it was, or if the files are not those of the digest.
        """
        try:
            told = json.loads(self.file.read_text("utf-8"))
            same = all(_stamp(path) == was for path, was in told["code"].items())
            if not same or any(_hash(tree, path) != was for path, was in told["read"].items()):
                return None
            content = _content(tree, told)
            if digest_of(content.files, content.applied) != content.digest:
                return None
            touch(self.file)
            return content
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def keep(self, content: Content, read: Mapping[str, str | None], code: Mapping[str, Stamp]) -> None:
        """Remember a plan. A folder that cannot be written to is no failure: the next start plans again.

        Args:
            content: what it came to.
            read: the hashes of what it read of the tree.
            code: `code_stamps` from before the plan.
        """
        files = {file: data.hex() for file, data in content.files.items()}
        about = {"overlays": content.overlays, "digest": content.digest, "files": files, "applied": content.applied}
        part = self.file.with_suffix(f".{os.getpid()}")
        try:
            make_private(self.file.parent)
            part.write_text(json.dumps({"code": code, "read": read, **about}))
            part.replace(self.file)
        except OSError:
            with suppress(OSError):
                part.unlink()


def _content(tree: Tree, told: Mapping[str, Any]) -> Content:
    files = {file: bytes.fromhex(data) for file, data in told["files"].items()}
    return Content(tree.root, tuple(told["overlays"]), told["digest"], files, dict(told["applied"]))


def _hash(tree: Tree, path: str) -> str | None:
    loaded = tree.load(path)
    return None if loaded is None else sha256(loaded.content)


def _stamp(path: str) -> Stamp:
    """Return the stamp of a file, or the names in a folder, with the stamps of its packages' dist-info.

    A folder's own times do not count: tests, coverage and Python's bytecode write to folders of code all the time.
    """
    try:
        with os.scandir(path) as entries:
            names = sorted((entry for entry in entries if _counts(entry.name)), key=lambda entry: entry.name)
            return [_state(entry.name, entry.stat() if entry.name.endswith("-info") else None) for entry in names]
    except NotADirectoryError:
        return [_state("", os.stat(path))]  # noqa: PTH116 - of hundreds: a Path takes longer than the call
    except OSError:
        return []


def _counts(name: str) -> bool:
    return name != BYTECODE and not name.startswith(".")


def _state(name: str, of: os.stat_result | None) -> list[str | int]:
    return [name, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns] if of else [name]


def code_stamps() -> dict[str, Stamp]:
    """Return the stamps of what a plan follows from beside the vLLM."""
    return {path: _stamp(path) for path in _code()}


def _code() -> Iterator[str]:
    """Yield the folders of packages, and the code of vpatch and of those that have overlays."""
    yield from filter(None, sys.path)
    packages = {point.value.partition(".")[0] for point in entry_points(group=GROUP)}
    specs = filter(None, map(find_spec, sorted(packages)))
    others = [top for spec in specs for top in spec.submodule_search_locations or ()]
    for top in (str(_OWN), *others):
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if _counts(name)]
            yield from (f"{folder}/{name}" for name in names if name.endswith(".py"))
