"""vpatch from Python: the verbs of the command line as functions.

    import vpatch

    vpatch.apply(overlays=["turboquant-hybrid"])  # the vLLM that this interpreter imports

Call it before the first `import vllm`: a module that is already imported keeps its old code. Each function returns a
frozen result and raises `vpatch.Failure`, with every problem, if it could not do what was asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vpatch.core.catalogue import Selection, applied_beside, discover, has_mark, loadable
from vpatch.core.engine import Engine, Read
from vpatch.core.overlay import Catalogued, notes_of
from vpatch.core.verdict import State, Verdict
from vpatch.errors import Code, Failure, Problem
from vpatch.guest.vpatch_receipt import written_to
from vpatch.results import Changed, Diff, Refused, Result
from vpatch.tree import apply as changing
from vpatch.tree import backup
from vpatch.tree.copies import as_applied, known_in
from vpatch.tree.interpreter import interpreter
from vpatch.tree.locate import Reads, Tree, imported_by, is_checkout, locate
from vpatch.tree.standing import Differences, compared, standing
from vpatch.tree.upgrade import Upgrade, leftovers, not_installed, remove_leftovers, upgrade_of
from vpatch.tree.write_plan import SitePackages

if TYPE_CHECKING:
    from vpatch.tree.checkout import Checkout

    Store = SitePackages | Checkout

__all__ = ["Changed", "Diff", "Refused", "Result", "applied", "apply", "diff", "revert", "status", "verify"]

R = TypeVar("R", bound=Result)

TreeLike = Tree | str | os.PathLike[str] | None
"""A site-packages folder, a virtual environment, an interpreter or a source checkout; None: this interpreter's vLLM."""

Ids = Iterable[str] | Selection | None
"""Ids of overlays. None: every overlay that is not opt-in, and each that is applied; `[]`: no overlay."""


def status(tree: TreeLike = None, overlays: Ids = None, also: Iterable[str] = ()) -> Result:
    """Judge a vLLM by overlays. It writes nothing, and does not raise for overlays that are drifted or in conflict.

    Args:
        tree: the vLLM.
        overlays: ids of overlays.
        also: ids of overlays to add, opt-in ones in particular.

    Raises:
        UnknownName: there is no such folder or overlay.
        Failure: there is no vLLM, or a file cannot be read.
    """
    found, selection = _tree(tree), Selection.of(overlays, also)
    seen = Reads(found)
    installed = known_in(found, seen.read, discover())
    chosen = selection.in_tree(installed, seen.read)
    others = [one for one in installed if one.overlay.opt_in and one not in chosen] if selection.only is None else []
    engine = Engine([*chosen, *others], once=True)
    verdicts = engine.status(seen.read, chosen, applied_beside(chosen, installed, seen.read))
    store = _store(found)
    stands = differences(found, store, installed)
    upgrade = _upgrade(store, installed, chosen, verdicts)
    verdicts = stands.blamed(upgrade.changeset.before if upgrade else verdicts)
    misfits = dict.fromkeys(problem for verdict in verdicts for problem in verdict.problems)
    problems = [*misfits, *(upgrade.problems if upgrade else ())]
    problems += inapplicable(verdicts, selection.named, found.root)
    problems += [obstacle] if (obstacle := changing.obstacle(seen, verdicts)) else []
    fitting = upgrade.fitting if upgrade else engine.fitting(seen.read, verdicts)
    opt_in = tuple(item.id for item in others if _pending(engine, seen.read, item))
    about, gone = (found.root, found.version, verdicts, tuple(problems)), not_installed(store, installed)
    notes = (*stands.notes(problems), *map(str, leftovers(found)))
    done = Result(*about, notes, fitting=fitting, obstacle=obstacle, opt_in=opt_in, not_installed=gone)
    done = replace(done, upgradable=upgrade.replaced if upgrade else (), edited=stands.places)
    return _with_digest(done, found)


