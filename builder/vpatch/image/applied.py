"""What `vpatch apply` recorded inside an image, as a Dockerfile runs it, without a label of vpatch's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from vpatch import manifest
from vpatch.core.verdict import State
from vpatch.errors import Failure, Problem
from vpatch.image.filesystem import Files, Kind, Place
from vpatch.image.patch import BYTES, Label, check_counts

_BECAUSE = "`vpatch apply` recorded it"


def record_in(files: Files, vllm: Place, image: str) -> Label | None:
    """Return what `vpatch apply` recorded beside a vLLM, in the form of a label; None if there is no record.

    Args:
        files: the image's files.
        vllm: the vLLM in it.
        image: its name, for messages.

    Raises:
        Failure: the record is not what vpatch writes, or the image cannot be read.
    """
    path = f"{vllm.root}/{vllm.dist_info}/{manifest.APPLIED}"
    content = files.read(path) if files.kind(path) is Kind.FILE else None
    if content is None:
        return None
    try:
        document, written = manifest.read(content, BYTES)
        overlays = tuple(_overlays(document))
        check_counts({"overlays": overlays, "files": written}, "it is too large")
        about = (f"/{vllm.root}", vllm.dist_info, "python3", vllm.version, str(document.get("vpatch", "unknown")))
        return Label(content.decode(), *about, overlays, written, manifest.APPLIED)
    except ValueError as error:
        cause = f"/{path} is not what vpatch writes: {error}"
        raise Failure(Problem("cannot read provenance", image, cause)) from error


def merged(label: Label, record: Label) -> Label:
    """Return a label with what `vpatch apply` did to the labeled image, or to the one that it was built on."""
    overlays = {str(one["id"]): one for one in (*label.overlays, *record.overlays)}
    files = {**label.files, **record.files}
    for path in label.files.keys() & record.files.keys():
        if label.files[path].before in record.files[path].after:  # the build came later
            files[path] = label.files[path]
    return replace(label, overlays=tuple(overlays.values()), files=files)


def _overlays(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    found = document.get("overlays")
    if not isinstance(found, list):
        raise ValueError("it names no overlays")
    for one in found:
        match one:
            case {"id": str(name), "files": [*files]} if all(isinstance(file, str) for file in files):
                yield {"id": name, "state": State.APPLIED, "because": _BECAUSE, "files": files}
            case _:
                raise ValueError("an overlay in it has no id or no files")
