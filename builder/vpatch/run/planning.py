"""What the overlays of a farm come to: the plan of a vLLM, with what `vpatch apply` wrote to it before.

`launch` imports this late, as a start that remembers its plan needs neither the engine nor libcst.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from vpatch.api import differences, inapplicable, open_tree
from vpatch.core.catalogue import Selection, applied_beside, discover, has_mark
from vpatch.core.engine import Engine
from vpatch.core.marks import overlays_of
from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem, raise_all
from vpatch.guest.vpatch_receipt import release_of
from vpatch.manifest import sha256
from vpatch.run.content import Content, Misfits
from vpatch.tree.copies import known_in
from vpatch.tree.locate import Reads, Tree


def plan(tree: Tree, selection: Selection) -> Content:
    """Return what a farm of a vLLM has to hold.

    Raises:
        UnknownName: there is no such overlay.
        Misfits: overlays do not fit, and others do.
        Failure: none fits, or an overlay changes a data file, or one that was named is not applicable.
    """
    seen = Reads(tree)
    installed = known_in(tree, seen.read, discover())
    chosen = selection.in_tree(installed, seen.read)
    engine = Engine(chosen, once=True)
    found = engine.plan(seen.read, chosen, applied_beside(chosen, installed, seen.read))
    if found.problems:
        with suppress(Failure):  # a checkout, and no gitpython
            found = differences(tree, open_tree(tree), installed).planned(found)
    if engine.fitting(seen.read, found.before):
        wrong = [item for item in chosen if item.id in {one.id for one in found.before if one.problems}]
        # Without `--overlay`, what is in the tree counts as selected: it cannot be left out.
        stays = selection.only is None and any(has_mark(item, seen.read) for item in wrong)
        raise Misfits(found.problems, () if stays else tuple(item.id for item in wrong))
    problems = [*found.problems, *inapplicable(found.before, selection.named, tree.root)]
    raise_all([*problems, *_unserved(found.files)])
    applied = _applied(seen, installed)
    files = {**applied, **found.files}
    overlays = sorted(set().union(*overlays_of(files).values()))
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
    files = {file: data for file, data in read if data is not None}
    return {file: files[file] for file, overlays in overlays_of(files).items() if overlays}


def _unserved(files: Iterable[str]) -> Iterator[Problem]:
    """Yield the data files: modules look for them beside their real path, and a farm has links to these."""
    for file in files:
        if not file.endswith(".py"):
            cause = "an overlay changes this data file, which vLLM would read from the installed package"
            yield Problem("cannot run", file, cause, hint="`vpatch apply` changes it in place")
