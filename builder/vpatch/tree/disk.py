"""The steps that touch the disk, each of which a power cut or a kill may follow. They raise OSError.

No file is ever opened for writing under its own name, so that no reader sees half of it and no hard link to it changes.
Between two steps, another user with write access to a parent folder can replace a folder by a symbolic link, and root
would write elsewhere. So every step names a file by an open folder, which stays the folder that it was, and a name in
it. Paths are POSIX and relative to the tree. A new file keeps the owner, mode and attributes of the one it replaces.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EEXIST, EINVAL, ELOOP, ENODATA, ENOENT, ENOTDIR, ENOTEMPTY, ENOTSUP
from pathlib import Path, PurePosixPath
from stat import S_IMODE, S_ISDIR, S_ISREG
from types import TracebackType
from typing import Self

from vpatch.foreign import walk
from vpatch.tree.backup import STAGED

# O_PATH needs no right to read: a parent such as /home/user may grant others only the right to pass.
_HELD = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, a named pipe would wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Access control lists, labels of security modules, and what users set: these must not be lost.
_KEPT = ("system.", "security.selinux", "security.SMACK64", "user.")
# These describe the bytes, which change, or how a file system stores them. The kernel renews the first two, and drops
# capabilities when a file is written.
_OF_THE_BYTES = ("security.ima", "security.evm", "security.capability", "trusted.overlay.", "user.overlay.")


class Folders:
    """Descriptors of the folders of one tree, each opened once; a context manager that closes them.

    `root` is absolute and resolved. A symbolic link is followed only if it is in the tree when its folder is first
    opened, and leads to a folder in the same tree.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._named: dict[str, int] = {}
        self._held: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._held.values():
            with suppress(OSError):
                os.close(file)
        self._held.clear()
        self._named.clear()

    def at(self, folder: str) -> int:
        """Return the descriptor of a folder, for the `dir_fd` of `os` functions; "" is the root. Do not close it."""
        if folder not in self._named:
            # Each name of this path is opened below its parent, and must not be a link by then.
            real = (self.root / folder).resolve()
            if not real.is_relative_to(self.root):
                raise OSError(ELOOP, "a symbolic link leads out of the tree")
            self._named[folder] = self._hold(real)
        return self._named[folder]

    def place(self, path: str) -> tuple[int, str]:
        """Return the descriptor of the folder that `path` is in, and its name there."""
        where = PurePosixPath(path)
        return self.at("" if where.parent.name == "" else str(where.parent)), where.name

    def walk(self, top: str, *, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str], int]]:
        """Walk `top` as `os.fwalk` does; a symbolic link to a folder is listed as a folder, and not followed."""
        folder, name = self.place(top)
        yield from walk(name, topdown=topdown, dir_fd=folder)

    def forget(self, folder: str) -> None:
        """Close a folder that was removed, so that a new one in its place is opened anew."""
        file = self._named.pop(folder, None)
        for real in [real for real, held in self._held.items() if held == file]:
            os.close(self._held.pop(real))

    def stage(self, path: str, content: bytes, models: Sequence[str]) -> None:
        """Write a new, durable file beside `path`, accessible as `path` is, or as the first of `models` that exists."""
        folder, name = self.place(path)
        with ExitStack() as held:
            model, like = self._model((path, *models))
            held.callback(os.close, model)
            new = _create(waiting(name), folder)
            held.callback(os.close, new)
            left = memoryview(content)
            while left:
                left = left[os.write(new, left) :]
            _keep_access(new, model, same=like == path)
            of, old = os.fstat(new), os.fstat(model)
            if like == path and (int(of.st_mtime), of.st_size) == (int(old.st_mtime), old.st_size):
                # Python could take the old source's bytecode for the new one's, and another process may be compiling
                # the old source right now, here or below PYTHONPYCACHEPREFIX.
                os.utime(new, ns=(of.st_atime_ns, of.st_mtime_ns + 1_000_000_000))
            os.fsync(new)

    def put(self, path: str) -> None:
        """Rename the staged file to `path`."""
        folder, name = self.place(path)
        os.replace(waiting(name), name, src_dir_fd=folder, dst_dir_fd=folder)

    def sync(self, folder: str) -> None:
        """Make the names in `folder` durable."""
        with opened(".", self.at(folder)) as file:
            os.fsync(file)

    def make_folder(self, folder: str, like: str, made: list[str]) -> None:
        """Make `folder` and its missing parents, accessible as the folder `like` is; append those made to `made`."""
        try:
            self.at(folder)
        except FileNotFoundError:
            self.make_folder(parent(folder), like, made)
        else:
            return
        above, name = self.place(folder)
        os.mkdir(name, 0o700, dir_fd=above)
        made.append(folder)
        # A user with write access to the parent can have replaced it since.
        with opened(name, above) as file, opened(".", self.at(like)) as model:
            if os.listdir(file):  # noqa: PTH208 - there is no path here
                raise FileExistsError(EEXIST, "another program put a folder in its place")
            _keep_access(file, model, same=False)

    def names(self, folder: str) -> set[str]:
        """Return the names in a folder."""
        with opened(".", self.at(folder)) as file:
            return set(os.listdir(file))  # noqa: PTH208 - there is no path here

    def remove_bytecode(self, twins: Iterable[Path]) -> None:
        """Remove bytecode files of the tree, and a `__pycache__` that is empty then."""
        caches = set()
        for twin in twins:
            path = twin.relative_to(self.root)
            with suppress(FileNotFoundError):
                self._unlink(path.as_posix())
            caches |= {path.parent.as_posix()} if path.parent.name == "__pycache__" else set()
        for cache in caches:
            with suppress(FileNotFoundError):
                _remove_if_empty(*self.place(cache))
            self.forget(cache)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it, if it exists; symbolic links are not followed."""
        with suppress(FileNotFoundError):
            folder, name = self.place(path)
            if not is_folder(name, folder):
                os.unlink(name, dir_fd=folder)
                return
            for _, inner, files, at in self.walk(path, topdown=False):
                for found in inner:  # a symbolic link to a folder is listed as one
                    (os.rmdir if is_folder(found, at) else os.unlink)(found, dir_fd=at)
                for found in files:
                    os.unlink(found, dir_fd=at)
            os.rmdir(name, dir_fd=folder)

    def prune(self, top: str) -> None:
        """Remove the empty folders in and at `top`."""
        with suppress(FileNotFoundError):
            for _, inner, _, at in self.walk(top, topdown=False):
                for found in inner:
                    if is_folder(found, at):
                        _remove_if_empty(at, found)
            _remove_if_empty(*self.place(top))

    def sweep(self, top: str) -> None:
        """Remove what a killed run staged in or below `top`."""
        for _, _, files, at in self.walk(top):
            for name in files:
                if name.startswith(".") and name.endswith(STAGED):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=at)

    def discard(self, paths: Iterable[str], made: Sequence[str] = ()) -> None:
        """Remove the files and then the folders that a failed run made, as far as the system permits."""
        for path in paths:
            with suppress(OSError):
                self._unlink(path)
        for path in reversed(made):
            with suppress(OSError):
                folder, name = self.place(path)
                os.rmdir(name, dir_fd=folder)

    def _unlink(self, path: str) -> None:
        folder, name = self.place(path)
        os.unlink(name, dir_fd=folder)

    def _model(self, paths: Sequence[str]) -> tuple[int, str]:
        """Open the first of `paths` that is a regular file; return its descriptor and its path."""
        for path in paths:
            try:
                folder, name = self.place(path)
                file = os.open(name, _READ, dir_fd=folder)
            except OSError as error:
                if error.errno not in (ENOENT, ELOOP) or path == paths[-1]:
                    raise
                continue
            if S_ISREG(os.fstat(file).st_mode):
                return file, path
            os.close(file)
        raise OSError(EINVAL, "not a regular file")

    def _hold(self, folder: Path) -> int:
        if folder not in self._held:
            top = folder == folder.parent
            name, above = (folder, None) if top else (folder.name, self._hold(folder.parent))
            try:
                self._held[folder] = os.open(name, _HELD, dir_fd=above)
            except OSError as error:
                if error.errno not in (ENOTDIR, ELOOP):
                    raise
                raise NotADirectoryError(ENOTDIR, "not a folder, or replaced by a symbolic link") from error
        return self._held[folder]


@contextmanager
def opened(name: str, folder: int, flags: int = os.O_DIRECTORY) -> Iterator[int]:
    """Open a name in an open folder for reading during the block, by default a folder; refuse a symbolic link."""
    try:
        file = os.open(name, _READ | flags, dir_fd=folder)
    except OSError as error:
        if error.errno != ELOOP:
            raise
        raise OSError(ELOOP, "it is a symbolic link") from error
    try:
        yield file
    finally:
        os.close(file)


def waiting(path: str) -> str:
    """Return the path, beside `path`, of the staged file that waits to be renamed to it."""
    where = PurePosixPath(path)
    return str(where.with_name(f".{where.name}{STAGED}"))


def parent(path: str) -> str:
    """Return the folder that `path` is in."""
    return str(PurePosixPath(path).parent)


def is_folder(name: str, folder: int) -> bool:
    """Whether `name`, which must exist in an open folder, is a folder, and no symbolic link to one."""
    return S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _create(name: str, folder: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(name, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        return os.open(name, flags, 0o600, dir_fd=folder)


def _remove_if_empty(folder: int, name: str) -> None:
    # The system may refuse to remove an immutable folder, or a mount point, without looking whether it is empty.
    with suppress(FileNotFoundError):
        with opened(name, folder) as file:
            if os.listdir(file):  # noqa: PTH208 - there is no path here
                return
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (ENOTEMPTY, EEXIST):
                raise


def _keep_access(new: int, model: int, *, same: bool) -> None:
    """Make an open file or folder accessible exactly as another one is.

    So far, only its owner may read `new`; it may have inherited an access control list. If it will replace `model`
    (`same`), its other extended attributes are copied, too: those that neither grant access nor are a user's, as far
    as the system permits.
    """
    old, now = os.fstat(model), os.fstat(new)
    try:
        if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
            os.fchown(new, old.st_uid, old.st_gid)
        # Lists first: the mode alone, without the list that limits it, would let the whole group in for a moment.
        refused = _copy(new, _attributes(model), same=same)
        os.fchmod(new, S_IMODE(old.st_mode))
    except PermissionError as error:
        raise PermissionError(error.errno, f"its owner or mode cannot be kept: {error.strerror}") from error
    # Some file systems show a mode as a list: then setting the mode has set the list, too.
    for name, (value, refusal) in refused.items():
        if _value(new, name) != value:
            what = "access control list" if name.startswith("system.") else "extended attribute"
            raise OSError(refusal.errno, f"its {what} {name} cannot be kept: {refusal.strerror}") from refusal


def _copy(new: int, wanted: dict[str, bytes], *, same: bool) -> dict[str, tuple[bytes | None, OSError]]:
    """Copy extended attributes; return those that matter and that the system refused, with what they should be."""
    chosen = {name: value for name, value in wanted.items() if same or name.startswith("system.posix_acl")}
    refused: dict[str, tuple[bytes | None, OSError]] = {}
    for name in dict.fromkeys((*chosen, *_attributes(new))):
        value = chosen.get(name)
        inherited = value is None and name.startswith("system.posix_acl")
        if name.startswith(_OF_THE_BYTES) or _value(new, name) == value or (value is None and not inherited):
            continue
        try:
            if value is None:
                os.removexattr(new, name)
            else:
                os.setxattr(new, name, value)
        except OSError as error:
            if name.startswith(_KEPT):
                refused[name] = (value, error)
    return refused


def _attributes(file: int) -> dict[str, bytes]:
    try:
        names = os.listxattr(file)
    except OSError as error:
        if error.errno == ENOTSUP:
            return {}
        raise
    return {name: value for name in names if (value := _value(file, name)) is not None}


def _value(file: int, name: str) -> bytes | None:
    """Return an extended attribute; None if it does not exist or this user may not read it."""
    with suppress(PermissionError):
        try:
            return os.getxattr(file, name)
        except OSError as error:
            if error.errno not in (ENODATA, ENOTSUP):
                raise
    return None
