"""Copies of the patch files that are applied to a tree, so that another machine can judge and revert without them.

    <dist-info>/vpatch/patches/<id>.vpatch

A source checkout has none: git has its originals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    here = {item.id for item in installed}
    copies = (item for item in _copies(tree, read) if item.id not in here and has_mark(item, read))
    return tuple(sorted((*installed, *copies), key=lambda item: item.id))


def _copies(tree: Tree, read: Callable[[str], bytes | None]) -> Iterator[Catalogued]:
    folder = tree.dist_info and f"{backup.folder(tree)}/{backup.PATCHES}/"
    for name in unpack((folder and read(folder)) or b""):
        if name.endswith(SUFFIX) and (data := read(f"{folder}{name}")) is not None:
            with suppress(ValueError, RecursionError, MemoryError):
                yield of_patch_file(PatchBytes(f"{tree.root}/{folder}{name}", data))
