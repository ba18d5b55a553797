"""Compute the layer that puts overlays on an image, with its provenance. Nothing is written here."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import PurePosixPath
from typing import Any

from vpatch.core.engine import Engine
from vpatch.core.marks import overlays_of
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import Changeset, Verdict
from vpatch.errors import Failure, Problem, raise_all
from vpatch.foreign import parse_json
from vpatch.guest import record
from vpatch.guest.ask import module_of
from vpatch.guest.check import twins_in
from vpatch.image.config import LABEL, TEXT, TEXT_OR_NULL, Base, digest_of, object_with, validate
from vpatch.image.filesystem import WHITEOUT, Entry, Files, Kind, Place, read_from, read_record
from vpatch.image.receipt import receipt_digest
from vpatch.manifest import BUILT, Written, as_json, files_in, sha256
from vpatch.settings import source_date_epoch

_TEXTS = {"type": "array", "items": TEXT}
_OVERLAYS = {"type": "array", "items": object_with(id=TEXT, state=TEXT, because=TEXT, files=_TEXTS)}
_FILE = object_with(before=TEXT_OR_NULL, after=_TEXTS)
_FILES = {"type": "object", "additionalProperties": _FILE}
# Ten times what a label of all overlays has. The time for its bill of materials grows with the square of the counts.
BYTES = 1 << 20
_MOST = {"overlays": 300, "files": 300, "files of overlays": 3000}
_SCHEMA = object_with(vpatch=TEXT, vllm=TEXT, root=TEXT, python=TEXT_OR_NULL, overlays=_OVERLAYS, files=_FILES)


@dataclass(frozen=True)
class Layer:
    """One new layer; digests are `sha256:<hex>`."""

    blob: bytes = field(repr=False)  # its tar, compressed with gzip
    digest: str
    diff_id: str  # digest of the uncompressed tar, the same wherever it is made
    files: tuple[str, ...]  # paths, sorted
    removed: tuple[str, ...] = ()  # paths of files in the layers below
    provenance: str = ""  # JSON, which lies in the dist-info and becomes the image's label
    receipt: str = ""  # the digest that receipts of the image's processes report


@dataclass(frozen=True)
class Label:
    """A patched image's label, or what `vpatch apply` recorded inside the image."""

    text: str  # all of it
    root: str  # absolute inside the image
    dist_info: str
    python: str  # the interpreter that the build was asked for, or else the one on PATH
    vllm: str
    vpatch: str
    overlays: tuple[Mapping[str, Any], ...]
    files: Mapping[str, Written]
    note: str = BUILT  # the file with this text, below the dist-info

    @property
    def built(self) -> bool:
        """Whether `vpatch build` made the image; else a Dockerfile ran `vpatch apply`."""
        return self.note == BUILT

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the modules that overlays changed or added."""
        return tuple(module_of(path) for path in self.files if path.endswith(".py"))

    @property
    def applied(self) -> frozenset[str]:
        """The ids of the overlays whose changes are in the image, made by vpatch or merged upstream."""
        return frozenset(str(one["id"]) for one in self.overlays if one["state"] in ("applied", "merged"))


def label_of(image: Base) -> Label:
    """Read an image's label. Raises `Failure` if it has none, or one that vpatch did not write."""
    text = image.labels.get(LABEL)
    if text is None:
        why = f"the image has no label {LABEL}; `vpatch build --base {image.ref}` makes a patched one"
        raise Failure(Problem("not patched", image.ref, why))
    label, files = _read_provenance(text, image.ref)
    info = f"vllm-{label['vllm']}.dist-info"
    lists = (tuple(label["overlays"]), files)
    return Label(text, label["root"], info, label["python"] or "python3", label["vllm"], label["vpatch"], *lists)


def patch(
    files: Files, vllm: Place, base: Base, engine: Engine, python: str | None = None
) -> tuple[Changeset, Layer | None]:
    """Compute what the engine's overlays change in an image, and the layer for it; `python` is as in an `Order`."""
    changeset = engine.plan(partial(read_from, files, vllm))
    if not changeset.files:
        return changeset, None
    if (rows := read_record(files, vllm)) is None:
        raise Failure(Problem("no RECORD", f"/{vllm.root}/{vllm.record}", "it could not be kept true"))
    provenance = _provenance(files, vllm, changeset, engine.overlays, python)
    new = {**changeset.files, f"{vllm.dist_info}/{BUILT}": provenance.encode()}
    revised = record.revise(rows, {path: record.entry(path, content) for path, content in sorted(new.items())})
    new[vllm.record] = revised.serialize()
    contents = {f"{vllm.root}/{path}": content for path, content in new.items()}
    entries = _entries(files, vllm, contents)
    layer = make_layer(contents, entries, _bytecode(files, contents), _mtime(base.config.get("created")))
    return changeset, replace(layer, provenance=provenance, receipt=receipt_digest(files, vllm, new))


def make_layer(contents: Mapping[str, bytes], entries: Sequence[Entry], removed: Sequence[str], mtime: int) -> Layer:
    """Make a layer with `contents`, by path, and without `removed` files; equal arguments give equal bytes anywhere.

    `entries` have mode and owner of its files and of all folders above them: unpacking would create a missing folder as
    root's. Every entry gets `mtime`, in seconds since the epoch; a file that had exactly this one before gets one
    second more, so that bytecode of its old content is never taken for its own.
    """
    tar = io.BytesIO()
    whiteouts = [PurePosixPath(path).with_name(f"{WHITEOUT}{PurePosixPath(path).name}") for path in removed]
    members = (*entries, *(Entry(str(path), Kind.FILE, 0o644, 0, 0, 0) for path in whiteouts))
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in sorted(members, key=lambda entry: entry.path):
            info = tarfile.TarInfo(entry.path)
            info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
            info.mtime = mtime + (entry.kind is Kind.FILE and entry.mtime == mtime)
            data = contents.get(entry.path, b"")
            info.type = tarfile.DIRTYPE if entry.kind is Kind.FOLDER else tarfile.REGTYPE
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    blob = gzip.compress(tar.getvalue(), mtime=0)
    return Layer(blob, digest_of(blob), digest_of(tar.getvalue()), tuple(sorted(contents)), tuple(sorted(removed)))


