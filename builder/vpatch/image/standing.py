"""What of a patched image's label still holds: an image built on it inherits the label, and may change the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from vpatch.image import Watch
from vpatch.image.config import STEP, Base
from vpatch.image.filesystem import Files, Kind
from vpatch.image.patch import PROVENANCE, Label
from vpatch.manifest import sha256

if TYPE_CHECKING:
    from vpatch.image.registry.image import RemoteImage


@dataclass(frozen=True)
class Standing:
    """The files that a label lists, as they are in its image now."""

    later: int | None  # layers above vpatch's, None if the history does not show them
    lost: Mapping[str, str]  # what became of each file that is not as vpatch left it: `is gone`, `is another`
    whole: bool  # whether vpatch's own note is there: without it, vLLM itself was replaced

    def overlays(self, label: Label) -> list[dict[str, Any]]:
        """Return the label's overlays; the state of those that do not hold is `unknown`."""
        found = []
        for one in map(dict, label.overlays):
            lost = [path for path in one["files"] if path in self.lost]
            if lost or not self.whole:
                why = f"{lost[0]} {self.lost[lost[0]]}" if lost else "another vLLM is there now"
                one |= {"state": "unknown", "because": f"{one['state']} when vpatch built it; {why}", "brief": why}
            found.append(one)
        return found


def standing(files: Files, image: Base, label: Label) -> Standing:
    """Compare the files of an image with its label."""
    root, own = label.root.strip("/"), f"{label.dist_info}/{PROVENANCE}"
    wanted = {path: set(about.after) for path, about in label.files.items()}
    wanted[own] = {sha256(label.text.encode())}
    lost = {}
    for path, hashes in wanted.items():
        at = f"{root}/{path}".strip("/")
        content = files.read(at) if files.kind(at) is Kind.FILE else None
        if content is None or sha256(content) not in hashes:
            lost[path] = "is gone" if files.kind(at) is None else "is another"
    return Standing(_later(image.config), lost, own not in lost)


def paths_of(label: Label) -> frozenset[str]:
    """Return the paths that a label is about, in its image."""
    files = (*label.files, f"{label.dist_info}/{PROVENANCE}")
    return frozenset(f"{label.root}/{path}".strip("/") for path in files)


def _later(config: Mapping[str, Any]) -> int | None:
    steps = [step.get("created_by") for step in config.get("history") or () if not step.get("empty_layer")]
    if STEP not in steps or len(steps) != len(config["rootfs"]["diff_ids"]):
        return None
    return steps[::-1].index(STEP)


def in_registry(image: RemoteImage, label: Label, watch: Watch) -> Standing:
    """Look at an image in a registry, from its top layer down to where the last of the files is known."""
    from vpatch.image.registry.layers import LayeredFiles

    paths, reading = paths_of(label), f"reading {image.ref}"
    watch.phase(reading)
    files = LayeredFiles(image, lambda entry: entry.path in paths, progress=partial(watch.phase, reading))
    files.listed = paths
    return standing(files, image.base, label)


def in_engine(image: Base, label: Label, watch: Watch) -> Standing:
    """Look at an image in an engine, in containers that are not started."""
    from vpatch.image.engine import engine
    from vpatch.image.engine.containers import start_run
    from vpatch.image.engine.files import open_files

    watch.phase(f"reading {image.ref}")
    with engine() as client, start_run() as run, open_files(client, image.id, run.name) as files:
        files.prefetch(paths_of(label))
        return standing(files, image, label)
