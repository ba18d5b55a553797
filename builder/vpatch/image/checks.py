"""The tests of an image: those that need a container of it, and those that its files alone can answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem
from vpatch.image.config import LABEL
from vpatch.image.guest import files as inside
from vpatch.image.model import Base, Files, Tested
from vpatch.image.shapes import read_provenance


@dataclass(frozen=True)
class Provenance:
    """What an image's label says of it; `text` is the label, `root` is absolute inside the image.

    `python` is the interpreter that was asked for, or the one on the image's PATH.
    """

    text: str
    root: str
    dist_info: str
    python: str
    vllm: str
    vpatch: str
    overlays: tuple[Mapping[str, Any], ...]
    files: Mapping[str, Any]

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the modules that overlays change or add."""
        paths = [path.removesuffix(".py").removesuffix("/__init__") for path in self.files if path.endswith(".py")]
        return tuple(path.replace("/", ".") for path in paths)

    @property
    def applied(self) -> frozenset[str]:
        """The ids of the overlays that are in the image, by vpatch or upstream."""
        return frozenset(str(one["id"]) for one in self.overlays if one["state"] in ("applied", "merged"))


def provenance_of(base: Base) -> Provenance:
    """Read an image's label.

    Raises:
        Failure: it has none, or one that vpatch did not write.
    """
    text = base.labels.get(LABEL)
    if text is None:
        raise Failure(Problem("not patched", base.ref, f"the image has no label {LABEL}"))
    said = read_provenance(text, base.ref)
    info = f"vllm-{said['vllm']}.dist-info"
    lists = (tuple(said["overlays"]), said["files"])
    return Provenance(text, said["root"], info, said["python"] or "python3", said["vllm"], said["vpatch"], *lists)


class Rooted:
    """The files of an image, seen from the folder that holds `vllm/`."""

    def __init__(self, files: Files, root: str) -> None:
        self._files, self._root = files, root.strip("/")

    def read(self, path: str) -> bytes | None:
        """Give a file's bytes, None where there is none."""
        return self._files.read(f"{self._root}/{path}")

    def names(self, folder: str) -> tuple[str, ...]:
        """Give the names in a folder."""
        return self._files.names(f"{self._root}/{folder}")


def on_files(files: Files, said: Provenance, installed: Sequence[Catalogued]) -> Iterator[Tested]:
    """Test an image without a container: the tests that need one are told as not run."""
    tree = Rooted(files, said.root)
    yield from (Tested(*answer) for answer in inside.checks(tree, said.dist_info, said.text))
    probes = [probe for item in installed if item.id in said.applied for probe in item.overlay.probes]
    names = (*(f"import {module}" for module in said.modules), *(f"probe {probe.name}" for probe in probes))
    yield from (Tested(name, None, "it needs a container") for name in ("interpreter", *names))
