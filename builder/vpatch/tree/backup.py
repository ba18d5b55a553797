"""What is kept beside the tree, in the dist-info's `vpatch` folder: the originals, and who changed what and when.

It decides no state. It serves `revert`, people, and the question whether a file's bytes were written by vpatch.

    <dist-info>/vpatch/originals/<path>   the bytes of <path> before the first change; RECORD's too
    <dist-info>/vpatch/provenance.json    what is applied: {"schema": 1, "vpatch": ..., "when": ..., "who": ...,
                                          "overlays": ..., "files": {path: {"before": sha256 | null, "after": [...]}}}
    <dist-info>/vpatch/under-way.json     only while a run is under way, or after it was killed: {"schema": 1,
                                          "files": {path: [sha256, ...]}}, every hash that it may have left there
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import time
from dataclasses import dataclass, field
from errno import ELOOP
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Failure, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vpatch.tree.tree import Site

SCHEMA = 1
NAMES = frozenset({"originals", "provenance.json"})
"""What the folder holds when no run is under way."""
STAGED = ".vpatch-new"
"""How the name of a file that waits for its rename ends."""


@dataclass(frozen=True)
class Kept:
    """What is kept for one site.

    `originals` has the bytes by path, RECORD's left out: that is `record`. `before` and `after` are what provenance
    says: by path the sha256 of the file as it was, None for a file that vpatch added, and those of what vpatch wrote.
    `unclean` says that a run was killed, or is under way. `broken` is why provenance cannot be read, empty where it can
    be.
    """

    originals: Mapping[str, bytes] = field(default_factory=dict)
    record: bytes | None = None
    before: Mapping[str, str | None] = field(default_factory=dict)
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    under_way: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overlays: object = None
    provenance: bytes | None = None
    unclean: bool = False
    broken: str = ""

    @property
    def anything(self) -> bool:
        """Whether a run has kept something here, or was killed before it could."""
        return self.record is not None or bool(self.paths) or self.unclean

    @property
    def paths(self) -> frozenset[str]:
        """Every path of the tree that something is kept or known of."""
        added = (path for path in self.under_way if is_companion(path))
        return frozenset(self.originals).union(self.before, added)

    def wrote(self, path: str, content: bytes) -> bool:
        """Whether vpatch wrote `content` at `path`, or found it there."""
        digest = sha256(content)
        known = (*self.after.get(path, ()), *self.under_way.get(path, ()), self.before.get(path))
        return digest in known or self.originals.get(path) == content


def is_companion(path: str) -> bool:
    """Whether `path` is one of the files that vpatch adds."""
    return path.startswith(COMPANIONS)


def folder(site: Site) -> str:
    """Give the folder of what is kept, relative to the site's root.

    Raises:
        Failure: the site has no dist-info.
    """
    if site.dist_info is None:
        raise Failure(
            Problem("no dist-info", str(site.root), "originals and provenance are kept in it; reinstall vLLM with it")
        )
    return f"{site.dist_info}/vpatch"


def read(site: Site) -> Kept:
    """Read what is kept for `site`; nothing is, where there is no dist-info.

    Raises:
        Failure: something is there and cannot be read. Provenance that is not what vpatch writes is no failure here.
    """
    if site.dist_info is None:
        return Kept()
    base = folder(site)
    record_path = f"{site.dist_info}/RECORD"
    originals = _files(site.root / base / "originals")
    record = originals.pop(record_path, None)
    provenance, under_way = site.read(f"{base}/provenance.json"), site.read(f"{base}/under-way.json")
    try:
        names = frozenset(os.listdir(site.root / base))  # noqa: PTH208 - names are what is compared
    except FileNotFoundError:
        names = NAMES
    except OSError as error:
        raise Failure(Problem("cannot read", base, (error.strerror or str(error)).lower())) from error
    try:
        said = _table(provenance)
        files = said.get("files", {})
        return Kept(
            originals,
            record,
            before={path: file["before"] for path, file in files.items()},
            after={path: tuple(file["after"]) for path, file in files.items()},
            under_way={path: tuple(hashes) for path, hashes in _table(under_way).get("files", {}).items()},
            overlays=said.get("overlays"),
            provenance=provenance,
            unclean=names != NAMES,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return Kept(originals, record, unclean=True, broken=f"not what vpatch writes: {error}".replace("\n", " "))


def provenance(overlays: object, before: Mapping[str, str | None], after: Mapping[str, tuple[str, ...]]) -> bytes:
    """Make the provenance of a tree in which `after`, sha256 by path, is what vpatch wrote. `overlays` is JSON-able.

    Raises:
        Failure: SOURCE_DATE_EPOCH is set and not a number of seconds.
    """
    files = {path: {"before": before[path], "after": after[path]} for path in sorted(after)}
    said = {"schema": SCHEMA, "vpatch": _version(), "when": _now(), "who": _who(), "overlays": overlays, "files": files}
    return _json(said)


def under_way(files: Mapping[str, tuple[str, ...]]) -> bytes:
    """Make the note of a run that is about to write `files`, sha256 by path."""
    return _json({"schema": SCHEMA, "files": {path: list(files[path]) for path in sorted(files)}})


def sha256(content: bytes) -> str:
    """Give the hash of `content` as provenance writes it."""
    return hashlib.sha256(content).hexdigest()


def _json(said: Mapping[str, object]) -> bytes:
    return (json.dumps(said, indent=1) + "\n").encode()


def _table(content: bytes | None) -> dict[str, Any]:
    if content is None:
        return {}
    said = json.loads(content)
    if said["schema"] != SCHEMA:
        raise ValueError(f"schema {said['schema']}, and this vpatch reads {SCHEMA}")
    return {**said}


def _files(top: Path) -> dict[str, bytes]:
    """Read every file below a folder that vpatch writes, by path; what a symbolic link leads to is not vpatch's."""

    def refuse(error: OSError) -> None:
        raise error

    found = {}
    try:
        for at, folders, names, folder in os.fwalk(top, onerror=refuse):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in (name for name in names if not name.endswith(STAGED)):
                path = Path(at, name).relative_to(top).as_posix()
                if (content := _read(name, folder)) is not None:
                    found[path] = content
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Failure(Problem("cannot read", str(top), (error.strerror or str(error)).lower())) from error
    return dict(sorted(found.items()))


def _read(name: str, folder: int) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None  # another run of vpatch removed it
    except OSError as error:
        if error.errno == ELOOP:
            return None
        raise


def _now() -> str:
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    try:
        at = time.gmtime(int(epoch) if epoch else None)
    except (ValueError, OverflowError, OSError) as error:
        raise Failure(Problem("bad SOURCE_DATE_EPOCH", epoch, "not a number of seconds")) from error
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", at)


def _who() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("vpatch")
    except metadata.PackageNotFoundError:
        return "unknown"
