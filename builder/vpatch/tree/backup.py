"""What vpatch keeps beside the tree, in the dist-info's `vpatch` folder: the originals, and who changed what and when.

It decides no state. `revert` and people need it, and it tells whether vpatch wrote a file's bytes.

    <dist-info>/vpatch/originals/<path>   the bytes of <path> before the first change; RECORD's too
    <dist-info>/vpatch/patches/<id>.vpatch  the patch files that are applied, see `tree.copies`
    <dist-info>/vpatch/provenance.json    what is applied: the files, as `vpatch.manifest` has them, the "folders" that
                                          vpatch made for them, "vpatch", "when", "who", and "overlays", for people
    <dist-info>/vpatch/under-way.json     only during a run, or after it was killed: every hash that it may have left,
                                          which files it "added", and which "folders" it made
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from errno import ELOOP, ENOENT
from pathlib import Path

from vpatch import manifest
from vpatch.core.overlay import COMPANIONS
from vpatch.core.patch_file import SUFFIX
from vpatch.errors import Code, Failure, Problem, naming
from vpatch.foreign import read_opened, walk
from vpatch.manifest import Written, sha256
from vpatch.settings import rfc3339, source_date_epoch, user_name
from vpatch.tree.locate import Tree

REINSTALL = "reinstall vLLM"  # what helps where originals are lost

PATCHES = "patches"
NAMES = frozenset({"originals", "provenance.json"})
"""The names in the folder while no run is under way; beside them, the folder of patch files may be there."""
STAGED = ".vpatch-new"
"""The suffix of a file that waits for its rename."""


@dataclass(frozen=True)
class Kept:
    """What is kept for one tree, by path where it is about files."""

    originals: Mapping[str, bytes] = field(default_factory=dict)  # without RECORD's
    record: bytes | None = None  # RECORD's original bytes
    before: Mapping[str, str | None] = field(default_factory=dict)  # sha256 before vpatch; None: vpatch added the file
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # sha256 of what vpatch wrote
    under_way: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # sha256 of what a killed run may have left
    adding: frozenset[str] = frozenset()  # the files that this run may have added
    folders: frozenset[str] = frozenset()  # the folders that vpatch made for files that it added
    patches: Mapping[str, bytes] = field(default_factory=dict)  # the patch files that are applied, by id
    overlays: object = None  # the note that provenance holds for people
    provenance: bytes | None = None
    unclean: bool = False  # a run was killed, or is under way
    broken: str = ""  # why provenance cannot be read

    @property
    def anything(self) -> bool:
        """Whether a run kept something here, or was killed before it could."""
        return self.record is not None or bool(self.paths) or self.unclean

    @property
    def paths(self) -> frozenset[str]:
        """Every path of the tree that something is kept or known about."""
        return frozenset(self.originals).union(self.before, self.adding)

    @property
    def added(self) -> frozenset[str]:
        """The files that vpatch added, or was about to add when it was killed."""
        return self.adding.union(path for path, before in self.before.items() if before is None) - {*self.originals}

    def wrote(self, path: str, content: bytes) -> bool:
        """Whether vpatch wrote `content` at `path`, or found it there."""
        known = (*self.hashes(path), self.before.get(path))
        return sha256(content) in known or self.originals.get(path) == content

    def hashes(self, path: str) -> tuple[str, ...]:
        """Return the sha256 of everything that vpatch may have written at `path`."""
        return tuple(dict.fromkeys((*self.after.get(path, ()), *self.under_way.get(path, ()))))

    def is_edited(self, path: str, now: bytes | None) -> bool:
        """Whether a known file, which holds `now`, has neither its original bytes nor any that vpatch wrote."""
        return path in self.paths and now is not None and not self.wrote(path, now)


def is_companion(path: str) -> bool:
    """Whether `path` is a companion: what vpatch adds in the folder that is its own."""
    return path.startswith(COMPANIONS)


def folder(tree: Tree) -> str:
    """Return the folder of what is kept, relative to the tree's root; there is none without a dist-info."""
    if tree.dist_info is None:
        raise Failure(lacking(tree))
    return f"{tree.dist_info}/vpatch"


def lacking(tree: Tree) -> Problem:
    """Return why nothing can be written to a tree without a RECORD."""
    if tree.dist_info is None:
        cause = "originals and provenance are kept in it, so nothing can be written without it"
        return Problem("no dist-info", str(tree.root), cause, hint=REINSTALL)
    return Problem("no RECORD", tree.record, "it could not be kept true", code=Code.NO_RECORD, hint=REINSTALL)


