"""Write the Python sources of a release to disk, read from its wheel without downloading all of it."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vpatch import locking
from vpatch.errors import Failure, Problem, naming
from vpatch.foreign import descriptor
from vpatch.net.ranges import Progress
from vpatch.release.index import find_wheel
from vpatch.release.wheel import open_wheel, read_members


@dataclass(frozen=True)
class Fetched:
    """A release on disk, and the wheel that it came from."""

    version: str
    wheel: str
    tree: Path
    files: int
    bytes_read: int
    wheel_bytes: int


def fetch(version: str, target: Path, *, folders: Collection[str] = (), progress: Progress | None = None) -> Fetched:
    """Write the Python files and the dist-info of a vLLM release to `target`, a folder that is new or empty.

    Everything is written beside `target` and renamed at the end: `target` is complete or does not exist.

    Args:
        version: the release.
        target: where to write.
        folders: paths in site-packages, each with a slash at its end. All that the wheel has in them is written, too.
        progress: is told how many bytes were read.

    Raises:
        Failure: no such release, a failing server, a file that differs from RECORD, a taken or unwritable target.
    """
    target = _free_path(target)
    wheel = find_wheel(version)
    with _staging_beside(target) as staging, open_wheel(wheel, progress=progress) as file:
        files = 0
        for member in read_members(file, lambda name: _is_source(name) or name.startswith(tuple(folders))):
            path = staging / member.name
            with naming("cannot write", str(target / member.name)):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as copy:
                    copy.write(member.data)
                os.utime(path, (member.modified, member.modified))
            files += 1
        with naming("cannot write", str(target)):
            staging.rename(target)  # replaces an empty folder
        return Fetched(wheel.version, wheel.filename, target, files, file.received, file.size)


def _is_source(name: str) -> bool:
    return name.endswith(".py") or name.partition("/")[0].endswith(".dist-info")


def _free_path(target: Path) -> Path:
    """Return the real path of a target that may be made, before the network is asked for anything."""
    with naming("cannot write", str(target)):
        target = Path(os.path.realpath(target))  # Path.resolve raises RuntimeError for a loop of links
        try:
            taken = any(target.iterdir())
        except FileNotFoundError:
            return target
        if taken:
            raise Failure(Problem("cannot fetch into", str(target), "it is not empty"))
        if target == Path.cwd():  # renaming over it would leave the user's shell in a folder that is gone
            raise Failure(Problem("cannot fetch into", str(target), "it is the current folder"))
    return target


@contextmanager
def _staging_beside(target: Path) -> Iterator[Path]:
    """Make a folder beside `target`, and remove it afterwards unless it was renamed.

    It is locked while it is in use: the next fetch recognizes what a killed one left behind by the missing lock.
    """
    staging = target.with_name(f".{target.name}.vpatch-{secrets.token_hex(4)}")
    new = [folder for folder in target.parents if not folder.exists()]
    try:
        with naming("cannot write", str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(target)
            staging.mkdir()
        with descriptor(staging) as lock:
            locking.lock(lock)
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for folder in new:
            with suppress(OSError):  # not empty: the target is in it
                folder.rmdir()


def _remove_leftovers(target: Path) -> None:
    pattern = re.escape(f".{target.name}.vpatch-") + "[0-9a-f]{8}"
    for folder in target.parent.iterdir():
        if re.fullmatch(pattern, folder.name) and folder.is_dir() and not folder.is_symlink():
            # BlockingIOError: another fetch is using it.
            with suppress(OSError), descriptor(folder) as lock:
                locking.lock(lock, patience=0)
                shutil.rmtree(folder)
