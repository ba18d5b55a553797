"""The Python sources of a release: read from its wheel without downloading all of it, checked, put on disk.

The door to this package. Where the extra `vpatch[fetch]` is not installed, importing this module raises the
`Failure` that says so: import it where it is used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vpatch.errors import Failure, Problem

try:
    from vpatch.net.error_text import shown
    from vpatch.net.ranges import RemoteFile, open_remote
    from vpatch.net.transfer import Progress
    from vpatch.release.index import PROJECT, Offer, Wheel, find_wheel, find_wheels, listings, releases
    from vpatch.release.index_config import read_settings
    from vpatch.release.members import Member, Sums, is_record, read_members, sums_in
    from vpatch.release.session import open_session
    from vpatch.release.staging import free_path, staging_beside, writing
except ModuleNotFoundError as error:
    raise Failure(Problem("cannot fetch", str(error.name), "not installed: pip install 'vpatch[fetch]'")) from error

__all__ = [
    "PROJECT",
    "Fetched",
    "Member",
    "Offer",
    "Progress",
    "RemoteFile",
    "Sums",
    "Wheel",
    "fetch",
    "find_wheel",
    "find_wheels",
    "is_record",
    "listings",
    "open_wheel",
    "read_members",
    "releases",
    "shown",
    "sums_in",
]


@dataclass(frozen=True)
class Fetched:
    """A release on disk: what came from which wheel, and how many of that wheel's bytes were read for it."""

    version: str
    wheel: str
    tree: Path
    files: int
    bytes_read: int
    wheel_bytes: int


def fetch(version: str, target: Path, *, progress: Progress | None = None) -> Fetched:
    """Put the Python files and the dist-info of a vLLM release into `target`, a folder that is new or empty.

    Everything is written beside `target` and renamed at the end: `target` is complete or not there.

    Raises:
        Failure: no such release, an index or a server that fails, a file that is not what RECORD says, a
            target that is taken or cannot be written.
    """
    target = free_path(target)
    wheel = find_wheel(version)
    with staging_beside(target) as staging, open_wheel(wheel, progress=progress) as file:
        files = 0
        for member in read_members(file, _is_source):
            with writing(target / member.name):
                _write(staging / member.name, member)
            files += 1
        with writing(target):
            staging.rename(target)  # an empty folder gives way
        return Fetched(wheel.version, wheel.filename, target, files, file.received, file.size)


@contextmanager
def open_wheel(wheel: Wheel, *, progress: Progress | None = None) -> Iterator[RemoteFile]:
    """Open a wheel where it lies, for `read_members`.

    Raises:
        Failure: its server fails, or what it sent as a whole has another hash than the index says.
    """
    with open_session(read_settings()) as session, open_remote(session, wheel.url, progress=progress) as file:
        if file.whole and wheel.sha256 and hashlib.file_digest(file, "sha256").hexdigest() != wheel.sha256:
            raise Failure(Problem("wrong bytes", file.name, "its sha256 is not the one on the index"))
        yield file


def _is_source(name: str) -> bool:
    return name.endswith(".py") or name.partition("/")[0].endswith(".dist-info")


def _write(path: Path, member: Member) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(member.data)
    os.utime(path, (member.modified, member.modified))
