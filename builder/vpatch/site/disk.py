"""The few steps that touch the disk, each of which a power cut or a kill may follow.

No file is ever opened for writing under its own name, so that no reader sees half of it and no hard link to it changes.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from errno import EEXIST, ENOTEMPTY
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem
from vpatch.site import bytecode
from vpatch.site.kept import STAGED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def cause(error: OSError) -> str:
    """Say what the system refused, in lower case."""
    return (error.strerror or str(error)).lower()


@contextmanager
def naming(what: str, where: str, more: str = "") -> Iterator[None]:
    """Turn a system's error into a failure that names the file, with `more` after the cause.

    Raises:
        Failure: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise Failure(Problem(what, where, cause(error) + more)) from error


def staged(target: Path) -> Path:
    """Give the name, beside `target`, of the file that waits to be renamed to it."""
    return target.with_name(f".{target.name}{STAGED}")


def stage(target: Path, content: bytes, like: Path) -> None:
    """Write a new, durable file beside `target`, with the mode and the owner of the file `like`.

    Raises:
        OSError: the system refuses; the file may be there in part.
    """
    model = like.lstat()
    path = staged(target)
    try:
        file = _create(path)
    except FileExistsError:
        path.unlink()
        file = _create(path)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]
        _own(file, model)
        new = os.fstat(file)
        if target.exists() and bytecode.same_seconds(new, target.lstat()):
            # Another process may be compiling the old source right now, here or below PYTHONPYCACHEPREFIX.
            os.utime(file, ns=(new.st_atime_ns, new.st_mtime_ns + 1_000_000_000))
        os.fsync(file)
    finally:
        os.close(file)


def put(target: Path) -> None:
    """Rename the staged file to `target`.

    Raises:
        OSError: the system refuses.
    """
    staged(target).replace(target)


def sync(folder: Path) -> None:
    """Make the names in `folder` durable.

    Raises:
        OSError: the system refuses.
    """
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(folder: Path, like: Path, made: list[Path]) -> None:
    """Make `folder` and its parents where they are missing, as the folder `like`; append those made to `made`.

    Raises:
        OSError: the system refuses.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent, like, made)
    folder.mkdir(0o700)
    made.append(folder)
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _own(file, like.lstat())
    finally:
        os.close(file)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files, and a `__pycache__` that is empty then.

    Raises:
        OSError: the system refuses.
    """
    paths = tuple(paths)
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths if path.parent.name == "__pycache__"}:
        _remove_if_empty(folder)


def remove_tree(top: Path) -> None:
    """Remove `top` and all that is in it, where it exists.

    Raises:
        OSError: the system refuses.
    """
    for at, _, names in os.walk(top, topdown=False):
        for name in names:
            Path(at, name).unlink(missing_ok=True)
        Path(at).rmdir()


def prune(top: Path) -> None:
    """Remove the empty folders in and at `top`.

    Raises:
        OSError: the system refuses.
    """
    for at, _, _ in os.walk(top, topdown=False):
        _remove_if_empty(Path(at))


def sweep(top: Path) -> None:
    """Remove what a killed run staged in or below `top`.

    Raises:
        OSError: the system refuses.
    """
    for at, _, names in os.walk(top):
        for name in names:
            if name.startswith(".") and name.endswith(STAGED):
                Path(at, name).unlink(missing_ok=True)


def discard(files: list[Path], folders: list[Path] | None = None) -> None:
    """Remove what a failed run made, as far as the system lets us."""
    for path in files:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    for folder in reversed(folders or []):
        with suppress(OSError):
            folder.rmdir()


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _own(file: int, model: os.stat_result) -> None:
    new = os.fstat(file)
    try:
        if (new.st_uid, new.st_gid) != (model.st_uid, model.st_gid):
            os.fchown(file, model.st_uid, model.st_gid)
        os.fchmod(file, S_IMODE(model.st_mode))
    except PermissionError as error:
        raise PermissionError(error.errno, f"its owner or mode cannot be kept: {error.strerror}") from error


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (ENOTEMPTY, EEXIST):
            raise
