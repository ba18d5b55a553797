"""What earlier runs left in a tree: overlays of another version, to be upgraded, and folders of a vLLM that is gone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in
from vpatch.core.overlay import COMPANIONS, Catalogued
from vpatch.core.verdict import MISFITS, Changeset, State, Verdict
from vpatch.errors import Code, Failure, Problem, naming
from vpatch.manifest import sha256
from vpatch.tree import backup, bytecode, guard
from vpatch.tree.disk import Folders
from vpatch.tree.locate import Tree

_OUTDATED = "another version of it is applied; `vpatch apply` upgrades it"
_AGAIN = "`vpatch apply` writes it again"
_MISSING = f"a file that it changed is missing; {_AGAIN}"


class Seen(Protocol):
    """What is asked of a tree: see `vpatch.tree.apply.Snapshot`."""

    @property
    def originals(self) -> Mapping[str, bytes | None]:
        """The pristine bytes of every file that vpatch changed; None for a file that it added."""

    @property
    def unrecognized(self) -> Collection[str]:
        """The files that vpatch changed, and whose bytes are neither pristine nor known to be its own."""

    def read(self, path: str) -> bytes | None:
        """Read a file; return None if it does not exist."""


@dataclass(frozen=True)
class Upgrade:
    """What replaces overlays that another version of their package applied, or that changed since.

    Attributes:
        overlays: their ids.
        changeset: computed from the pristine bytes. The verdicts `before` are on the tree as it is; of these overlays,
            they have no problems. If others do not fit, it has their problems, and changes nothing.
        fitting: if others do not fit, the ids of those that can be applied or upgraded without them.
        missing: the modules that vpatch changed, and that are gone: they make overlays look outdated.
    """

    overlays: tuple[str, ...]
    changeset: Changeset
    fitting: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def replaced(self) -> tuple[str, ...]:
        """The ids of those of which another version is in the tree, as far as it can be told with all files there."""
        return () if self.missing else self.overlays

    @property
    def problems(self) -> list[Problem]:
        """That they wait to be upgraded, or files to be written again."""
        if self.missing:
            gone = Problem("missing file", "", "vpatch had changed it", "", Code.FILE_MISSING, _AGAIN)
            return [replace(gone, where=file) for file in self.missing]
        return [Problem("outdated", name, _OUTDATED) for name in self.overlays]

    def explained(self, problems: Sequence[Problem], verdicts: Sequence[Verdict]) -> list[Problem]:
        """Return problems; those of verdicts on overlays that are outdated, or have a new mistake, as it has them."""
        gone, more = set[Problem](), list[Problem]()
        for old, new in zip(verdicts, self.changeset.before, strict=True):
            if old.problems and {*old.problems} <= {*problems}:
                gone.update(old.problems)
                more += new.problems
        return [*(one for one in problems if one not in gone and one.where not in self.missing), *more]


def upgrade_of(seen: Seen, engine: Engine, overlays: Sequence[Catalogued], before: Sequence[Verdict]) -> Upgrade | None:
    """Plan from the pristine bytes what another version of an overlay wrote, as if it were applied for the first time.

    There is no upgrade unless vpatch wrote every byte of the files that it changed, as what it keeps beside the tree
    shows, and every overlay that is in them can be applied. If one of those to be replaced cannot, such as a patch file
    with a new mistake, nothing changes, and the verdict says why.

    Args:
        seen: the tree.
        engine: one that has every overlay that may be in the tree.
        overlays: those to apply, besides whatever is in the tree.
        before: their verdicts on the tree.
    """
    known = {item.id: item for item in engine.overlays}
    here = marks(seen)
    others = _of_another_version(here, known, before)
    if not others or not here.keys() <= known.keys() or seen.unrecognized:
        return None
    wanted = here.keys() | {item.id for item in overlays}
    found = engine.plan(partial(pristine, seen), [known[name] for name in sorted(wanted)])
    missing = tuple(file for file, old in sorted(seen.originals.items()) if old is not None and seen.read(file) is None)
    verdicts = _excused(before, found.before, others, _MISSING if missing else _OUTDATED)
    if not found.problems:
        after = {verdict.id: verdict for verdict in found.after}
        changeset = replace(found, before=verdicts, after=tuple(after[verdict.id] for verdict in before))
        return Upgrade(others, changeset, missing=missing)
    wrong = {verdict.id for verdict in found.before if verdict.problems}
    rest = [known[name] for name in sorted(wanted - wrong)]
    if wrong & {*others}:
        return _refused(seen, engine, _excused(before, found.before, {*others} - wrong))
    if wrong & here.keys() or engine.plan(partial(pristine, seen), rest).problems:
        return None
    fitting = {*others, *(verdict.id for verdict in verdicts if verdict.state is State.PENDING)}
    return Upgrade(others, Changeset(verdicts, verdicts, {}, found.problems), tuple(sorted(fitting)))


def _of_another_version(
    here: Mapping[str, Collection[str]], known: Mapping[str, Catalogued], before: Sequence[Verdict]
) -> tuple[str, ...]:
    """Return those that do not fit although they are there, or are in other files than this version changes."""
    judged = {verdict.id: verdict.state for verdict in before if verdict.id in here}
    return tuple(
        sorted(
            name
            for name, state in judged.items()
            if state in MISFITS or not {*here[name]} <= {*known[name].overlay.files}
        )
    )


def _refused(seen: Seen, engine: Engine, verdicts: tuple[Verdict, ...]) -> Upgrade:
    problems = tuple(dict.fromkeys(problem for verdict in verdicts for problem in verdict.problems))
    return Upgrade((), Changeset(verdicts, verdicts, {}, problems), engine.fitting(seen.read, verdicts))


def _excused(
    before: Sequence[Verdict], on_pristine: Sequence[Verdict], others: Collection[str], because: str = _OUTDATED
) -> tuple[Verdict, ...]:
    """Return the verdicts without what `others` alone are to blame for, and `because` of what."""

    def outdated(verdict: Verdict) -> Verdict:
        return replace(verdict, parts=tuple(replace(p, because=because, problems=()) for p in verdict.parts))

    new = {verdict.id: verdict for verdict in on_pristine}
    new |= {verdict.id: outdated(verdict) for verdict in before if verdict.id in others}
    return tuple(new[verdict.id] if verdict.state in MISFITS else verdict for verdict in before)


def marks(seen: Seen) -> Mapping[str, tuple[str, ...]]:
    """Return the ids of the overlays whose marks are in files that vpatch changed, each with these files, sorted."""
    found: dict[str, list[str]] = {}
    for file in sorted(seen.originals):
        for name in dict.fromkeys(marks_in(seen.read(file) or b"")):
            found.setdefault(name, []).append(file)
    return {name: tuple(files) for name, files in found.items()}


def not_installed(seen: Seen | None, installed: Sequence[Catalogued]) -> Mapping[str, tuple[str, ...]]:
    """Return the overlays that are applied and that no package here has, each with its files.

    None are if what vpatch keeps of the tree is unreadable, or if there is no tree: `verify` and `revert` report it.
    """
    try:
        applied = marks(seen) if seen else {}
    except Failure:
        return {}
    return {name: files for name, files in applied.items() if name not in {item.id for item in installed}}


def pristine(seen: Seen, file: str) -> bytes | None:
    """Return the bytes of a file from before vpatch."""
    originals = seen.originals
    return originals[file] if file in originals else seen.read(file)


def leftovers(tree: Tree) -> list[Problem]:
    """Report each folder that is left of a vLLM that is gone, and how to remove it.

    A package manager that does not read RECORD, as conda, apt and rpm, left it because of what vpatch kept there. The
    folder `vllm-OLD.dist-info` has no METADATA, so `importlib.metadata` may find no version of vLLM at all.
    """
    do = "`vpatch revert` removes it" if tree.dist_info else "reinstall vLLM; `vpatch revert` then removes it"
    cause = (
        f"an earlier vLLM's package manager left it, with what vpatch kept; Python may find no version of vllm; {do}"
    )
    return [Problem("left over", name, cause) for name in tree.leftovers]


def remove_leftovers(tree: Tree) -> tuple[str, ...]:
    """Remove these folders, and the files that vpatch added and nobody edited since; return the paths of what is gone.

    Without an installation, or if a module of the vLLM that is gone is still there, nothing is removed: the originals
    may be the only ones. Files that vpatch did not write stay.

    Raises:
        Failure: something cannot be read or removed.
    """
    if not tree.dist_info or not tree.leftovers:
        return ()
    gone: list[str] = []
    with guard.lock(tree), Folders(tree.root) as folders:
        now = backup.read(tree)
        for name in tree.leftovers:
            kept = backup.read(Tree(tree.root, name, None))
            there = {path: data for path in sorted(kept.paths - now.paths) if (data := tree.read(path)) is not None}
            ours = [path for path, data in there.items() if sha256(data) in kept.hashes(path)]
            if not kept.added.issuperset(ours):
                continue
            with naming("cannot remove", name):
                for file in ours:
                    folders.remove_bytecode(bytecode.twins(folders.root / file))
                    folders.remove(file)
                for folder in (COMPANIONS.rstrip("/"), *sorted(kept.folders)):
                    folders.prune(folder)
                folders.remove(f"{name}/vpatch")
                folders.prune(name)
            gone += [*ours, *([] if (tree.root / name).exists() else [name])]
    return tuple(sorted(gone))
