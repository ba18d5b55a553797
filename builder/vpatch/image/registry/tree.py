"""vLLM in the layers of an image: as few of them are read as hold it."""

from __future__ import annotations

import re
from typing import IO

from vpatch.errors import Failure, Problem
from vpatch.image import limits
from vpatch.image.find import Vllm, find, listed
from vpatch.image.model import Base, Entry, Kind
from vpatch.image.registry.layers import LayeredFiles

_INFO = re.compile(r"(?P<root>.+)/vllm-[^/]+\.dist-info/RECORD")
_WANTED = re.compile(r".*/vllm/.*\.py|.*/vllm-[^/]+\.dist-info/.*")
_COMPILED = re.compile(r".*/vllm/.*\.so")


def is_wanted(entry: Entry) -> bool:
    """Say whether a file's bytes may be asked for: vLLM's own Python files, and its dist-info's."""
    return _WANTED.fullmatch(entry.path) is not None


def is_wanted_or_compiled(entry: Entry) -> bool:
    """Say whether a file's bytes may be asked for, where its extensions are looked into, too."""
    return is_wanted(entry) or _COMPILED.fullmatch(entry.path) is not None


class VllmFiles:
    """The files of an image of which those of one vLLM are looked for in all layers, and others in those read so far.

    Implements `vpatch.image.model.Files`.
    """

    def __init__(self, layers: LayeredFiles, listed: frozenset[str]) -> None:
        self._layers, self._listed = layers, listed

    def entry(self, path: str) -> Entry | None:
        """Say what is at `path`."""
        found = self._layers.settle(path) if path in self._listed else self._layers.entry(path)
        # A layer that has a file need not name the folders above: one further down says of which mode they are.
        while found is not None and self._layers.is_guess(path) and self._layers.deeper(path):
            found = self._layers.entry(path)
        return found

    def kind(self, path: str) -> Kind | None:
        """Say of what kind the entry at `path` is."""
        here = self.entry(path)
        return here.kind if here else None

    def read(self, path: str) -> bytes | None:
        """Give a file's bytes."""
        self.entry(path)
        return self._layers.read(path)

    def open(self, path: str) -> IO[bytes] | None:
        """Give a file too large to be read at once, to be closed."""
        self.entry(path)
        return self._layers.open(path)

    def names(self, folder: str) -> tuple[str, ...]:
        """Give the names in a folder, as far as they were read."""
        return self._layers.names(folder)


def vllm_in(layers: LayeredFiles, base: Base, python: str | None) -> tuple[Vllm, VllmFiles]:
    """Read layers from the top until one shows a vLLM with its dist-info; find it there.

    What RECORD lists and no layer that was read has, is then looked for further down. A second vLLM that lies lower
    is not seen.

    Raises:
        Failure: there is none, or more than one; a layer cannot be read.
    """
    while not _roots(layers):
        if not layers.deeper():
            raise Failure(Problem("no vllm", base.ref, "none of its layers has one with its dist-info"))
    vllm = find(layers, base, python)
    found = listed(layers, vllm)
    return vllm, VllmFiles(layers, frozenset(f"{vllm.root}/{row.path}" for row in found.rows) if found else frozenset())


def _is_record(path: str) -> bool:
    return _INFO.fullmatch(path) is not None


def _roots(layers: LayeredFiles) -> list[str]:
    infos = layers.found(_is_record)
    if len(infos) > limits.VLLMS:
        raise layers.failure(f"more than {limits.VLLMS} places in it look like a vLLM")
    roots = [found["root"] for path in infos if (found := _INFO.fullmatch(path))]
    return [root for root in roots if layers.entry(f"{root}/vllm/__init__.py") is not None]
