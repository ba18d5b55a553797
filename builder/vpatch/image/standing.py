"""What of a patched image's label still holds: an image built on it inherits the label, and may change the files.

An image without a label may have what `vpatch apply` recorded, which is read in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vpatch import manifest
from vpatch.errors import Failure, Problem
from vpatch.image import Watch
from vpatch.image.applied import merged, record_in
from vpatch.image.config import LABEL, STEP, Base, steps_of
from vpatch.image.filesystem import Files, Kind, Place
from vpatch.image.patch import Label, label_of
from vpatch.image.receipt import receipt_digest
from vpatch.image.search import find_vllm
from vpatch.manifest import sha256

if TYPE_CHECKING:
    from vpatch.image.registry.image import RemoteImage
    from vpatch.image.registry.layers import LayeredFiles


@dataclass(frozen=True)
class Standing:
    """The files that a label lists, as they are in its image now."""

    later: int | None  # layers above vpatch's, None if the history does not show them
    lost: Mapping[str, str] = field(default_factory=dict)  # what became of each file that is not as vpatch left it
    whole: bool = True  # whether vpatch's own note is there: without it, vLLM itself was replaced
    hashes: Mapping[str, str] = field(default_factory=dict)  # sha256 of the files that are as vpatch left them
    digest: str = ""  # what receipts of its processes report; "" if a file is not as vpatch left it
    unread: Problem | None = None  # why the files were not compared
    read: Mapping[str, Any] = field(default_factory=dict)  # of a registry: bytes and layers, for the JSON

    def overlays(self, label: Label) -> list[dict[str, Any]]:
        """Return the label's overlays; the state of those that do not hold is `unknown`."""
        found = []
        for one in map(dict, label.overlays):
            lost = [path for path in one["files"] if path in self.lost]
            if lost or self.unread or not self.whole:
                why = f"{lost[0]} {self.lost[lost[0]]}" if lost else "another vLLM is there now"
                why = "not every layer was read" if self.unread else why
                because = f"{one['state']} when vpatch {'built' if label.built else 'applied'} it; {why}"
                one |= {"state": "unknown", "because": because, "brief": why}
            found.append(one)
        return found


def standing(files: Files, image: Base, label: Label) -> Standing:
    """Compare the files of an image with its label."""
    own = f"{label.dist_info}/{label.note}"
    wanted = {path: set(about.after) for path, about in label.files.items()}
    wanted[own] = {sha256(label.text.encode())}
    lost, hashes = {}, {}
    for path, known in wanted.items():
        at = _at(label, path)
        content = files.read(at) if files.kind(at) is Kind.FILE else None
        hashes[path] = sha256(content) if content is not None else ""
        if hashes[path] not in known:
            lost[path] = "is gone" if files.kind(at) is None else "is another"
    digest = "" if lost else receipt_digest(files, _place(label))
    return Standing(_later(image.config), lost, own not in lost, hashes, digest)


def paths_of(label: Label) -> frozenset[str]:
    """Return the paths that a label is about, in its image, with those of RECORD and of vpatch's records."""
    notes = (f"{label.dist_info}/{name}" for name in (label.note, manifest.APPLIED, "RECORD"))
    return frozenset(_at(label, path) for path in (*label.files, *notes))


def _at(label: Label, path: str) -> str:
    return f"{label.root}/{path}".strip("/")


def _place(label: Label) -> Place:
    return Place(label.root.strip("/"), label.dist_info)


def _later(config: Mapping[str, Any]) -> int | None:
    steps = steps_of(config, len(config["rootfs"]["diff_ids"]))
    return steps[::-1].index(STEP) if STEP in steps else None


def _with_record(files: Files, label: Label, image: str) -> Label:
    """Return a label with what `vpatch apply` recorded beside the same vLLM, before the build or after it."""
    record = _at(label, f"{label.dist_info}/RECORD")
    listed = files.read(record) if files.kind(record) is Kind.FILE else None
    # RECORD lists vpatch's records: in a registry, it takes all layers to see that a file is missing.
    if not label.built or f"{label.dist_info}/{manifest.APPLIED},".encode() not in (listed or b""):
        return label
    later = record_in(files, _place(label), image)
    return merged(label, later) if later else label


def in_registry(image: RemoteImage, watch: Watch) -> tuple[Label, Standing]:
    """Look at an image in a registry, from its top layer down to where the last of the files is known.

    Raises:
        Failure: the image has no label, and the layers that are read for a record have none.
    """
    from vpatch.image.registry.layers import LayeredFiles, UnreadError
    from vpatch.image.registry.recorded import MOST, find_record, is_kept, to_pull

    label = label_of(image.base) if LABEL in image.base.labels else None
    paths, reading = paths_of(label) if label else frozenset[str](), f"reading {image.ref}"
    watch.phase(reading)
    progress = partial(watch.phase, reading)
    files = LayeredFiles(image, lambda entry: entry.path in paths or is_kept(entry), progress=progress, most=MOST)
    label = label or find_record(files, image)
    try:
        label, now = _in_layers(files, image, label)
    except UnreadError as error:
        now = Standing(_later(image.config), unread=to_pull(error.problems[0]))
    read = {"bytes_read": files.bytes_read, "layers_read": [one.digest for one in files.layers_read]}
    return label, replace(now, read={**read, "layers": len(image.layers)})


def _in_layers(files: LayeredFiles, image: RemoteImage, label: Label) -> tuple[Label, Standing]:
    from vpatch.image.registry.recorded import known_record

    files.listed = paths_of(label)
    label = _with_record(files, label, str(image.ref))
    files.listed = paths_of(label)
    now = standing(files, image.base, label)
    if not now.whole and (later := known_record(files, image)):
        files.listed = paths_of(later)
        return later, standing(files, image.base, later)
    return label, now


def in_engine(image: Base, watch: Watch) -> tuple[Label, Standing]:
    """Look at an image in an engine, in containers that are not started; also for what `vpatch apply` recorded in it.

    Raises:
        Failure: the image has neither a label nor a record.
    """
    from vpatch.image.engine import engine
    from vpatch.image.engine.containers import start_run
    from vpatch.image.engine.files import open_files

    watch.phase(f"reading {image.ref}")
    with engine() as client, start_run() as run, open_files(client, image.id, run.name) as files:
        recorded = None if LABEL in image.labels else _record(files, image)
        label = recorded or label_of(image)  # which raises
        files.prefetch(paths_of(label))
        label = _with_record(files, label, image.ref)
        now = standing(files, image, label)
        if not now.whole and (later := _record(files, image)):
            return later, standing(files, image, later)
        return label, now


def _record(files: Files, image: Base) -> Label | None:
    try:
        vllm = find_vllm(files, image)
    except Failure:  # what has no vLLM was not patched
        return None
    return record_in(files, vllm, image.ref)
