"""Whether an environment was made by the user, and not cloned, unpacked or shared: then a command may import from it.

The owner of the files does not tell: what a user clones or unpacks is the user's own. But whoever makes an environment
writes its place into it, and neither commits it nor leaves it to others.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISLNK, S_ISVTX

from vpatch.errors import cause
from vpatch.foreign import descriptor, read_regular
from vpatch.tree import guard, sites

_MOST_INDEX = 1 << 28  # bytes of git's index


def why_foreign(folder: Path, python: Path) -> str:
    """Return why another user may have made a virtual environment; "" if this user made it.

    Args:
        folder: the environment.
        python: its interpreter.
    """
    try:
        place = folder.resolve()
        inner = (place, place / "pyvenv.cfg", place / "bin", place / "bin/activate", python, *sites.own_sites(place))
        reasons = (*_open_to_others(inner, place), _remote(place), _moved(place), _committed(place))
        return next(filter(None, reasons), "")
    except OSError as error:
        return f"{error.filename or folder}: {cause(error)}"


def _open_to_others(inner: tuple[Path, ...], place: Path) -> Iterator[str]:
    me = os.geteuid()
    for path in inner:
        about = path.lstat()
        if about.st_uid != me:
            yield f"{path} belongs to another user"
        if not S_ISLNK(about.st_mode) and _others_write(about):
            yield f"others may write to {path}"
    for above in place.parents:
        about = above.stat()
        if about.st_uid not in (0, me) or (_others_write(about) and not about.st_mode & S_ISVTX):
            yield f"others may replace what is in {above}"


def _others_write(about: os.stat_result) -> bool:
    """Whether users besides its owner may write to it; many systems make what a group of one user may write to."""
    return bool(about.st_mode & 0o002 or (about.st_mode & 0o020 and not _is_private(about.st_gid)))


def _is_private(group: int) -> bool:
    try:
        name, entry = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == name and {*entry.gr_mem} <= {name}


def _remote(place: Path) -> str:
    """On a share, the owner that files show is often whoever mounted it."""
    with descriptor(place, os.O_DIRECTORY) as file:
        return "it is not on a file system of this machine" if guard.is_remote(file) else ""


def _moved(place: Path) -> str:
    """Whoever makes an environment here writes this place into it; one that is cloned or unpacked has another."""
    text = read_regular(place / "bin/activate").decode(errors="surrogateescape")
    found = re.findall(r"""^[ \t]*+(?:export )?VIRTUAL_ENV=["']?([^"'\n]*+)["']?[ \t\r]*+$""", text, re.MULTILINE)
    return "" if str(place) in map(os.path.realpath, found) else f"it was not made in {place}"


def _committed(place: Path) -> str:
    """Look in the bytes of git's index, as git itself may run what the repository names."""
    if (place / ".git").exists():
        return "it is a repository itself"
    for top in (folder for folder in place.parents if (folder / ".git").exists()):
        begin = os.fsencode(f"{place.relative_to(top)}/")
        for index in _indexes(top / ".git"):
            data = read_regular(index, _MOST_INDEX)
            if begin in data or data[4:8] == b"\0\0\0\4":  # version 4 does not have whole names
                return f"it may be part of the repository {top}"
    return ""


def _indexes(git: Path) -> Iterator[Path]:
    if git.is_file():
        git = git.parent / read_regular(git).decode(errors="surrogateescape").removeprefix("gitdir:").strip()
    with suppress(FileNotFoundError):
        yield from (path for path in git.iterdir() if path.name == "index" or path.name.startswith("sharedindex."))
