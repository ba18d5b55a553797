"""What the overlays of a farm come to: the plan of a vLLM, with what `vpatch apply` wrote to it before.

`launch` imports this late, as a start that remembers its plan needs neither the engine nor libcst.
"""

from __future__ import annotations

from collections.abc import Sequence

from vpatch.api import inapplicable
from vpatch.core.catalogue import Selection, discover
from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in
from vpatch.core.overlay import Catalogued
from vpatch.errors import raise_all
from vpatch.guest.vpatch_receipt import release_of
from vpatch.manifest import sha256
from vpatch.run.content import Content
from vpatch.tree.copies import known_in
from vpatch.tree.locate import Reads, Tree


def plan(tree: Tree, selection: Selection) -> Content:
    """Return what a farm of a vLLM has to hold.

    Raises:
        UnknownName: there is no such overlay.
        Failure: an overlay does not fit, or one that was named is not applicable.
    """
    seen = Reads(tree)
    installed = known_in(tree, seen.read, discover())
    chosen = selection.in_tree(installed, seen.read)
    found = Engine(chosen).plan(seen.read)
    problems = [*found.problems, *inapplicable(found.before, selection.named, tree.root)]
    raise_all(problems)
    applied = _applied(seen, installed)
    files = {**applied, **found.files}
    overlays = sorted({name for data in files.values() for name in marks_in(data)})
    kept = {file: sha256(data) for file, data in applied.items() if file not in found.files}
    # From the bytes that the plan has read: what is read later may be those of another release.
    replaced = {file: sha256(old) for file in sorted(found.files) if (old := seen.read(file)) is not None}
    record = seen.read(tree.record) if tree.dist_info else None
    release = release_of(tree.dist_info or "", record, files)
    patches = {item.id: item.sha256 for item in installed if item.id in overlays and item.sha256}
    return Content(tree.root, tuple(overlays), found.files, kept, replaced, release, patches)


def _applied(seen: Reads, installed: Sequence[Catalogued]) -> dict[str, bytes]:
    """Return the files that `vpatch apply` changed or added before, by any overlay."""
    read = ((file, seen.read(file)) for file in sorted({file for item in installed for file in item.overlay.files}))
    return {file: data for file, data in read if data is not None and any(marks_in(data))}
