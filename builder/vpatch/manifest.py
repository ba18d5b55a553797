"""What vpatch wrote to a vLLM, with hashes. Its records differ in what else they say, and have one reader.

    provenance.json    beside a tree: {"schema": 1, "files": {path: {"before": sha256 | null, "after": [sha256, ...]}}}
    under-way.json     beside it, during a run: {"schema": 1, "files": {path: [sha256, ...]}}
    vpatch-image.json  in an image, and as its label: as provenance.json
    vpatch.json        in a repository: {path: [sha256, ...]}, the files alone

The manifest of a farm, with a digest, is read in `vpatch.guest.vpatch_receipt`, where vpatch may be missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from vpatch.foreign import CODE_BYTES, parse_json

SCHEMA = 1
APPLIED = "vpatch/provenance.json"
"""What `vpatch apply` wrote, below the dist-info."""
BUILT = "vpatch-image.json"
"""What `vpatch build` wrote, below the dist-info of an image."""


class Written(NamedTuple):
    """The sha256 of a file before vpatch, None if it added the file, and of everything that it may have left there."""

    before: str | None
    after: tuple[str, ...]


def read(content: bytes | str, most: int = CODE_BYTES) -> tuple[dict[str, Any], dict[str, Written]]:
    """Parse a record of at most `most` bytes; return all of it, and its files by path.

    Raises:
        ValueError: vpatch did not write it, or another version did.
    """
    document = parse_json(content, most)
    if not isinstance(document, dict) or "files" not in document:
        raise ValueError("it names no files")
    if document.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"schema {document['schema']}, and this vpatch reads {SCHEMA}")
    return document, files_in(document["files"])


def files_in(table: object) -> dict[str, Written]:
    """Read the files of a record, in any of its forms; raises as `read`."""
    if not isinstance(table, dict):
        raise ValueError(f"{type(table).__name__} is no table of files")
    found = {}
    for path, entry in table.items():
        if "\0" in path or {"", ".", ".."}.intersection(path.split("/")):
            raise ValueError(f"{path!r} is no path of a file in the tree")
        before, after = (entry.get("before"), entry.get("after")) if isinstance(entry, dict) else (None, entry)
        if not isinstance(before, str | None):
            raise ValueError(f"{type(before).__name__} is no hash")
        if not isinstance(after, list) or not all(isinstance(one, str) for one in after):
            raise ValueError(f"{type(after).__name__} is no list of hashes")
        found[path] = Written(before, tuple(after))
    return found


def as_json(files: Mapping[str, Written]) -> dict[str, dict[str, object]]:
    """Return files as provenance has them, sorted."""
    return {path: {"before": files[path].before, "after": list(files[path].after)} for path in sorted(files)}


def sha256(content: bytes) -> str:
    """Return the hash of `content` as a record has it."""
    return hashlib.sha256(content).hexdigest()