def _with_digest(result: R, tree: Tree | Checkout) -> R:
    """Add the digest, unless something is wrong: then files may be anything, and no process could prove them."""
    if result.problems or not isinstance(tree, Tree) or is_checkout(tree):
        return result
    with suppress(Failure, OSError, ValueError):
        if not backup.read(tree).broken:
            return replace(result, digest=str(written_to(tree.root)["digest"]))
    return result


def _pending(engine: Engine, read: Read, item: Catalogued) -> bool:
    """Whether an overlay that the user did not ask for could be applied; one that raises is none of their concern."""
    try:
        return engine.status(read, [item])[0].state is State.PENDING
    except Failure:
        return False


def diff(tree: TreeLike = None, overlays: Ids = None, also: Iterable[str] = ()) -> Diff:
    """Compute the change that `apply` would make. It writes nothing. Arguments as of `status`.

    Raises:
        Refused: an overlay is drifted, in conflict, or was named and is not applicable.
        Failure: as `status`.
    """
    found, selection = _tree(tree), Selection.of(overlays, also)
    seen = Reads(found)
    _refuse_receipt(found, selection)
    installed = known_in(found, seen.read, discover())
    chosen = selection.in_tree(installed, seen.read)
    engine = Engine(chosen, once=True)
    changeset = engine.plan(seen.read, chosen, applied_beside(chosen, installed, seen.read))
    store = _store(found)
    stands = differences(found, store, installed)
    upgrade = _upgrade(store, installed, chosen, changeset.before)
    changeset = stands.planned(upgrade.changeset if upgrade else changeset)
    anew = store and upgrade and not changeset.problems
    wanted = {**store.originals, **changeset.files} if store and anew else changeset.files
    files = {file: (old, new) for file, new in sorted(wanted.items()) if (old := seen.read(file)) != new}
    problems = [*changeset.problems, *inapplicable(changeset.before, selection.named, found.root)]
    problems += [obstacle] if (obstacle := changing.obstacle(seen, changeset.before)) else []
    notes = (*notes_of(chosen, changeset.before), *stands.notes(problems), *map(str, leftovers(found)))
    fitting = upgrade.fitting if upgrade else engine.fitting(seen.read, changeset.before)
    about = (found.root, found.version, changeset.before, tuple(problems), notes, fitting, obstacle)
    done = Diff(*about, files, upgradable=upgrade.replaced if upgrade else (), edited=stands.places)
    return _checked(done)


def apply(tree: TreeLike = None, overlays: Ids = None, also: Iterable[str] = ()) -> Changed:
    """Apply overlays: all of them, or none if one does not fit. It changes none that is applied.

    Arguments as of `status`.

    Raises:
        Refused: an overlay is drifted or in conflict, and nothing was written; or one was named and is not applicable.
        Failure: as `status`, or the tree cannot be written.
    """
    found, selection = _tree(tree), Selection.of(overlays, also)
    _refuse_receipt(found, selection)
    writable = open_tree(found)
    installed = known_in(writable.tree, writable.tree.read, discover())
    chosen = selection.in_tree(installed, writable.tree.read)
    root = writable.tree.root
    absent = {file for item in installed for file in item.overlay.files if not (root / file).exists()}
    engine = Engine(chosen, once=True)
    changeset, writes = changing.apply(writable, chosen, engine, installed)
    edits = changeset.problems or writes.edited
    stands = differences(writable.tree, writable.snapshot() if edits else None, installed)
    changeset = stands.planned(changeset)
    problems = (*changeset.problems, *inapplicable(changeset.after, selection.named, root))
    notes = (*notes_of(chosen, changeset.after), *stands.notes(problems), *map(str, leftovers(writable.tree)))
    added = tuple(file for file in writes.changed if file in absent)
    states = zip(changeset.before, changeset.after, strict=True)
    affected = {after.id for before, after in states if before.state is not after.state}
    affected = (affected | {*writes.upgraded}) - {*writes.restored}
    about = (root, writable.tree.version, changeset.after, problems, notes)
    upgrade = _upgrade(writable, installed, chosen, changeset.before) if changeset.problems else None
    fitting = upgrade.fitting if upgrade else engine.fitting(writable.tree.read, changeset.before)
    done = Changed(*about, fitting, changed=writes.changed, added=added, affected=tuple(sorted(affected)))
    done = replace(done, upgraded=writes.upgraded, edited=stands.places)
    return _checked(_with_digest(done, writable.tree))


