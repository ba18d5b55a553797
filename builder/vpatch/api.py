"""vpatch from Python: the verbs of the command line as functions.

    import vpatch

    vpatch.apply(overlays=["turboquant-hybrid"])  # the vLLM that this interpreter imports

Call it before the first `import vllm`: a module that is already imported keeps its old code. Each function returns a
frozen result and raises `vpatch.Failure`, with every problem, if it could not do what was asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vpatch.core.catalogue import Selection, discover, has_mark, loadable
from vpatch.core.engine import Engine, Read
from vpatch.core.overlay import Catalogued, notes_of
from vpatch.core.verdict import State, Verdict
from vpatch.errors import Code, Failure, Problem
from vpatch.tree import apply as changing
from vpatch.tree import backup
from vpatch.tree.copies import known_in
from vpatch.tree.interpreter import interpreter
from vpatch.tree.locate import Reads, Tree, imported_by, is_checkout, locate
from vpatch.tree.unified import unified
from vpatch.tree.upgrade import Upgrade, leftovers, not_installed, remove_leftovers, upgrade_of
from vpatch.tree.write_plan import SitePackages

if TYPE_CHECKING:
    from vpatch.tree.checkout import Checkout

    Store = SitePackages | Checkout

R = TypeVar("R", bound="Result")

TreeLike = Tree | str | os.PathLike[str] | None
"""A site-packages folder, a virtual environment, an interpreter or a source checkout; None: this interpreter's vLLM."""

Ids = Iterable[str] | Selection | None
"""Ids of overlays. None: every overlay that is not opt-in, and each that is applied; `[]`: no overlay."""


