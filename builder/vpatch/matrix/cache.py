"""What was read of wheels and indexes, kept by its hash: safe to share between runs, and never believed unchecked."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from vpatch.errors import Failure, Problem, cause

SCHEMA = 1  # of the notes
TRIES = 10  # for folders that another run clears meanwhile

WHEELS, LISTINGS = "wheels", "listings"  # the two kinds of notes

Note = Mapping[str, Any]

_OBJECTS, _NEW = "objects", "new"
_HASH = re.compile(r"[0-9a-f]{64}")
# What `clear` may remove: a user may have put something else there.
_OURS = re.compile("objects/[0-9a-f]{2}/[0-9a-f]{62}|(wheels|listings)/[0-9a-f]{64}|new/[0-9a-f]{32}")
_OUR_FOLDERS = re.compile(r"objects(/[0-9a-f]{2})?|wheels|listings|new|\.")


def folder() -> Path:
    """Give the folder of the cache, which need not be there: `vpatch` in the user's folder for caches.

    Raises:
        Failure: the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():  # the specification has relative ones ignored
        return Path(base, "vpatch")
    try:
        return Path.home() / ".cache" / "vpatch"
    except RuntimeError as error:
        raise Failure(
            Problem("no cache", "~/.cache", "no home folder; set XDG_CACHE_HOME, or use --no-cache")
        ) from error


def is_hash(text: str | None) -> bool:
    """Tell whether this is a sha256 as the cache writes it: other text must not become a path."""
    return bool(text and _HASH.fullmatch(text))


class DamagedError(Exception):
    """What was in the cache is not what was put there."""


@dataclass(frozen=True)
class Usage:
    """Files of the cache, and their sizes together in bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Cache:
    """Objects, named by the sha256 of their bytes, and notes: small JSON objects by kind and key.

    Both may be read and written by several threads and processes at once.
    """

    folder: Path

    @classmethod
    def opened(cls) -> Cache:
        """Give the user's cache, made where it is not there.

        Raises:
            Failure: it cannot be written.
        """
        cache = cls(folder())
        cache._write(cache.folder / _NEW / secrets.token_hex(16)).unlink(missing_ok=True)
        return cache

    def get(self, sha256: str) -> bytes | None:
        """Give an object, None where it is not there.

        Raises:
            DamagedError: it was damaged; it is gone now.
            Failure: it cannot be read.
        """
        path = self._object(sha256)
        data = self._read(path)
        if data is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise self._discarded(path)
        return data

    def put(self, data: bytes) -> str:
        """Keep an object; give its sha256.

        Raises:
            Failure: it cannot be written.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        self._write(self._object(sha256), data)
        return sha256

    def note(self, kind: str, key: str) -> Note | None:
        """Give a note, None where there is none.

        Raises:
            DamagedError: it was damaged; it is gone now.
            Failure: it cannot be read.
        """
        path = self.folder / kind / key
        data = self._read(path)
        note = None if data is None else _unsealed(data)
        if data is not None and note is None:
            raise self._discarded(path)
        return note if note and note["schema"] == SCHEMA else None

    def put_note(self, kind: str, key: str, note: Note) -> None:
        """Keep a note, beside its own sha256 so that damage shows.

        Raises:
            Failure: it cannot be written.
        """
        self._write(self.folder / kind / key, _sealed({**note, "schema": SCHEMA}))

    def notes(self, kind: str) -> list[Note]:
        """Give every note of a kind, less the damaged ones.

        Raises:
            Failure: one cannot be read.
        """
        found = (_unsealed(self._read(path) or b"") for path in self._files() if path.parent.name == kind)
        return [note for note in found if note and note["schema"] == SCHEMA]

    def usage(self) -> Usage:
        """Count what there is."""
        sizes = [size for path in self._files() if (size := self._size(path)) is not None]
        return Usage(len(sizes), sum(sizes))

    def clear(self) -> Usage:
        """Remove what is the cache's, and folders that this leaves empty; give what went. Links are not followed.

        Raises:
            Failure: something cannot be removed.
        """
        gone = Usage()
        for path in self._files():
            size = self._size(path)
            try:
                path.unlink()
            except FileNotFoundError:
                continue  # another run was quicker
            except OSError as error:
                raise Failure(Problem("cannot clear the cache", str(path), cause(error))) from error
            gone = Usage(gone.files + 1, gone.bytes + (size or 0))
        for top, _, _ in os.walk(self.folder, topdown=False):
            if _OUR_FOLDERS.fullmatch(self._relative(top)):
                with suppress(OSError):  # somebody else's file is in it
                    Path(top).rmdir()
        return gone

    def _object(self, sha256: str) -> Path:
        return self.folder / _OBJECTS / sha256[:2] / sha256[2:]

    def _files(self) -> list[Path]:
        """Give what is the cache's own; links are neither given nor followed."""

        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise self._unusable("cannot read the cache", Path(error.filename), error) from error

        found = (Path(top, name) for top, _, names in os.walk(self.folder, onerror=refuse) for name in names)
        return [path for path in found if _OURS.fullmatch(self._relative(path)) and self._size(path) is not None]

    def _relative(self, path: Path | str) -> str:
        return Path(path).relative_to(self.folder).as_posix()

    def _size(self, path: Path) -> int | None:
        """Give the size of a plain file in bytes; None for a link, a folder, or a file that is gone."""
        try:
            found = path.lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable("cannot read the cache", path, error) from error
        return found.st_size if S_ISREG(found.st_mode) else None

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable("cannot read the cache", path, error) from error

    def _discarded(self, path: Path) -> DamagedError:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable("cannot write the cache", path, error) from error
        return DamagedError(str(path))

    def _write(self, path: Path, data: bytes = b"") -> Path:
        """Write a file whole or not at all, under a name that no other run uses until then."""
        for left in reversed(range(TRIES)):
            staged = self.folder / _NEW / secrets.token_hex(16)
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                staged.parent.mkdir(exist_ok=True)
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    staged.write_bytes(data)
                    staged.replace(path)
                finally:
                    staged.unlink(missing_ok=True)
                break
            except OSError as error:
                # A folder that goes between two looks of `mkdir` is told as there.
                if isinstance(error, (FileNotFoundError, FileExistsError)) and left:
                    continue
                raise self._unusable("cannot write the cache", self.folder, error) from error
        return path

    @staticmethod
    def _unusable(what: str, path: Path, error: OSError) -> Failure:
        return Failure(Problem(what, str(path), f"{cause(error)}; use --no-cache to do without"))


def _sealed(note: Note) -> bytes:
    body = json.dumps(note).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _unsealed(data: bytes) -> Note | None:
    seal, _, body = data.partition(b"\n")
    if seal != hashlib.sha256(body).hexdigest().encode():
        return None
    note: Note = json.loads(body)
    return note