def own_files(
    tree: Tree,
    originals: Mapping[str, bytes],
    patches: Mapping[str, bytes],
    record: bytes | None,
    provenance: bytes | None,
) -> dict[str, bytes]:
    """Return the files that keep these bytes, by path in the tree; provenance comes last."""
    base = folder(tree)
    found = {f"{base}/originals/{path}": content for path, content in originals.items()}
    found |= {f"{base}/{PATCHES}/{name}{SUFFIX}": content for name, content in patches.items()}
    last = {f"{base}/originals/{tree.record}": record, f"{base}/provenance.json": provenance}
    return found | {path: content for path, content in last.items() if content is not None}


def originals(tree: Tree, kept: Kept | None = None) -> Mapping[str, bytes | None]:
    """Return the bytes, from before vpatch, of every file that vpatch changed; None for a file that it added."""
    kept = kept or read(tree)
    if kept.broken:
        raise Failure(Problem("cannot read provenance", folder(tree), kept.broken, code=Code.PROVENANCE))
    return {**kept.originals, **dict.fromkeys(sorted(kept.added))}


def read(tree: Tree) -> Kept:
    """Read what is kept for a tree; without a dist-info, nothing is. Foreign provenance is no failure: see `broken`."""
    if tree.dist_info is None:
        return Kept()
    base = folder(tree)
    contents = _contents(tree.root / base / "originals")
    record = contents.pop(tree.record, None)
    copies = _contents(tree.root / base / PATCHES)
    patches = {name.removesuffix(SUFFIX): content for name, content in copies.items()}
    provenance, under_way = tree.read(f"{base}/provenance.json"), tree.read(f"{base}/under-way.json")
    with naming("cannot read", base):
        try:
            names = frozenset(os.listdir(tree.root / base))  # noqa: PTH208 - names are what is compared
        except FileNotFoundError:
            names = NAMES
    unclean = names - {PATCHES} != NAMES
    found = Kept(contents, record, patches=patches, provenance=provenance, unclean=unclean)
    try:
        document, files = manifest.read(provenance) if provenance is not None else ({}, {})
        run, writing = manifest.read(under_way) if under_way is not None else ({}, {})
        folders = frozenset(_paths(document, "folders")).union(_paths(run, "folders"))
        # Older runs note no "added": all that they add are companions.
        adding = frozenset(filter(is_companion, writing)).union(_paths(run, "added"))
    except ValueError as error:
        why = " ".join(str(error)[:200].split())
        return replace(found, provenance=None, unclean=True, broken=f"not what vpatch writes: {why}")
    return replace(
        found,
        before={path: file.before for path, file in files.items()},
        after={path: file.after for path, file in files.items()},
        under_way={path: file.after for path, file in writing.items()},
        adding=adding,
        folders=folders,
        overlays=document.get("overlays"),
    )


def _paths(document: Mapping[str, object], name: str) -> list[str]:
    """Return the paths below `vllm/` that a record lists under a name; raises ValueError if it has others."""
    found = document.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) and one.startswith("vllm/") for one in found):
        raise ValueError(f"{name!r} is no list of paths below vllm/")
    manifest.files_in({path: [] for path in found})  # raises
    return found


def provenance(
    overlays: object,
    before: Mapping[str, str | None],
    after: Mapping[str, tuple[str, ...]],
    folders: Iterable[str],
) -> bytes:
    """Return provenance as bytes; the arguments are fields of it, and `overlays` is JSON-able."""
    from importlib import metadata

    try:
        version = metadata.version("vpatch")
    except metadata.PackageNotFoundError:
        version = "unknown"
    about = {"schema": manifest.SCHEMA, "vpatch": version, "when": rfc3339(source_date_epoch()), "who": user_name()}
    files = manifest.as_json({path: Written(before[path], hashes) for path, hashes in after.items()})
    return _json({**about, "overlays": overlays, "folders": sorted(folders), "files": files})


def under_way(files: Mapping[str, tuple[str, ...]], added: Iterable[str], folders: Iterable[str]) -> bytes:
    """Return the note of a run that is about to write `files`, sha256 by path."""
    lists = {"added": sorted(added), "folders": sorted(folders)}
    return _json({"schema": manifest.SCHEMA, **lists, "files": {path: list(files[path]) for path in sorted(files)}})


def _json(document: Mapping[str, object]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def _contents(top: Path) -> dict[str, bytes]:
    """Read every file below a folder of vpatch's, by path; symbolic links are not followed."""
    found = {}
    with naming("cannot read", str(top)):
        try:
            for at, folders, names, folder in walk(top):
                folders[:] = [name for name in folders if name != "__pycache__"]
                for name in (name for name in names if not name.endswith(STAGED)):
                    if (content := _read(name, folder)) is not None:
                        found[Path(at, name).relative_to(top).as_posix()] = content
        except FileNotFoundError:
            return {}
    return dict(sorted(found.items()))


def _read(name: str, folder: int) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
            return read_opened(file.fileno())
    except OSError as error:
        if error.errno in (ENOENT, ELOOP):  # another run of vpatch removed it; or it is a symbolic link
            return None
        raise