def applied(tree: TreeLike = None, overlays: Ids = None, *, edits: bool = False) -> Diff:
    """Compare what stands in a vLLM with its originals. It writes nothing.

    Edits of others in the files that vpatch changed are in it, and `edited` names them.

    Args:
        tree: the vLLM.
        overlays: compare what vpatch made with what it would have made without these overlays. Edits are not in it.
        edits: compare with what vpatch made: only edits are in it, with `overlays` those of their files.

    Raises:
        Failure: as `status`.
    """
    writable, selection = open_tree(tree), Selection.of(overlays)
    root, installed = writable.tree.root, as_applied(writable.tree, writable.tree.read, discover())
    engine = Engine(installed)
    stands = standing(writable, changing.what_it_made(writable, engine))
    verdicts = engine.status(writable.tree.read, selection.in_tree(installed, writable.tree.read))
    files = stands.edited if edits else stands.files
    if overlays is not None and edits:
        files = {file: pair for file, pair in files.items() if any(file in one.files for one in verdicts)}
    elif overlays is not None:
        chosen = selection.among(installed)
        without = changing.revert(writable, installed, chosen, engine, dry=True, discard=True).files
        made = {file: stands.edited[file][0] if file in stands.edited else writable.tree.read(file) for file in without}
        files = {file: (then, made[file]) for file, then in sorted(without.items()) if then != made[file]}
    about = (root, writable.tree.version, stands.blamed(verdicts))
    return Diff(*about, files=files, edited=stands.places, captured=stands.captured if edits else ())


def revert(tree: TreeLike = None, overlays: Ids = None, *, dry_run: bool = False, force: bool = False) -> Changed:
    """Put the pristine bytes back; with `overlays`, remove only these and leave the others applied.

    Without `overlays`, it also removes what was kept of a vLLM that is no longer installed, see `tree.upgrade`.
    It changes nothing if no such overlay is applied. Without `overlays`, it works even if some do not load.

    Args:
        tree: the vLLM.
        overlays: ids of overlays.
        dry_run: write nothing, and return what would change.
        force: undo what others edited in these files, too; `applied` returns it.

    Raises:
        Failure: as `apply`; or a file that has to change was edited after vpatch.
    """
    writable, selection = open_tree(tree), Selection.of(overlays)
    found, broken = loadable() if overlays is None else (discover(), ())
    root, installed = writable.tree.root, as_applied(writable.tree, writable.tree.read, found)
    going = installed if overlays is None else selection.among(installed)
    left = remove_leftovers(writable.tree) if overlays is None and not dry_run else ()
    seen = Reads(writable.tree)
    gone = not_installed(writable, installed) if overlays is None else {}
    affected = tuple(sorted((*(item.id for item in going if has_mark(item, seen.read)), *gone)))
    which = None if overlays is None else going
    writes = changing.revert(writable, installed, which, dry=dry_run, discard=force)
    changed = tuple(sorted({*writes.changed, *left}))
    removed = tuple(file for file in changed if file in left or writes.files.get(file, b"") is None)
    absent = [item.id for item in going if item.id not in affected] if overlays is not None else []
    stands = differences(writable.tree, writable.snapshot() if writes.edited else None, installed)
    notes = (
        *map(str, broken),
        *(f"{name}: not applied, so there was nothing to revert" for name in absent),
        *stands.notes(),
    )
    about = (root, writable.tree.version)
    done = Changed(*about, notes=notes, changed=changed, removed=removed, affected=affected)
    return replace(done, not_installed=gone)


