"""What a plan came to, remembered by what it read, so that a second start neither parses nor imports overlays.

Overlays may read anything while they are imported. An audit hook of Python sees every open and every list of a folder,
by whatever package: there is no other list of what they read. It sees no extension that opens files by itself, and no
question whether a file exists.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import source_from_cache
from pathlib import Path

from vpatch.core.catalogue import Selection
from vpatch.manifest import sha256
from vpatch.run.content import BYTECODE, Content
from vpatch.run.store import make_private
from vpatch.run.upkeep import MEMOS, touch
from vpatch.tree.locate import Loaded, Tree

_OWN = Path(__file__).parents[1]

Stamp = list[list[str | int]]
"""What tells one state of a file or folder from another, without a read of its files; [] of what does not exist."""

_LISTED = ("os.listdir", "os.scandir")
_SYSTEM = ("/proc/", "/sys/", "/dev/")  # differ in each process

_records: list[dict[str, Stamp]] = []  # of the blocks that run: a hook cannot be removed


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
        python = [sys.executable, sys.version, sys.path, str(_OWN)]
        asked = json.dumps([str(tree.root), tree.dist_info, only, sorted(selection.also), python])
        return cls(store / MEMOS / f"{sha256(asked.encode())[:32]}.json")

    def recall(self, tree: Tree) -> Content | None:
        """Return what the plan came to.

        None if vpatch, an overlay or a file that it read is not as it was, or if the files are not those of the digest.
        """
        try:
            about = json.loads(self.file.read_text("utf-8"))
            again = Watched(tree.root, tree.dist_info, tree.version)
            for path in about["read"]:
                again.load(path)
            if again.seen != about["read"] or not unchanged(about["code"]):
                return None
            files = {file: bytes.fromhex(data) for file, data in about["files"].items()}
            hashes = (dict(about[key]) for key in ("applied", "replaced", "release"))
            content = Content(tree.root, tuple(about["overlays"]), files, *hashes)
            if content.digest != about["digest"]:
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
            code: what else was opened for it, from `opened`.
        """
        tree = {os.path.normpath(f"{content.root}/{path}") for path in read}  # whose stamps may differ on equal bytes
        code = {path: stamp for path, stamp in code.items() if path not in tree}
        files = {file: data.hex() for file, data in content.files.items()}
        about = {"overlays": content.overlays, "digest": content.digest, "files": files, "applied": content.applied}
        more = {"replaced": content.replaced, "release": content.release}
        part = self.file.with_suffix(f".{os.getpid()}")
        try:
            make_private(self.file.parent)
            part.write_text(json.dumps({"code": code, "read": read, **about, **more}))
            part.replace(self.file)
        except OSError:
            with suppress(OSError):
                part.unlink()


@contextmanager
def opened() -> Iterator[dict[str, Stamp]]:
    """Yield the stamps of what is opened in the block, each from before; what is imported is added at its end.

    Modules that were imported before count, too, and so do the folders of packages and of `sys.path`, where a new
    module may come before another. Those of Python itself do not, and bytecode counts as its source.
    """
    _install()
    found = _imported()
    _records.append(found)
    try:
        yield found
    finally:
        _records.remove(found)
    for path, stamp in _imported().items():
        found.setdefault(path, stamp)


def unchanged(stamps: Mapping[str, Stamp]) -> bool:
    """Whether everything that `opened` has stamped is as it was."""
    return all(_stamp(path) == was for path, was in stamps.items())


@cache
def _install() -> None:
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _records or not (event == "open" or event in _LISTED):
        return
    records, _records[:] = _records[:], []  # what the stamp itself lists does not count
    try:
        if path := _read(arguments):
            for record in records:
                if path not in record:
                    record[path] = _stamp(path)
    finally:
        _records[:] = records


def _read(arguments: tuple[object, ...]) -> str:
    """Return the absolute path of what an event reads; "" if it is written, a descriptor, or of the system."""
    path, *more = arguments
    written = any(isinstance(flags, int) and flags & (os.O_ACCMODE | os.O_CREAT) for flags in more)
    if written or not isinstance(path, str | bytes | os.PathLike | None):
        return ""
    name = os.path.abspath(os.fsdecode(path or "."))  # noqa: PTH100 - links stay
    # `pkgutil` lists each folder below a package, also the one that Python writes bytecode to.
    return "" if name.startswith(_SYSTEM) or name.endswith(f"/{BYTECODE}") else _source(name)


def _source(path: str) -> str:
    """Return the source of bytecode; other paths as they are."""
    with suppress(ValueError, NotImplementedError):
        if os.path.basename(os.path.dirname(path)) == BYTECODE:  # noqa: PTH119, PTH120
            return source_from_cache(path)
    return path


def _imported() -> dict[str, Stamp]:
    """Return the stamps of `sys.path`, and of each imported module that is not Python's own, with its folders."""
    paths = dict.fromkeys(filter(None, sys.path))
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in sys.stdlib_module_names:
            places = [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())]
            paths.update(dict.fromkeys(place for place in places if place and isinstance(place, str)))
    return {path: _stamp(path) for path in map(_source, paths)}


def _stamp(path: str) -> Stamp:
    """Return the stamp of a file, or the names in a folder.

    A folder's own times do not count: tests, coverage and Python's bytecode write to folders of code all the time.
    """
    try:
        of = os.stat(path)  # noqa: PTH116 - of hundreds: a Path takes longer than the call
        if stat.S_ISDIR(of.st_mode):
            return [[name] for name in sorted(os.listdir(path)) if name != BYTECODE and not name.startswith(".")]  # noqa: PTH208
        return [["", of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns]]
    except (OSError, ValueError):
        return []