@dataclass(frozen=True)
class Result:
    """What a verb found in one vLLM.

    Attributes:
        tree: the folder that holds `vllm/`.
        vllm: the version, as its metadata or git says; None if neither does.
        overlays: the verdicts, after the verb did its work; empty for `revert`.
        problems: what needs attention.
        notes: remarks that change no outcome.
        fitting: if some overlays do not fit, the ids of the others, which could be applied.
        obstacle: why nothing can be written to this tree although overlays are pending; it is among the problems.
        upgradable: of `status` and `diff`, overlays that another version of their package applied, and that `apply`
            replaces by this one.
        opt_in: of `status` without `overlays`, the ids of other opt-in overlays that could be applied.
        not_installed: overlays that are applied, by another vpatch or before their package was removed, and that no
            package here has: by id, their files. Of `revert`, the ones that it removed. `apply` and `diff` do not look.
    """

    tree: Path
    vllm: str | None
    overlays: tuple[Verdict, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    fitting: tuple[str, ...] = ()
    obstacle: Problem | None = None
    upgradable: tuple[str, ...] = field(default=(), kw_only=True)
    opt_in: tuple[str, ...] = field(default=(), kw_only=True)
    not_installed: Mapping[str, tuple[str, ...]] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Changed(Result):
    """What `apply` or `revert` did.

    Attributes:
        changed: the files written, added or removed, relative to `tree`.
        added: those of them that did not exist before.
        removed: those of them that no longer exist.
        affected: ids of the overlays that the run applied, upgraded or reverted.
        upgraded: those of them of which the run replaced another version.
    """

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    affected: tuple[str, ...] = ()
    upgraded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diff(Result):
    """What `apply` would do; `files` has, by path, the bytes before and after (None: no such file)."""

    files: Mapping[str, tuple[bytes | None, bytes | None]] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The unified diff, as lines without newline; bytes that are not UTF-8 are surrogate escapes."""
        return [line for file, (old, new) in self.files.items() for line in unified(file, old, new)]


class Refused(Failure):
    """A verb that found problems; `result` is what it would have returned."""

    def __init__(self, result: Result) -> None:
        super().__init__(*result.problems)
        self.result = result


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
    others = [item for item in installed if item not in chosen] if selection.only is None else []
    engine = Engine([*chosen, *others])
    verdicts = engine.status(seen.read, chosen)
    store = _store(found)
    upgrade = _upgrade(store, installed, chosen, verdicts)
    verdicts = upgrade.changeset.before if upgrade else verdicts
    problems = [problem for verdict in verdicts for problem in verdict.problems]
    problems += upgrade.problems if upgrade else []
    problems += inapplicable(verdicts, selection.named, found.root)
    problems += [obstacle] if (obstacle := changing.obstacle(seen, verdicts)) else []
    fitting = upgrade.fitting if upgrade else engine.fitting(seen.read, verdicts)
    opt_in = tuple(item.id for item in others if _pending(engine, seen.read, item))
    about = (found.root, found.version, verdicts, tuple(problems))
    gone = not_installed(store, installed)
    notes = tuple(map(str, leftovers(found)))
    done = Result(*about, notes, fitting=fitting, obstacle=obstacle, opt_in=opt_in, not_installed=gone)
    return replace(done, upgradable=upgrade.overlays if upgrade else ())


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
    engine = Engine(chosen)
    changeset = engine.plan(seen.read)
    store = _store(found)
    upgrade = _upgrade(store, installed, chosen, changeset.before)
    changeset = upgrade.changeset if upgrade else changeset
    wanted = {**store.originals, **changeset.files} if store and upgrade else changeset.files
    files = {file: (old, new) for file, new in sorted(wanted.items()) if (old := seen.read(file)) != new}
    problems = [*changeset.problems, *inapplicable(changeset.before, selection.named, found.root)]
    problems += [obstacle] if (obstacle := changing.obstacle(seen, changeset.before)) else []
    notes = (*notes_of(chosen, changeset.before), *map(str, leftovers(found)))
    fitting = upgrade.fitting if upgrade else engine.fitting(seen.read, changeset.before)
    about = (found.root, found.version, changeset.before, tuple(problems), notes, fitting, obstacle)
    return _checked(Diff(*about, files, upgradable=upgrade.overlays if upgrade else ()))


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
    engine = Engine(chosen)
    changeset, writes = changing.apply(writable, chosen, engine, installed)
    changed = writes.changed
    problems = (*changeset.problems, *inapplicable(changeset.after, selection.named, root))
    left = map(str, leftovers(writable.tree))
    notes = (*notes_of(chosen, changeset.after), *changing.notes_on_edits(writes, writable.tree), *left)
    added = tuple(file for file in changed if file in absent)
    states = zip(changeset.before, changeset.after, strict=True)
    affected = {after.id for before, after in states if before.state is not after.state} | {*writes.upgraded}
    about = (root, writable.tree.version, changeset.after, problems, notes)
    upgrade = _upgrade(writable, installed, chosen, changeset.before) if changeset.problems else None
    fitting = upgrade.fitting if upgrade else engine.fitting(writable.tree.read, changeset.before)
    done = Changed(*about, fitting, changed=changed, added=added, affected=tuple(sorted(affected)))
    return _checked(replace(done, upgraded=writes.upgraded))


def revert(tree: TreeLike = None, overlays: Ids = None) -> Changed:
    """Put the pristine bytes back; with `overlays`, remove only these and leave the others applied.

    Without `overlays`, it also removes what was kept of a vLLM that is no longer installed, see `tree.upgrade`.
    It changes nothing if no such overlay is applied. Without `overlays`, it works even if some do not load.

    Raises:
        Failure: as `apply`; or a file that has to change was edited after vpatch.
    """
    writable, selection = open_tree(tree), Selection.of(overlays)
    found, broken = loadable() if overlays is None else (discover(), ())
    root, installed = writable.tree.root, known_in(writable.tree, writable.tree.read, found)
    going = installed if overlays is None else selection.among(installed)
    left = remove_leftovers(writable.tree) if overlays is None else ()
    seen = Reads(writable.tree)
    gone = not_installed(writable, installed) if overlays is None else {}
    affected = tuple(sorted((*(item.id for item in going if has_mark(item, seen.read)), *gone)))
    writes = changing.revert(writable, installed, None if overlays is None else going)
    changed = tuple(sorted({*writes.changed, *left}))
    removed = tuple(file for file in changed if not (root / file).exists())
    absent = [item.id for item in going if item.id not in affected] if overlays is not None else []
    notes = (
        *map(str, broken),
        *(f"{name}: not applied, so there was nothing to revert" for name in absent),
        *changing.notes_on_edits(writes, writable.tree),
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
    problems = [*seen.problems, *leftovers(found)]
    problems += upgrade.problems if (upgrade := _upgrade(store, installed, chosen, seen.verdicts)) else []
    problems += (replace(unknown, cause=f"{name} is applied, and its package is not installed here") for name in asked)
    with suppress(Failure):  # `check` has reported an unreadable provenance
        if not is_checkout(found):
            problems += changing.unknown_marks(found.read, installed, backup.originals(found))
    about = (found.root, found.version, seen.verdicts, tuple(problems), seen.notes)
    return _checked(Result(*about, not_installed=gone))


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
