"""The user's cache of wheels, indexes and verdicts: files by their hash, checked whenever they are used."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from vpatch.errors import naming
from vpatch.settings import cache_folder

SCHEMA = 1  # of the notes
TRIES = 10  # for folders that another run clears meanwhile

SHA256 = re.compile(r"[0-9a-f]{64}")  # no other text may become a path
WHEELS, LISTINGS, VERDICTS = "wheels", "listings", "verdicts"  # the kinds of notes

Note = Mapping[str, Any]
Damaged = Callable[[], object]  # called when an entry had been changed, after its removal

_OBJECTS, _NEW = "objects", "new"
# What `clear` may remove: the user may have put other files there.
_OURS = re.compile("objects/[0-9a-f]{2}/[0-9a-f]{62}|(wheels|listings|verdicts)/[0-9a-f]{64}|new/[0-9a-f]{32}")
_OUR_FOLDERS = re.compile(r"objects(/[0-9a-f]{2})?|wheels|listings|verdicts|new|\.")
_ADVICE = "use --no-cache to do without"


@dataclass(frozen=True)
class Usage:
    """A number of files of the cache, and their total size in bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Cache:
    """Objects, named by the sha256 of their bytes, and notes: small JSON objects by kind and key.

    Several threads and processes may use it at once. Methods raise a `Failure` if they cannot read or write the folder.
    """

    folder: Path

    @classmethod
    def opened(cls) -> Cache:
        """Return the user's cache, after a trial that it can be written."""
        cache = cls(cache_folder())
        trial = cache.folder / _NEW / secrets.token_hex(16)
        cache._write(trial)
        trial.unlink(missing_ok=True)
        return cache

    def get(self, sha256: str, damaged: Damaged) -> bytes | None:
        """Return an object, None if it is not there or was damaged."""
        path = self._object(sha256)
        data = self._read(path)
        if data is not None and hashlib.sha256(data).hexdigest() != sha256:
            self._discard(path, damaged)
            return None
        return data

    def put(self, data: bytes) -> str:
        """Keep an object; return its sha256."""
        sha256 = hashlib.sha256(data).hexdigest()
        self._write(self._object(sha256), data)
        return sha256

    def note(self, kind: str, key: str, damaged: Damaged) -> Note | None:
        """Return a note, None if it is not there or was damaged."""
        path = self.folder / kind / key
        data = self._read(path)
        note = None if data is None else _unsealed(data)
        if data is not None and note is None:
            self._discard(path, damaged)
        return note if note and note["schema"] == SCHEMA else None

    def put_note(self, kind: str, key: str, note: Note) -> None:
        """Keep a note, after its own sha256, which shows damage."""
        body = json.dumps({**note, "schema": SCHEMA}).encode()
        self._write(self.folder / kind / key, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)

    def notes(self, kind: str) -> list[Note]:
        """Return every undamaged note of a kind."""
        found = (_unsealed(self._read(path) or b"") for path, _ in self._files() if path.parent.name == kind)
        return [note for note in found if note and note["schema"] == SCHEMA]

    def touch(self, kind: str, key: str) -> None:
        """Count a note as used now, where the folder can be written to."""
        with suppress(OSError):
            os.utime(self.folder / kind / key)

    def prune(self, kind: str, most: int) -> None:
        """Remove the notes of a kind that are too many, the one that was used last stays longest."""
        with naming("cannot write the cache", str(self.folder), _ADVICE), suppress(FileNotFoundError):
            paths = [path for path, _ in self._files() if path.parent.name == kind]
            for path in sorted(paths, key=lambda path: -path.stat().st_mtime)[most:]:
                path.unlink()

    def usage(self) -> Usage:
        """Count the files of the cache."""
        files = self._files()
        return Usage(len(files), sum(size for _, size in files))

    def clear(self) -> Usage:
        """Remove the files of the cache, and folders that this leaves empty; return what was removed."""
        removed = Usage()
        for path, size in self._files():
            with naming("cannot clear the cache", str(path)), suppress(FileNotFoundError):  # another run was quicker
                path.unlink()
                removed = Usage(removed.files + 1, removed.bytes + size)
        for top, _, _ in os.walk(self.folder, topdown=False):
            if _OUR_FOLDERS.fullmatch(Path(top).relative_to(self.folder).as_posix()):
                with suppress(OSError):  # a file of the user's is in it
                    Path(top).rmdir()
        return removed

    def _object(self, sha256: str) -> Path:
        return self.folder / _OBJECTS / sha256[:2] / sha256[2:]

    def _files(self) -> list[tuple[Path, int]]:
        """List the cache's own files with their sizes; links are neither listed nor followed."""

        def refuse(error: OSError) -> None:
            with naming("cannot read the cache", error.filename, _ADVICE), suppress(FileNotFoundError):
                raise error

        found = []
        for path in (Path(top, name) for top, _, names in os.walk(self.folder, onerror=refuse) for name in names):
            if _OURS.fullmatch(path.relative_to(self.folder).as_posix()):
                with naming("cannot read the cache", str(path), _ADVICE), suppress(FileNotFoundError):
                    status = path.lstat()
                    if S_ISREG(status.st_mode):
                        found.append((path, status.st_size))
        return found

    def _read(self, path: Path) -> bytes | None:
        with naming("cannot read the cache", str(path), _ADVICE), suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    def _discard(self, path: Path, damaged: Damaged) -> None:
        with naming("cannot write the cache", str(path), _ADVICE):
            path.unlink(missing_ok=True)
        damaged()

    def _write(self, path: Path, data: bytes = b"") -> None:
        """Write a file whole or not at all, under a name that no other run uses until then."""
        staged = self.folder / _NEW / secrets.token_hex(16)
        with naming("cannot write the cache", str(self.folder), _ADVICE):
            for left in reversed(range(TRIES)):
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
                except (FileNotFoundError, FileExistsError):  # `mkdir` raises the latter if its folder goes meanwhile
                    if not left:
                        raise


def _unsealed(data: bytes) -> Note | None:
    seal, _, body = data.partition(b"\n")
    note: Note | None = json.loads(body) if seal == hashlib.sha256(body).hexdigest().encode() else None
    return note
