"""The digest that receipts of an image's processes report, from the image's files: `vpatch.guest.vpatch_receipt`."""

from __future__ import annotations

from collections.abc import Mapping

from vpatch import manifest
from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Failure
from vpatch.guest.vpatch_receipt import combined, release_of
from vpatch.image.filesystem import Files, Kind, Place
from vpatch.manifest import sha256


def receipt_digest(files: Files, vllm: Place, new: Mapping[str, bytes] | None = None) -> str:
    """Return the digest of a vLLM that `vpatch build` or `vpatch apply` changed, as `vpatch status` has it.

    Args:
        files: the image's files.
        vllm: the vLLM in it.
        new: files of a layer that is to come, by path relative to vLLM's root.

    Returns:
        64 hexadecimal digits; "" if vpatch wrote nothing there, if a file is not as it wrote it, or if one cannot be
        read: then no process could have a receipt.
    """
    new = new or {}

    def read(path: str) -> bytes | None:
        at = f"{vllm.root}/{path}".lstrip("/")
        return new[path] if path in new else files.read(at) if files.kind(at) is Kind.FILE else None

    try:
        listed = read(vllm.record) or b""
        after: dict[str, set[str]] = {}
        for note in (f"{vllm.dist_info}/{name}" for name in (manifest.BUILT, manifest.APPLIED)):
            # In a registry, it takes all layers to see that a file is missing.
            if f"{note},".encode() in listed and (content := read(note)) is not None:
                for path, written in manifest.read(content)[1].items():
                    after.setdefault(path, set()).update(written.after)
        hashes = {path: sha256(content) for path in after if (content := read(path)) is not None}
        companions = {f"{COMPANIONS}{name}" for name in files.names(f"{vllm.root}/{COMPANIONS}".strip("/"))}
    except (Failure, ValueError):
        return ""
    unknown = {path for path in companions if path.endswith(".py")} - after.keys()
    if not after or unknown or any(hashes.get(path) not in known for path, known in after.items()):
        return ""
    return combined(hashes, release_of(vllm.dist_info, listed, hashes))