def verify(
    tree: TreeLike = None,
    overlays: Ids = None,
    also: Iterable[str] = (),
    *,
    python: str | os.PathLike[str] | None = None,
) -> Result:
    """Check that what is applied is complete: postconditions, syntax, RECORD, bytecode.

    Without `overlays`, it is a problem if an overlay that is applied is not installed: vpatch does not know what is
    complete there.

    Args:
        tree: the vLLM.
        overlays: overlays that must be applied. Default: each that is applied.
        also: more overlays that must be applied.
        python: an interpreter that must import exactly these files and run the changed functions.

    Raises:
        Refused: something is wrong.
        Failure: as `status`.
    """
    from vpatch.tree.verify import verify as check

    found, selection = _tree(tree), Selection.of(overlays, also)
    installed = known_in(found, found.read, discover())
    chosen = selection.in_tree(installed, found.read)
    runner = None if python is None else interpreter(Path(python))
    store = _store(found)
    gone = not_installed(store, installed)
    asked = gone if selection.only is None else {}
    others = {file for files in asked.values() for file in files}
    seen = check(found, chosen, named=selection.named, python=runner, others=others)
    hint = "install it, or remove all by `vpatch revert`"
    unknown = Problem("cannot verify", str(found.root), "", code=Code.UNKNOWN_OVERLAY, hint=hint)
    stands = differences(found, store, installed)
    known = others.union(*(one.files for one in seen.verdicts))
    problems = [*stands.verified(seen.problems, seen.verdicts, known), *leftovers(found)]
    if upgrade := _upgrade(store, installed, chosen, seen.verdicts):
        problems = [*upgrade.explained(problems, seen.verdicts), *upgrade.problems]
    problems += (replace(unknown, cause=f"{name} is applied, and its package is not installed here") for name in asked)
    with suppress(Failure):  # `check` has reported an unreadable provenance
        if not is_checkout(found):
            problems += changing.unknown_marks(found.read, installed, backup.originals(found))
    verdicts = stands.blamed(upgrade.changeset.before if upgrade else seen.verdicts)
    about = (found.root, found.version, verdicts, tuple(problems), seen.notes)
    return _checked(_with_digest(Result(*about, not_installed=gone, edited=stands.places), found))


def differences(tree: Tree, store: Store | None, installed: Sequence[Catalogued]) -> Differences:
    """Compare a tree with its originals; nothing differs where these cannot be read, which `verify` reports."""
    with suppress(Failure):
        if store:
            return compared(tree, store, installed)
    return Differences(tree.root)


def open_tree(tree: TreeLike = None) -> Store:
    """Find a vLLM to write to; the version of a source checkout is then what git describes.

    Raises:
        Failure: there is no such vLLM, or it is a checkout and gitpython is not installed.
    """
    found = _tree(tree)
    if not is_checkout(found):
        return SitePackages(found)
    from vpatch.tree.checkout import Checkout

    return Checkout.at(found)


def _refuse_receipt(tree: Tree, selection: Selection) -> None:
    if "receipt" in selection.named and is_checkout(tree):
        cause = "a source checkout has no record of what vpatch wrote, from which a process could prove it"
        raise Failure(Problem("no receipt", str(tree.root), cause, hint="leave it out"))


def _tree(tree: TreeLike) -> Tree:
    if isinstance(tree, Tree):
        return tree
    return imported_by(Path(sys.executable)) if tree is None else locate(Path(tree))


def _store(tree: Tree) -> Store | None:
    """Open a tree, of which all questions of a verb are asked: it reads each file once. None if that fails."""
    with suppress(Failure):
        return open_tree(tree)
    return None


def _upgrade(
    store: Store | None, installed: Sequence[Catalogued], chosen: Sequence[Catalogued], verdicts: Sequence[Verdict]
) -> Upgrade | None:
    try:
        return upgrade_of(store, Engine(installed), chosen, verdicts) if store else None
    except Failure:  # `verify` reports it, and `apply` if it matters
        return None


def inapplicable(verdicts: Sequence[Verdict], named: Collection[str], root: Path) -> Iterator[Problem]:
    """Yield the overlays that are not applicable, if they were asked for by name."""
    for verdict in verdicts:
        if verdict.id in named and verdict.state is State.NOT_APPLICABLE:
            yield Problem("not applicable", str(root), f"{verdict.id}: {verdict.because}")


def _checked(result: R) -> R:
    if result.problems:
        raise Refused(result)
    return result
