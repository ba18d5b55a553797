"""The file system of an image, limits on reading it, and the vLLM that its interpreter would import.

Paths inside an image are POSIX and relative to its root: `usr/bin/python3`. Nothing of the image is started here; its
tests prove inside a container that the vLLM found is the one imported.
"""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from tarfile import TarInfo
from typing import IO, Any, Protocol

from vpatch.core.listing import is_folder, pack
from vpatch.errors import Failure, Problem
from vpatch.image.config import Base
from vpatch.tree.record import Record, parse

WHITEOUT = ".wh."  # prefix of a layer's entry that removes another: OCI image specification, layer.md

_MINORS = range(10, 15)  # the minor versions of Python that vLLM's releases name
# Where images usually have virtual environments, conda and Python; others are found by PATH.
_USUAL_PREFIXES = ("opt/venv", "opt/conda", "usr/local", "usr")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_LINKS = 16


class Limits:
    """The most that vpatch reads of an image; one that exceeds a limit is refused, and the message names it.

    Generous for real images: vLLM's have some 10 GB packed, and its largest extension has 308 MB (0.33.0).
    """

    LAYERS = 512
    IMAGE = 64 << 30  # bytes read of all layers: packed, and unpacked
    ENTRIES = 1_000_000  # files, folders and links of all layers
    NAMES = 256 << 20  # characters of their paths, and of the folders above them
    PATH = 4096  # characters of a path or of a link's target, as in Linux
    DEPTH = 256  # folders above an entry: each is looked up in each layer
    HEADER = 1 << 20  # bytes of all tar headers of one entry
    GLOBALS = 100  # global pax headers of one tar
    FILE = 4 << 30  # bytes of a file that is read in parts: a compiled extension
    SOURCE = 64 << 20  # bytes of a file that is read whole: a module
    MEMORY = 1 << 30  # bytes of all small files that are kept
    COPIES = 100  # large files that are kept, each in an open temporary file
    VLLMS = 16  # folders that look like a vLLM
    RECORDS = 100  # folders that look like a vLLM in any layer, hidden ones included


class Kind(Enum):
    """The type of a file system entry."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    OTHER = "special file"


@dataclass(frozen=True)
class Entry:
    """A file, folder or link of an image: `mode` are its permission bits, `mtime` seconds since the epoch."""

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0  # bytes of a file
    target: str = ""  # text of a link


class Files(Protocol):
    """The file system of an image, as its containers see it. Links are not followed.

    Every method raises `Failure` if the image cannot be read; `read` and `open` also for what is not a regular file.
    """

    def entry(self, path: str) -> Entry | None:
        """Return the entry at `path`, None without one."""

    def kind(self, path: str) -> Kind | None:
        """Return the type of the entry at `path`, None without one; may cost much less than `entry`."""
        here = self.entry(path)
        return here.kind if here else None

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None without one."""

    def open(self, path: str) -> IO[bytes] | None:
        """Open a file that may be too large to read at once, None without one. The caller closes it."""

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted; none for a missing folder."""


class BlockReader(io.RawIOBase):
    """Reads blocks of bytes as one file."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._rest = iter(blocks), memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        while not self._rest:
            if (block := next(self._blocks, None)) is None:
                return 0
            self._rest = memoryview(block)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def entry_of(path: str, member: TarInfo) -> Entry:
    """Return the entry of a tar's member; the type of a hard link is `OTHER`."""
    kind = Kind.FOLDER if member.isdir() else Kind.LINK if member.issym() else Kind.OTHER
    kind = Kind.FILE if member.isreg() else kind
    count = member.size if kind is Kind.FILE else 0
    target = member.linkname if kind is Kind.LINK else ""
    # An engine sets type bits in the mode, too.
    return Entry(path, kind, member.mode & 0o7777, member.uid, member.gid, int(member.mtime), count, target)


@dataclass(frozen=True)
class Vllm:
    """A vLLM in an image: `root` is the folder that holds `vllm/`, `dist_info` the name of the `*.dist-info` there."""

    root: str
    dist_info: str

    @property
    def version(self) -> str:
        """The version, for display only: no decision depends on it."""
        return self.dist_info.removesuffix(".dist-info").partition("-")[2]

    @property
    def record(self) -> str:
        """RECORD's path, relative to `root`."""
        return f"{self.dist_info}/RECORD"


