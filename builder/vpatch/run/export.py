"""A farm in a folder that the user names, for another container that mounts it read-only.

The folder may be a mount point, which cannot be renamed, so the farm is written in place. Its manifest has another name
until all of it is there. So nobody takes a half farm for a whole one, and the next export knows that it may replace it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vpatch import locking
from vpatch.core.catalogue import Selection
from vpatch.errors import Failure, Problem, naming
from vpatch.foreign import parse_json, read_regular
from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.run import store
from vpatch.run.content import Content, is_bytecode
from vpatch.run.launch import planned, refuse_other, stock_of
from vpatch.tree.locate import Tree, locate

PART = f"{MANIFEST}.part"  # the manifest of a farm that is not whole

# Of this vpatch or of another one.
_OWN = re.compile(r"vpatch_\w+(\.py|-[^/]+\.dist-info/[^/]+)|(vllm/.*)?__pycache__/[^/]+\.pyc")
_LINK = re.compile(r"vllm(/.*|[^/]*\.libs)")


def export(selection: Selection, python: Path, folder: Path, expected: str = "") -> tuple[Tree, Content]:
    """Write a farm into a folder, and nothing anywhere else; return the vLLM, and what the farm holds.

    Args:
        selection: the overlays.
        python: the interpreter that imports the vLLM.
        folder: made if it is missing; else empty, or a farm, which is replaced if it differs.
        expected: the digest that the overlays must have, or its beginning; "" for any.

    Raises:
        UnknownName: there is no such overlay.
        Failure: an overlay does not fit; the overlays have another digest; the folder has something else in it, or
            cannot be written to.
    """
    return _exported(stock_of(python), selection, python, folder, expected)


def export_tree(selection: Selection, place: Path, folder: Path, expected: str = "") -> tuple[Tree, Content]:
    """Write the farm of a vLLM in a folder, which may be one that `vpatch fetch` made, and not installed anywhere.

    Its links lead to that folder. The digest is that of every installation of this release.

    Args:
        selection: the overlays.
        place: the vLLM, as of `locate`.
        folder: as of `export`.
        expected: as of `export`.

    Raises:
        UnknownName, Failure: as `locate` and `export`.
    """
    return _exported(locate(place), selection, Path(sys.executable), folder, expected)


def _exported(tree: Tree, selection: Selection, python: Path, folder: Path, expected: str) -> tuple[Tree, Content]:
    content = planned(tree, selection)
    refuse_other(content, expected)
    put(content, folder, python)
    return tree, content


def put(content: Content, folder: Path, python: Path) -> None:
    """Write a farm into a folder. If it is there as it has to be, only its bytecode is made anew.

    Raises:
        Failure: the folder has something else in it, or cannot be written to.
    """
    folder = folder.resolve()
    if os.pathsep in str(folder):
        raise _unfit(folder, f"PYTHONPATH ends a name at {os.pathsep!r}")
    if folder.is_relative_to(content.root / "vllm"):
        raise _unfit(folder, "it is in vLLM's own folder", "name another")
    with _opened(folder):
        _refuse_foreign(folder)
        whole = (folder / MANIFEST).is_file() and not list(store.changes(content, folder, shared=True))
        with naming("cannot write the farm", str(folder)):
            if whole:
                _recompile(content, folder, python)
            else:
                _write(content, folder, python)


@contextmanager
def _opened(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other exports out of it, in a umask that lets another user read."""
    before = os.umask(0o022)
    try:
        with naming("cannot write the farm", str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with naming("cannot lock the folder", str(folder)):
                locking.lock(lock)
            yield
        finally:
            os.close(lock)
    finally:
        os.umask(before)


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder with a file that no farm has: the user's own."""
    with naming("cannot read", str(folder)):
        # The manifests first: what names the other files has to be vpatch's itself.
        entries = sorted(store.entries(str(folder)), key=lambda one: one[0] not in {MANIFEST, PART})
        names = {path.name for path in folder.iterdir()}
        if not names:
            return
        if not names & {MANIFEST, PART}:
            raise _unfit(folder, f"it has {min(names)}, and is no farm", "name an empty folder")
        files = {MANIFEST, PART, *_listed(folder / MANIFEST), *_listed(folder / PART)}
    for path, entry in entries:
        if entry.is_dir(follow_symlinks=False):
            continue
        own = entry.is_file(follow_symlinks=False) and (path in files or _OWN.fullmatch(path))
        if not own and not (entry.is_symlink() and _LINK.fullmatch(path)):
            raise _unfit(folder / path, "vpatch did not write it", "name an empty folder")


def _unfit(folder: Path, cause: str, hint: str = "") -> Failure:
    return Failure(Problem("not a folder for a farm", str(folder), cause, hint=hint))


def _listed(manifest: Path) -> list[str]:
    """Return the files that a manifest names; none if it was cut off, for then there are none yet."""
    try:
        return [file for file in parse_json(_content(manifest))["files"] if isinstance(file, str)]
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return []


def _content(file: Path) -> bytes:
    """Read a regular file; b"" of a link, or of anything else, such as a pipe."""
    return read_regular(file) if stat.S_ISREG(file.lstat().st_mode) else b""


def _recompile(content: Content, folder: Path, python: Path) -> None:
    """Make the bytecode of a farm anew, with which nothing is compared. Without it Python compiles at each start."""
    for path, entry in list(store.entries(str(folder))):
        if is_bytecode(path) and not (entry.is_symlink() and store.target(entry) == content.links.get(path)):
            (folder / path).unlink()
    store.compiled(content, folder, folder, python)


def _write(content: Content, folder: Path, python: Path) -> None:
    """Replace what is in the folder.

    No manifest is written over or renamed: a process that holds the old one as its receipt would show the new one, or
    one of another name.
    """
    if (folder / MANIFEST).exists():
        (folder / PART).unlink(missing_ok=True)
        store.write_new(folder / PART, _content(folder / MANIFEST))
        (folder / MANIFEST).unlink()
    # The receipt, which refuses a farm without a manifest, goes last and comes first.
    for old in sorted(folder.iterdir(), key=lambda path: not path.name.startswith("vllm")):
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        elif old.name != PART:
            old.unlink()
    (folder / PART).unlink(missing_ok=True)  # nothing else is left that it names
    store.write_new(folder / PART, content.manifest)
    store.fill(content, folder, without=MANIFEST)
    store.compiled(content, folder, folder, python)
    (folder / PART).replace(folder / MANIFEST)
