"""The few steps that touch the disk, each of which a power cut or a kill may follow.

No file is ever opened for writing under its own name, so that no reader sees half of it and no hard link to it changes.
Every step names a file by an open folder and a name in it (see `vpatch.tree.folders`). Paths are relative to the tree.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from errno import EEXIST, EINVAL, ELOOP, ENOENT, ENOTEMPTY
from pathlib import PurePosixPath
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from vpatch.tree import bytecode, ownership
from vpatch.tree.backup import STAGED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vpatch.tree.folders import Folders


def stage(tree: Folders, path: str, content: bytes, models: Sequence[str]) -> None:
    """Write a new, durable file beside `path`, accessible as `path` is, or as the first of `models` that exists.

    Raises:
        OSError: the system refuses; the file may be there in part.
    """
    folder, name = tree.place(path)
    with _model(tree, (path, *models)) as (model, like):
        new = _create(waiting(name), folder)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(new, left) :]
            ownership.keep(new, model, same=like == path)
            of = os.fstat(new)
            if like == path and bytecode.same_seconds(of, os.fstat(model)):
                # Another process may be compiling the old source right now, here or below PYTHONPYCACHEPREFIX.
                os.utime(new, ns=(of.st_atime_ns, of.st_mtime_ns + 1_000_000_000))
            os.fsync(new)
        finally:
            os.close(new)


def waiting(path: str) -> str:
    """Return the path, beside `path`, of the staged file that waits to be renamed to it."""
    where = PurePosixPath(path)
    return str(where.with_name(f".{where.name}{STAGED}"))


def put(tree: Folders, path: str) -> None:
    """Rename the staged file to `path`.

    Raises:
        OSError: the system refuses.
    """
    folder, name = tree.place(path)
    os.replace(waiting(name), name, src_dir_fd=folder, dst_dir_fd=folder)


def sync(tree: Folders, folder: str) -> None:
    """Make the names in `folder` durable.

    Raises:
        OSError: the system refuses.
    """
    file = tree.open(folder)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(tree: Folders, folder: str, like: str, made: list[str]) -> None:
    """Make `folder` and its parents where they are missing, as the folder `like`; append those made to `made`.

    Raises:
        OSError: the system refuses.
    """
    try:
        tree.at(folder)
    except FileNotFoundError:
        make_folder(tree, str(PurePosixPath(folder).parent), like, made)
    else:
        return
    parent, name = tree.place(folder)
    os.mkdir(name, 0o700, dir_fd=parent)
    made.append(folder)
    # Whoever may write in the parent can have put something else there since.
    file = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.listdir(file):  # noqa: PTH208 - there is no path here
            raise FileExistsError(EEXIST, "another program put a folder in its place")
        model = tree.open(like)
        try:
            ownership.keep(file, model, same=False)
        finally:
            os.close(model)
    finally:
        os.close(file)


def names(tree: Folders, folder: str) -> set[str]:
    """Return the names in a folder.

    Raises:
        OSError: the system refuses.
    """
    file = tree.open(folder)
    try:
        return set(os.listdir(file))  # noqa: PTH208 - there is no path here
    finally:
        os.close(file)


def is_folder(name: str, folder: int) -> bool:
    """Whether `name` in an open folder is a folder, and no symbolic link to one.

    Raises:
        OSError: there is no such name.
    """
    return S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def remove_files(tree: Folders, paths: Iterable[str]) -> None:
    """Remove files, and a `__pycache__` that is empty then.

    Raises:
        OSError: the system refuses.
    """
    caches = set()
    for path in paths:
        with suppress(FileNotFoundError):
            folder, name = tree.place(path)
            os.unlink(name, dir_fd=folder)
        caches |= {str(parent) for parent in (PurePosixPath(path).parent,) if parent.name == "__pycache__"}
    for cache in caches:
        with suppress(FileNotFoundError):
            _remove_if_empty(*tree.place(cache))
        tree.forget(cache)


def remove(tree: Folders, path: str) -> None:
    """Remove `path`, where it exists: a folder with all that is in it. What a symbolic link leads to stays.

    Raises:
        OSError: the system refuses.
    """
    with suppress(FileNotFoundError):
        folder, name = tree.place(path)
        if not is_folder(name, folder):
            os.unlink(name, dir_fd=folder)
            return
        for _, folders, files, at in tree.walk(path, topdown=False):
            for found in folders:  # a symbolic link to a folder is listed as one
                (os.rmdir if is_folder(found, at) else os.unlink)(found, dir_fd=at)
            for found in files:
                os.unlink(found, dir_fd=at)
        os.rmdir(name, dir_fd=folder)


def prune(tree: Folders, top: str) -> None:
    """Remove the empty folders in and at `top`.

    Raises:
        OSError: the system refuses.
    """
    with suppress(FileNotFoundError):
        for _, folders, _, at in tree.walk(top, topdown=False):
            for found in folders:
                if is_folder(found, at):
                    _remove_if_empty(at, found)
        _remove_if_empty(*tree.place(top))


def sweep(tree: Folders, top: str) -> None:
    """Remove what a killed run staged in or below `top`.

    Raises:
        OSError: the system refuses.
    """
    for _, _, files, at in tree.walk(top):
        for name in files:
            if name.startswith(".") and name.endswith(STAGED):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=at)


def discard(tree: Folders, paths: Iterable[str], folders: Sequence[str] = ()) -> None:
    """Remove what a failed run made, as far as the system permits."""
    for path in paths:
        with suppress(OSError):
            folder, name = tree.place(path)
            os.unlink(name, dir_fd=folder)
    for path in reversed(folders):
        with suppress(OSError):
            folder, name = tree.place(path)
            os.rmdir(name, dir_fd=folder)


@contextmanager
def _model(tree: Folders, paths: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Open the first of `paths` that is a regular file; yield its descriptor and its path."""
    for path in paths:
        try:
            folder, name = tree.place(path)
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            if error.errno not in (ENOENT, ELOOP) or path == paths[-1]:
                raise
            continue
        try:
            if S_ISREG(os.fstat(file).st_mode):
                yield file, path
                return
        finally:
            os.close(file)
    raise OSError(EINVAL, "not a regular file")


def _create(name: str, folder: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(name, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        return os.open(name, flags, 0o600, dir_fd=folder)


def _remove_if_empty(folder: int, name: str) -> None:
    # The system may refuse to remove a folder, as one that is immutable or a mount point, before it looks into it.
    with suppress(FileNotFoundError):
        file = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if os.listdir(file):  # noqa: PTH208 - there is no path here
                return
        finally:
            os.close(file)
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (ENOTEMPTY, EEXIST):
                raise