def find_vllm(files: Files, image: Base, python: str | None = None) -> Vllm:
    """Find the one vLLM that the image's interpreter would import, or that the interpreter `python` in it would."""
    name = image.ref
    if python:
        folders = [*_site_folders(files, _prefixes_of(files, _relative(python)))]
    else:
        variables = (*image.env.get("PYTHONPATH", "").split(":"), image.workdir)
        folders = [_relative(folder) for folder in variables if folder.strip("/")]
        folders += _site_folders(files, _prefixes(files, image.env))
    # The interpreter takes the first; a second one would mislead whoever inspects the image.
    found = [folder for folder in dict.fromkeys(folders) if files.kind(f"{folder}/vllm/__init__.py") is not None]
    if not found:
        looked = ", ".join(f"/{folder}" for folder in dict.fromkeys(folders)) or "no site-packages at all"
        raise Failure(Problem("no vllm", name, f"looked in {looked}; name its interpreter with --python"))
    if len(found) > 1 and not python:
        both = " and ".join(f"/{folder}/vllm" for folder in found)
        raise Failure(Problem("more than one vllm", name, f"{both}: name an interpreter in the image with --python"))
    return Vllm(found[0], _dist_info(files, found[0], name))


def read_from(files: Files, vllm: Vllm, path: str) -> bytes | None:
    """Read a file, or list a folder, of a vLLM in an image: the engine's reader of a tree."""
    where = f"{vllm.root}/{path}"
    if not is_folder(path):
        return files.read(where)
    names = files.names(folder := where.rstrip("/"))
    return pack(names) if names or files.kind(folder) is Kind.FOLDER else None


def read_record(files: Files, vllm: Vllm) -> Record | None:
    """Read vLLM's RECORD, None if the image has no such file. Raises `Failure` if it is invalid."""
    path = f"{vllm.root}/{vllm.record}"
    if (content := files.read(path)) is None:
        return None
    try:
        rows = parse(content)
        list(csv.reader(content.decode().splitlines()))  # as the test of the new image reads it
        return rows
    except (ValueError, csv.Error) as error:
        raise Failure(Problem("cannot read RECORD", f"/{path}", str(error))) from error


def _relative(path: str) -> str:
    return str(PurePosixPath("/", path)).strip("/")


def _prefixes(files: Files, env: dict[str, str]) -> list[str]:
    path = [_relative(folder) for folder in env.get("PATH", _DEFAULT_PATH).split(":") if folder.startswith("/")]
    on_path = [folder.rpartition("/")[0] for folder in path if folder.endswith(("/bin", "/sbin"))]
    named = [_relative(env[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name, "").startswith("/")]
    known = dict.fromkeys((*named, *on_path, *_USUAL_PREFIXES))
    return [prefix for prefix in known if prefix and files.kind(prefix) is Kind.FOLDER]


def _prefixes_of(files: Files, python: str) -> list[str]:
    # A virtual environment has only its own prefix; any other link leads to the interpreter that it stands for.
    current = python
    for _ in range(_MAX_LINKS):
        prefix = str(PurePosixPath(current).parent.parent)
        here = files.entry(current)
        if files.kind(f"{prefix}/pyvenv.cfg") is not None or here is None or here.kind is not Kind.LINK:
            break
        current = posixpath.normpath(PurePosixPath("/", here.path).parent.joinpath(here.target)).lstrip("/")
    return ["usr/local", "usr"] if prefix == "usr" else [prefix]  # Debian's reads both


def _site_folders(files: Files, prefixes: list[str]) -> Iterator[str]:
    for prefix in prefixes:
        if files.kind(f"{prefix}/lib/python3/dist-packages") is Kind.FOLDER:
            yield f"{prefix}/lib/python3/dist-packages"
        for minor in _MINORS:
            library = f"{prefix}/lib/python3.{minor}"
            if files.kind(library) is Kind.FOLDER:
                yield from (f"{library}/{kind}-packages" for kind in ("site", "dist"))


def _dist_info(files: Files, root: str, name: str) -> str:
    # The version in vLLM names it: to list a folder, an engine sends all that is below it.
    content = files.read(f"{root}/vllm/_version.py") or b""
    if version := re.search(rb"^__version__ = .*?'([^']+)'", content, re.MULTILINE):
        guess = f"vllm-{version[1].decode(errors='replace')}.dist-info"
        if files.kind(f"{root}/{guess}/RECORD") is not None:
            return guess
    named = [one for one in files.names(root) if re.fullmatch(r"vllm-.+\.dist-info", one)]
    # One without METADATA is no installation, see `tree.leftovers`.
    infos = [one for one in named if files.kind(f"{root}/{one}/METADATA") is not None]
    if len(infos) != 1:
        cause = f"{' and '.join(infos)}: remove the wrong one" if infos else "vllm/ has no dist-info beside it"
        raise Failure(Problem("more than one vllm" if infos else "no dist-info", f"{name}: /{root}", cause))
    return infos[0]
