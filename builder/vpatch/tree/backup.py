"""What vpatch keeps beside the tree, in the dist-info's `vpatch` folder: the originals, and who changed what and when.

It decides no state. `revert` and people need it, and it tells whether vpatch wrote a file's bytes.

    <dist-info>/vpatch/originals/<path>   the bytes of <path> before the first change; RECORD's too
    <dist-info>/vpatch/provenance.json    what is applied: {"schema": 1, "vpatch": ..., "when": ..., "who": ...,
                                          "overlays": ..., "files": {path: {"before": sha256 | null, "after": [...]}}}
    <dist-info>/vpatch/under-way.json     only during a run, or after it was killed: {"schema": 1,
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
from vpatch.errors import Failure, Problem, naming

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vpatch.tree import Tree

SCHEMA = 1
NAMES = frozenset({"originals", "provenance.json"})
"""The names in the folder while no run is under way."""
STAGED = ".vpatch-new"
"""The suffix of a file that waits for its rename."""


@dataclass(frozen=True)
class File:
    """The bytes of one file as they are, as they should be, and before vpatch; None if there is no such file.

    Attributes:
        path: relative to the tree's root.
        now: the present bytes.
        want: the bytes that it should have.
        origin: the bytes before vpatch; None, too, if they are lost.
        tracked: `want` is the work of overlays, which `revert` has to undo.
        edited: `want` holds a user's edit, too, which `revert` must not lose.
    """

    path: str
    now: bytes | None
    want: bytes | None
    origin: bytes | None
    tracked: bool
    edited: bool = False

    @property
    def changes(self) -> bool:
        """Whether the file has to be written or removed."""
        return self.now != self.want

    @property
    def goes_back(self) -> bool:
        """Whether the file should be as it was before vpatch."""
        return self.want == self.origin


@dataclass(frozen=True)
class Kept:
    """What is kept for one tree.

    Attributes:
        originals: the bytes by path, without RECORD's.
        record: RECORD's original bytes.
        before: by path, the sha256 of the file before vpatch, as in provenance; None for a file that vpatch added.
        after: by path, the sha256 of what vpatch wrote, as in provenance.
        under_way: by path, the sha256 of what a killed run may have left.
        overlays: the note that provenance holds for people.
        provenance: its bytes.
        unclean: a run was killed, or is under way.
        broken: why provenance cannot be read; empty if it can.
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
        """Whether a run kept something here, or was killed before it could."""
        return self.record is not None or bool(self.paths) or self.unclean

    @property
    def paths(self) -> frozenset[str]:
        """Every path of the tree that something is kept or known about."""
        added = (path for path in self.under_way if is_companion(path))
        return frozenset(self.originals).union(self.before, added)

    def wrote(self, path: str, content: bytes) -> bool:
        """Whether vpatch wrote `content` at `path`, or found it there."""
        digest = sha256(content)
        known = (*self.after.get(path, ()), *self.under_way.get(path, ()), self.before.get(path))
        return digest in known or self.originals.get(path) == content

    def is_edited(self, path: str, now: bytes | None) -> bool:
        """Whether a known file, which holds `now`, has neither its original bytes nor any that vpatch wrote."""
        return path in self.paths and now is not None and not self.wrote(path, now)


def is_companion(path: str) -> bool:
    """Whether `path` is one of the files that vpatch adds."""
    return path.startswith(COMPANIONS)


def folder(tree: Tree) -> str:
    """Return the folder of what is kept, relative to the tree's root.

    Raises:
        Failure: the tree has no dist-info.
    """
    if tree.dist_info is None:
        cause = "originals and provenance are kept in it; reinstall vLLM with it"
        raise Failure(Problem("no dist-info", str(tree.root), cause))
    return f"{tree.dist_info}/vpatch"


def originals(tree: Tree, kept: Kept | None = None) -> Mapping[str, bytes | None]:
    """Return the bytes, from before vpatch, of every file that vpatch changed; None for a file that it added.

    Raises:
        Failure: what is kept cannot be read.
    """
    kept = kept or read(tree)
    if kept.broken:
        raise Failure(Problem("cannot read provenance", folder(tree), kept.broken))
    added = (path for path in {**kept.before, **kept.under_way} if is_companion(path))
    return {**kept.originals, **dict.fromkeys(added)}


def read(tree: Tree) -> Kept:
    """Read what is kept for a tree; without a dist-info, nothing is.

    Raises:
        Failure: something exists and cannot be read. Foreign provenance is not a failure: see `Kept.broken`.
    """
    if tree.dist_info is None:
        return Kept()
    base = folder(tree)
    record_path = f"{tree.dist_info}/RECORD"
    contents = _files(tree.root / base / "originals")
    record = contents.pop(record_path, None)
    provenance, under_way = tree.read(f"{base}/provenance.json"), tree.read(f"{base}/under-way.json")
    with naming("cannot read", base):
        try:
            names = frozenset(os.listdir(tree.root / base))  # noqa: PTH208 - names are what is compared
        except FileNotFoundError:
            names = NAMES
    try:
        said = _table(provenance)
        files = said.get("files", {})
        return Kept(
            contents,
            record,
            before={path: file["before"] for path, file in files.items()},
            after={path: tuple(file["after"]) for path, file in files.items()},
            under_way={path: tuple(hashes) for path, hashes in _table(under_way).get("files", {}).items()},
            overlays=said.get("overlays"),
            provenance=provenance,
            unclean=names != NAMES,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return Kept(contents, record, unclean=True, broken=f"not what vpatch writes: {error}".replace("\n", " "))


def provenance(overlays: object, before: Mapping[str, str | None], after: Mapping[str, tuple[str, ...]]) -> bytes:
    """Return provenance as bytes; the arguments are those fields of it, and `overlays` is JSON-able.

    Raises:
        Failure: SOURCE_DATE_EPOCH is set and not a number of seconds.
    """
    files = {path: {"before": before[path], "after": after[path]} for path in sorted(after)}
    said = {"schema": SCHEMA, "vpatch": _version(), "when": _now(), "who": _who(), "overlays": overlays, "files": files}
    return _json(said)


def under_way(files: Mapping[str, tuple[str, ...]]) -> bytes:
    """Return the note of a run that is about to write `files`, sha256 by path."""
    return _json({"schema": SCHEMA, "files": {path: list(files[path]) for path in sorted(files)}})


def sha256(content: bytes) -> str:
    """Return the hash of `content` as provenance has it."""
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
    """Read every file below a folder of vpatch's, by path; symbolic links are not followed."""

    def refuse(error: OSError) -> None:
        raise error

    found = {}
    with naming("cannot read", str(top)):
        try:
            for at, folders, names, folder in os.fwalk(top, onerror=refuse):
                folders[:] = [name for name in folders if name != "__pycache__"]
                for name in (name for name in names if not name.endswith(STAGED)):
                    path = Path(at, name).relative_to(top).as_posix()
                    if (content := _read(name, folder)) is not None:
                        found[path] = content
        except FileNotFoundError:
            return {}
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
