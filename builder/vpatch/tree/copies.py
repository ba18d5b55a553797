"""Copies of the patch files that are applied to a tree, so that another machine can judge and revert without them.

    <dist-info>/vpatch/patches/<id>.vpatch

A source checkout has none: git has its originals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from vpatch.core.catalogue import has_mark, of_patch_file
from vpatch.core.listing import unpack
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import SUFFIX
from vpatch.core.sources import PatchBytes
from vpatch.tree import backup
from vpatch.tree.locate import Tree


def known_in(
    tree: Tree, read: Callable[[str], bytes | None], installed: Sequence[Catalogued]
) -> tuple[Catalogued, ...]:
    """Return the overlays, and each patch that is applied to a tree and is not among them, in the order of the ids.

    A damaged copy counts for nothing: the patch is then one that nobody here has, and RECORD tells.

    Raises:
        Failure: a copy cannot be read.
    """
    return _by_id(_applied(tree, read) | {item.id: item for item in installed})


def as_applied(
    tree: Tree, read: Callable[[str], bytes | None], installed: Sequence[Catalogued]
) -> tuple[Catalogued, ...]:
    """Return what `known_in` does, with each patch as it was applied, where its file has changed since.

    Raises:
        Failure: a copy cannot be read.
    """
    copies = _applied(tree, read)
    here = {item.id: item if item.patch is None else copies.get(item.id, item) for item in installed}
    return _by_id(copies | here)


def _by_id(found: Mapping[str, Catalogued]) -> tuple[Catalogued, ...]:
    return tuple(found[name] for name in sorted(found))


def _applied(tree: Tree, read: Callable[[str], bytes | None]) -> dict[str, Catalogued]:
    """Return each patch that is applied to a tree as its copy has it, by id."""
    return {item.id: item for item in _copies(tree, read) if has_mark(item, read)}


def _copies(tree: Tree, read: Callable[[str], bytes | None]) -> Iterator[Catalogued]:
    folder = tree.dist_info and f"{backup.folder(tree)}/{backup.PATCHES}/"
    for name in unpack((folder and read(folder)) or b""):
        if name.endswith(SUFFIX) and (data := read(f"{folder}{name}")) is not None:
            with suppress(ValueError, RecursionError, MemoryError):
                yield of_patch_file(PatchBytes(f"{tree.root}/{folder}{name}", data))
