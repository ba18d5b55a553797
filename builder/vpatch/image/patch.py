"""Compute what a patched image has that its base has not: one layer, and what is said of it. Nothing is written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import PurePosixPath
from typing import Any

from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import Changeset, Verdict
from vpatch.errors import Failure, Problem
from vpatch.image import layer
from vpatch.image.find import Vllm, listed
from vpatch.image.model import Base, Entry, Files, Kind, Layer
from vpatch.image.shapes import read_provenance
from vpatch.tree import backup, record

SCHEMA = 1
# Not where the writer of site-packages keeps its own: an image holds no originals, they are in the base.
PROVENANCE = "vpatch-image.json"
"""The name, in the dist-info, of what an image says of itself."""


@dataclass(frozen=True)
class Patch:
    """What overlays make of an image: the changeset, and, where something changes, the layer and its provenance.

    `provenance` is the JSON that lies in the dist-info and that the image is labelled with.
    """

    changeset: Changeset
    layer: Layer | None = None
    provenance: str = ""


def patch(files: Files, vllm: Vllm, base: Base, overlays: Sequence[Catalogued], python: str | None = None) -> Patch:
    """Compute the layer that puts overlays on an image; `python` is the interpreter inside it that was asked for.

    Raises:
        Failure: something in the image cannot be read or replaced.
    """
    changeset = Engine(overlays).plan(lambda file: _module(files, vllm, file))
    if changeset.problems or not changeset.files:
        return Patch(changeset)
    rows = listed(files, vllm)
    if rows is None:
        raise Failure(Problem("no RECORD", f"/{vllm.root}/{vllm.record}", "it could not be kept true"))
    said = _provenance(files, vllm, changeset, python)
    new = {**changeset.files, f"{vllm.dist_info}/{PROVENANCE}": said.encode()}
    revised = record.revise(rows, {path: record.entry(path, content) for path, content in sorted(new.items())})
    contents = {f"{vllm.root}/{path}": content for path, content in new.items()}
    contents[f"{vllm.root}/{vllm.record}"] = revised.serialize()
    entries = _entries(files, vllm, contents)
    made = layer.make(contents, entries, _bytecode(files, contents), _epoch(base.config.get("created")))
    return Patch(changeset, made, said)


def _epoch(created: str | None) -> int:
    """Give the time that new files get, in seconds: SOURCE_DATE_EPOCH, or else when the base was made.

    Raises:
        Failure: SOURCE_DATE_EPOCH is set and not a number of seconds.
    """
    said = os.environ.get("SOURCE_DATE_EPOCH", "")
    if said:
        if not said.isdecimal():
            raise Failure(Problem("bad SOURCE_DATE_EPOCH", said, "not a number of seconds"))
        return int(said)
    try:
        return max(0, int(datetime.fromisoformat(created).timestamp())) if created else 0
    except (ValueError, TypeError, OverflowError) as error:
        cause = "not a time as RFC 3339 has it; SOURCE_DATE_EPOCH can say another"
        raise Failure(Problem("cannot read when the base was made", str(created), cause)) from error


def now() -> str:
    """Give the time of the build, or SOURCE_DATE_EPOCH, as RFC 3339."""
    said = os.environ.get("SOURCE_DATE_EPOCH", "")
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(said) if said else None))


def _module(files: Files, vllm: Vllm, file: str) -> bytes | None:
    return files.read(f"{vllm.root}/{file}")


def _overlay(verdict: Verdict, changed: Mapping[str, bytes]) -> dict[str, Any]:
    """Give what provenance says of an overlay."""
    touched = [file for file in sorted(changed) if verdict.id in marks_in(changed[file])]
    return {"id": verdict.id, "state": verdict.state, "because": verdict.because, "files": touched}


def _provenance(files: Files, vllm: Vllm, changeset: Changeset, python: str | None) -> str:
    """Say what was changed. An earlier layer of vpatch's is part of it."""
    earlier = _earlier(files, vllm)
    known: dict[str, Any] = dict(earlier.get("files", {}))
    for path, content in changeset.files.items():
        old = _module(files, vllm, path)
        before = known[path]["before"] if path in known else None if old is None else backup.sha256(old)
        known[path] = {"before": before, "after": [backup.sha256(content)]}
    contents = {path: changeset.files.get(path) or _module(files, vllm, path) or b"" for path in known}
    overlays = {one["id"]: one for one in earlier.get("overlays", ())}
    overlays |= {verdict.id: _overlay(verdict, contents) for verdict in changeset.after}
    said = {
        "schema": SCHEMA,
        "vpatch": version("vpatch"),
        "vllm": vllm.version,
        "root": f"/{vllm.root}",
        "python": python,
        "overlays": [overlays[name] for name in sorted(overlays)],
        "files": {path: known[path] for path in sorted(known)},
    }
    return json.dumps(said, separators=(",", ":"))


def _earlier(files: Files, vllm: Vllm) -> dict[str, Any]:
    """Give what an earlier vpatch said in the dist-info, empty where there was none.

    Raises:
        Failure: it is not what vpatch writes.
    """
    path = f"{vllm.root}/{vllm.dist_info}/{PROVENANCE}"
    content = files.read(path)
    return {} if content is None else read_provenance(content, f"/{path}")


def _entries(files: Files, vllm: Vllm, contents: Collection[str]) -> list[Entry]:
    """Give mode and owner of what the layer holds: as in the base; what is new there, as RECORD and its folder.

    Raises:
        Failure: a folder or file is a link, which a layer would replace.
    """
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
    if problems:
        raise Failure(*problems)
    return found


def _bytecode(files: Files, contents: Collection[str]) -> list[str]:
    """Give the compiled twins of the modules that change: the times of layers make old bytecode look right."""
    modules = [PurePosixPath(path) for path in contents if path.endswith(".py")]
    caches = {module.parent / "__pycache__" for module in modules}
    listed = {cache: files.names(str(cache)) for cache in sorted(caches)}
    return sorted(
        str(module.parent / "__pycache__" / name)
        for module in modules
        for name in listed[module.parent / "__pycache__"]
        if name.startswith(f"{module.stem}.") and name.endswith(".pyc")
    )
