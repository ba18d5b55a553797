"""What a process of the pool does: it looks at one vLLM, as some overlays' files have it."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from threading import Thread

from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.matrix.trial import Together, try_one, try_together
from vpatch.matrix.verdicts import Cell


@dataclass(frozen=True)
class Looked:
    """What one job found: some overlays each alone, and several together."""

    cells: Mapping[str, Cell]
    together: Together


def start() -> None:
    """Prepare a process: it ends with the one that started it, however that ends."""
    gc.disable()  # as the program does itself
    Thread(target=_end_with, args=(parent_process(),), daemon=True).start()


def _end_with(parent: BaseProcess | None) -> None:
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _installed() -> Mapping[str, Catalogued]:
    return {item.id: item for item in discover()}


@cache
def _engine(ids: frozenset[str]) -> Engine:
    return Engine(_installed()[name] for name in ids)


def look(files: Mapping[str, bytes], ids: Collection[str], alone: Collection[str], together: Collection[str]) -> Looked:
    """Look at one vLLM.

    Args:
        files: its files, as far as it has those that any overlay reads.
        ids: every overlay that is asked about in this run.
        alone: those to try by themselves.
        together: those to try with each other.
    """
    engine = _engine(frozenset(ids))
    cells = {item.id: try_one(files.get, item, engine) for item in engine.overlays if item.id in alone}
    both = try_together(files.get, [item for item in engine.overlays if item.id in together], engine)
    engine.forget(set(files.values()))  # the next release may have many of the same files
    return Looked(cells, both)
