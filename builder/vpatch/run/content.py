"""What a farm holds: the files that overlays change or add, and links to everything else of a vLLM."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from vpatch.errors import Failure, Problem, naming
from vpatch.guest.vpatch_receipt import MANIFEST, SCHEMA, combined, release_of
from vpatch.manifest import sha256
from vpatch.stamps import BYTECODE

PLUGIN = "vpatch_receipt"  # as vLLM names what proves, in each of its processes, that it runs the farm

_GUEST = Path(__file__).parents[1] / "guest"
_DIST_INFO = "vpatch_receipt-1.dist-info"
_ENTRY_POINTS = f"[vllm.general_plugins]\n{PLUGIN} = vpatch_receipt:register\n"
_METADATA = "Metadata-Version: 2.1\nName: vpatch-receipt\nVersion: 1\nSummary: Proves which overlays vLLM runs.\n"


class Misfits(Failure):
    """Overlays that do not fit; `overlays` are their ids, () where the others cannot be run without them."""

    def __init__(self, problems: Iterable[Problem], overlays: tuple[str, ...]) -> None:
        super().__init__(*problems)
        self.overlays = overlays


@dataclass(frozen=True)
class Content:
    """What a farm holds.

    Attributes:
        root: the folder that holds the installed vLLM.
        overlays: the ids of those that its files have.
        files: by path below `root`, the bytes of each file that is not in `root` as it has to be.
        applied: the sha256 of each other file that the digest counts: what `vpatch apply` wrote to `root`.
        replaced: the sha256 of each file of `root` that `files` has another version of, as the plan has read it. A
            vLLM that is upgraded before the farm is made then differs from the manifest.
        release: which vLLM it is, from `release_of`.
        patches: the sha256 of each patch file among the overlays, by id.
    """

    root: Path
    overlays: tuple[str, ...]
    files: Mapping[str, bytes]
    applied: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    release: Mapping[str, str] = field(default_factory=lambda: release_of("", None, ()))
    patches: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def links(self) -> Mapping[str, str]:
        """What every other entry links to, by its path below `root`.

        Folders on the way to a file of the overlays are real, and so is the folder of their bytecode: the farm gets
        its own for the modules that differ.

        Raises:
            Failure: a folder cannot be read.
        """
        found: dict[str, str] = {}
        for folder in sorted(self._real):
            path = self.root / folder
            with naming("cannot read", str(path)):
                entries = sorted(os.scandir(path), key=lambda entry: entry.name) if path.is_dir() else []
            for entry in entries:
                below = f"{folder}/{entry.name}"
                if entry.name == BYTECODE:
                    found.update(self._bytecode(folder, Path(entry.path)))
                elif below not in self._real and below not in self.files:
                    found[below] = entry.path
        # Where a repaired wheel keeps the libraries that its extensions name by $ORIGIN/../vllm.libs.
        found.update({libraries.name: str(libraries) for libraries in self.root.glob("vllm*.libs")})
        return found

    def _bytecode(self, folder: str, cache: Path) -> Iterator[tuple[str, str]]:
        """Yield links to the bytecode of the modules of a folder that overlays leave alone."""
        ours = {Path(file).stem for file in self.files if str(Path(file).parent) == folder}
        with naming("cannot read", str(cache)):
            for compiled in sorted(cache.glob("*.pyc")):
                if compiled.name.partition(".")[0] not in ours:
                    yield f"{folder}/{BYTECODE}/{compiled.name}", str(compiled)

    @cached_property
    def _real(self) -> frozenset[str]:
        """The folders that the farm makes instead of linking to them."""
        above = {str(parent) for file in self.files for parent in Path(file).parents}
        return frozenset({"vllm"} | above - {"."})

    @property
    def packages(self) -> frozenset[str]:
        """The folders with modules that the farm makes; "" is its own."""
        return self._real | {""}

    @cached_property
    def key(self) -> str:
        """The name of the farm's folder. Bytecode does not count: it is what Python makes of the rest."""
        links = {path: target for path, target in self.links.items() if not is_bytecode(path)}
        own = {path: sha256(data) for path, data in self.written.items()}
        return sha256(json.dumps([sorted(own.items()), sorted(links.items())]).encode())[:16]

    @cached_property
    def hashes(self) -> Mapping[str, str]:
        """The sha256 of each file."""
        return {file: sha256(data) for file, data in sorted(self.files.items())}

    @cached_property
    def digest(self) -> str:
        """The digest of the release, and of the files that overlays change or add, also by `vpatch apply` to `root`.

        So it is the same on every machine that runs the same overlays on the same vLLM.
        """
        return combined({**self.applied, **self.hashes}, self.release)

    @property
    def manifest(self) -> bytes:
        """What the farm says of itself, as JSON."""
        about = {"schema": SCHEMA, "digest": self.digest, "overlays": self.overlays, "root": str(self.root)}
        about |= {"patches": self.patches}
        hashes = {"files": self.hashes, "replaced": self.replaced, "applied": self.applied}
        return json.dumps({**about, "release": self.release, **hashes}, indent=1).encode() + b"\n"

    @property
    def written(self) -> Mapping[str, bytes]:
        """The bytes of each file that the farm has itself: those of overlays, the manifest, and the receipt."""
        return {**self.files, MANIFEST: self.manifest, **_receipt()}


@cache
def _receipt() -> Mapping[str, bytes]:
    """Return the files that make vLLM prove in each of its processes that it runs the farm."""
    modules = {path.name: path.read_bytes() for path in sorted(_GUEST.glob("vpatch_*.py"))}
    about = {"METADATA": _METADATA, "entry_points.txt": _ENTRY_POINTS}
    return {**modules, **{f"{_DIST_INFO}/{name}": text.encode() for name, text in about.items()}}


def is_bytecode(path: str) -> bool:
    """Whether a path of a farm is bytecode, which Python makes of the rest."""
    return Path(path).parent.name == BYTECODE