def _mtime(created: str | None) -> int:
    """Return the time for new files: SOURCE_DATE_EPOCH, or else the base's creation; in seconds since the epoch."""
    if (epoch := source_date_epoch()) is not None:
        return epoch
    try:
        return max(0, int(datetime.fromisoformat(created).timestamp())) if created else 0
    except (ValueError, TypeError, OverflowError) as error:
        cause = "not a time as RFC 3339 has it; SOURCE_DATE_EPOCH can say another"
        raise Failure(Problem("cannot read when the base was made", str(created), cause)) from error


def _read_provenance(text: str | bytes, where: str) -> tuple[dict[str, Any], dict[str, Written]]:
    wrong = "not what vpatch writes"
    try:
        document = parse_json(text, BYTES)
    except ValueError as error:
        raise Failure(Problem("cannot read provenance", where, f"{wrong}: no JSON")) from error
    try:
        validate(document, _SCHEMA, wrong)
        check_counts(document, wrong)
        return document, files_in(document["files"])
    except ValueError as error:
        cause = str(error) if str(error).startswith(wrong) else f"{wrong}: {error}"
        raise Failure(Problem("cannot read provenance", where, cause)) from error


def check_counts(document: Mapping[str, Any], wrong: str) -> None:
    """Raise a `ValueError` that begins with `wrong` if provenance has more overlays or files than vpatch reads."""
    counts = {key: len(document[key]) for key in ("overlays", "files")}
    counts["files of overlays"] = sum(len(one["files"]) for one in document["overlays"])
    for key, count in counts.items():
        if count > _MOST[key]:
            raise ValueError(f"{wrong}: it has {count:,} {key}, and may have {_MOST[key]:,}")


def _provenance(
    files: Files, vllm: Place, changeset: Changeset, applied: Sequence[Catalogued], python: str | None
) -> str:
    # Includes the provenance of an earlier layer by vpatch.
    path = f"{vllm.root}/{vllm.dist_info}/{BUILT}"
    content = files.read(path)
    earlier, known = ({}, {}) if content is None else _read_provenance(content, f"/{path}")
    for file, new in changeset.files.items():
        old = files.read(f"{vllm.root}/{file}")
        before = known[file].before if file in known else None if old is None else sha256(old)
        known[file] = Written(before, (sha256(new),))
    contents = {file: changeset.files.get(file) or files.read(f"{vllm.root}/{file}") or b"" for file in known}
    overlays = {one["id"]: one for one in earlier.get("overlays", ())}
    pins = {item.id: {"sha256": item.sha256} for item in applied if item.sha256}
    marked = overlays_of(contents)
    for verdict in changeset.after:
        touched = [file for file in sorted(contents) if verdict.id in marked[file]]
        about = {"id": verdict.id, "state": verdict.state, "because": verdict.because, "brief": _brief(verdict)}
        overlays[verdict.id] = {**about, "files": touched, **pins.get(verdict.id, {})}
    document = {
        "schema": 1,
        "vpatch": version("vpatch"),
        "vllm": vllm.version,
        "root": f"/{vllm.root}",
        "python": python,
        "overlays": [overlays[name] for name in sorted(overlays)],
        "files": as_json(known),
    }
    return json.dumps(document, separators=(",", ":"))


def _brief(verdict: Verdict) -> str:
    """Return the reason in a few words, "" if the state says it all."""
    return "; ".join(dict.fromkeys(part.brief for part in verdict.parts if part.state is verdict.state and part.brief))


def _entries(files: Files, vllm: Place, contents: Collection[str]) -> list[Entry]:
    # As in the base; new ones get mode and owner of RECORD and its folder.
    folders = sorted({str(parent) for path in contents for parent in PurePosixPath(path).parents} - {"."})
    model = f"{vllm.root}/{vllm.record}"
    found: list[Entry] = []
    problems: list[Problem] = []
    for path, kind in (*((f, Kind.FOLDER) for f in folders), *((f, Kind.FILE) for f in sorted(contents))):
        like = model if kind is Kind.FILE else str(PurePosixPath(model).parent)
        here = files.entry(path)
        if here is not None and here.kind is not kind:
            problems.append(Problem("cannot replace", f"/{path}", f"it is a {here.kind.value}, not a {kind.value}"))
        if here is None and (old := files.entry(like)) is not None:
            here = Entry(path, kind, old.mode, old.uid, old.gid, 0)
        found += [] if here is None else [here]
    raise_all(problems)
    return found


def _bytecode(files: Files, contents: Collection[str]) -> list[str]:
    """Return the bytecode files of changed modules: a layer's times can make Python trust outdated ones."""
    modules = [PurePosixPath(path) for path in contents if path.endswith(".py")]
    caches = {folder: files.names(f"{folder}/__pycache__") for folder in sorted({module.parent for module in modules})}
    return sorted(
        f"{module.parent}/__pycache__/{name}"
        for module in modules
        for name in twins_in(caches[module.parent], module.stem)
    )
