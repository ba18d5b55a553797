"""Folders of one tree, held open: no step of a run follows a symbolic link.

A path means whatever stands there at that moment. Between two steps, whoever may write in a parent folder can put a
symbolic link in a folder's place, and root would write elsewhere. An open folder stays the folder that it was.
"""

from __future__ import annotations

import os
from contextlib import suppress
from errno import ELOOP, ENOTDIR
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

# O_PATH asks for no right to read: a parent such as /home/user may grant others only the right to pass.
_HELD = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folders:
    """Descriptors of the folders of one tree, each opened once; a context manager that closes them.

    `root` is absolute and resolved. Paths are POSIX and relative to it. A symbolic link is followed only if it stands
    in the tree when its folder is first asked for, and leads to a folder in the same tree.
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
        """Return the descriptor of a folder, for the `dir_fd` of `os` functions; "" is the root. Do not close it.

        Raises:
            OSError: the folder is missing, is not a folder, or leads out of the tree.
        """
        if folder not in self._named:
            # Only names are taken from the path: each is opened below its parent, and must not be a link by then.
            real = (self.root / folder).resolve()
            if not real.is_relative_to(self.root):
                raise OSError(ELOOP, "a symbolic link leads out of the tree")
            self._named[folder] = self._hold(real)
        return self._named[folder]

    def place(self, path: str) -> tuple[int, str]:
        """Return the descriptor of the folder that `path` is in, and its name there.

        Raises:
            OSError: as `at`.
        """
        where = PurePosixPath(path)
        return self.at("" if where.parent.name == "" else str(where.parent)), where.name

    def open(self, folder: str) -> int:
        """Open a folder for reading or `fsync`; the caller closes the descriptor.

        Raises:
            OSError: as `at`, or the folder cannot be read.
        """
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.at(folder))

    def walk(self, top: str, *, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str], int]]:
        """Yield what `os.fwalk` yields for `top`; a symbolic link to a folder is among the folders, and not followed.

        Raises:
            OSError: `top` is missing, or a folder cannot be read.
        """

        def refuse(error: OSError) -> None:
            raise error

        folder, name = self.place(top)
        yield from os.fwalk(name, topdown=topdown, onerror=refuse, dir_fd=folder)

    def forget(self, folder: str) -> None:
        """Close a folder that was removed, so that one made anew in its place is opened anew."""
        file = self._named.pop(folder, None)
        for real in [real for real, held in self._held.items() if held == file]:
            os.close(self._held.pop(real))

    def _hold(self, folder: Path) -> int:
        if folder not in self._held:
            top = folder == folder.parent
            try:
                self._held[folder] = os.open(
                    folder if top else folder.name, _HELD, dir_fd=None if top else self._hold(folder.parent)
                )
            except OSError as error:
                if error.errno not in (ENOTDIR, ELOOP):
                    raise
                raise NotADirectoryError(ENOTDIR, "not a folder, or replaced by a symbolic link") from error
        return self._held[folder]
