"""Carry a plan out in two phases: stage every new file beside its target, then rename them one by one.

Wherever it is killed, every file is whole, old or new. What it was at is noted first, and the note goes last, so that
the next run knows whose the new files are, and that there are staged ones to sweep up; what to do it decides anew.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem, naming
from vpatch.tree import backup, bytecode, cleanup, disk, precheck, record_revision
from vpatch.tree.folders import Folders

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vpatch.tree.tree import Site
    from vpatch.tree.write_plan import Plan

_NOTE = "under-way.json"
_LATER = "; the next run completes what this one began"


def carry_out(site: Site, plan: Plan) -> None:
    """Bring `site` to where `plan` wants it.

    Raises:
        Failure: the system refuses. If it did so while files were staged, the tree is as it was.
    """
    with Folders(site.root) as tree:
        with naming("cannot remove stale bytecode", f"{site.root}"):
            disk.remove_files(tree, (twin.relative_to(site.root).as_posix() for twin in plan.bytecode))
        if replace(plan, bytecode=()).work:
            _change(site, plan, tree)


def _change(site: Site, plan: Plan, tree: Folders) -> None:
    folder, record = backup.folder(site), record_revision.path_of(site)
    originals = {f"{folder}/originals/{path}": content for path, content in plan.originals.items()}
    # Companions come first: a changed module must never look for one that is not there yet.
    companions = {path: content for path, content in plan.files.items() if backup.is_companion(path)}
    modules = {path: content for path, content in plan.files.items() if path not in companions}
    last = {f"{folder}/provenance.json": plan.provenance, record: plan.record}
    lists = {path: content for path, content in last.items() if content is not None}

    with _staged(site, plan, tree, ({**companions, **modules, **lists}, originals)):
        for group in (originals, companions, modules):
            _put(tree, group)
        for path in plan.removed:
            with naming("cannot remove", path, _LATER):
                disk.remove(tree, path)
        _sync(tree, plan.removed)
        # Once more: an import may have compiled the old source meanwhile.
        _remove_bytecode(tree, [*plan.files, *plan.removed], _LATER)
        _put(tree, lists)
        with naming("cannot tidy up", folder, _LATER):
            cleanup.tidy_up(site, plan, tree)


@contextmanager
def _staged(site: Site, plan: Plan, tree: Folders, groups: Sequence[Mapping[str, bytes]]) -> Iterator[None]:
    """Stage the files in `groups` for the time of the block. If that fails, the tree is as it was."""
    note = f"{backup.folder(site)}/{_NOTE}"
    targets, folders = [note], list[str]()
    begun = False
    try:
        with naming("cannot write", backup.folder(site)):
            _begin(site, plan, tree, folders)
        _check_removals(site, plan, tree)
        # The originals come last: whatever stands in the way of one stands in the way of its module.
        for content in groups:
            _stage(site, plan, tree, content, targets, folders)
        # Before the sources change, so that a kill in between cannot leave old code to run.
        _remove_bytecode(tree, [*plan.files, *plan.removed])
        begun = True
        yield
    except BaseException:
        disk.discard(tree, map(disk.waiting, targets))
        if not begun:
            # The note of a killed run stays, until what that run left is tidied up.
            disk.discard(tree, [] if plan.unclean else [note], folders)
        raise


def _begin(site: Site, plan: Plan, tree: Folders, folders: list[str]) -> None:
    base, above = backup.folder(site), site.dist_info or ""
    if plan.unclean:
        disk.sweep(tree, "vllm")
        disk.sweep(tree, above)
    disk.make_folder(tree, base, above, folders)
    disk.stage(tree, f"{base}/{_NOTE}", plan.under_way, (record_revision.path_of(site),))
    disk.put(tree, f"{base}/{_NOTE}")
    disk.sync(tree, base)
    disk.sync(tree, above)


def _stage(
    site: Site, plan: Plan, tree: Folders, content: Mapping[str, bytes], targets: list[str], folders: list[str]
) -> None:
    problems: list[Problem] = []
    for path, new in content.items():
        with _collecting(problems), naming("cannot write", path):
            disk.make_folder(tree, _parent(path), site.dist_info or "", folders)
            precheck.check(tree, path, plan.now)
            targets.append(path)
            disk.stage(tree, path, new, _models(site, path))
    if problems:
        raise Failure(*problems)
    for folder in folders:
        with naming("cannot write", folder):
            disk.sync(tree, _parent(folder))


@contextmanager
def _collecting(problems: list[Problem]) -> Iterator[None]:
    try:
        yield
    except Failure as failure:
        problems += failure.problems


def _check_removals(site: Site, plan: Plan, tree: Folders) -> None:
    problems: list[Problem] = []
    for path in plan.removed:
        with _collecting(problems), naming("cannot remove", path):
            precheck.check(tree, path, plan.now)
    with _collecting(problems), naming("cannot tidy up", backup.folder(site)):
        problems += cleanup.refused(tree, cleanup.leavings(site, plan, tree))
    if problems:
        raise Failure(*dict.fromkeys(problems))


def _models(site: Site, path: str) -> tuple[str, ...]:
    """Return the files, best first, whose owner and mode a new file should have."""
    originals = f"{backup.folder(site)}/originals/"
    # An original is as private as its module, and a module that was deleted comes back as private as its original.
    twin = path.removeprefix(originals) if path.startswith(originals) else originals + path
    return (twin, record_revision.path_of(site))


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _put(tree: Folders, paths: Iterable[str]) -> None:
    for path in paths:
        with naming("cannot write", path, _LATER):
            disk.put(tree, path)
    _sync(tree, paths)


def _sync(tree: Folders, paths: Iterable[str]) -> None:
    for folder in sorted({_parent(path) for path in paths}):
        with naming("cannot write", folder, _LATER):
            disk.sync(tree, folder)


def _remove_bytecode(tree: Folders, paths: Iterable[str], more: str = "") -> None:
    for path in paths:
        with naming("cannot remove bytecode of", path, more):
            twins = bytecode.twins(tree.root / path)
            disk.remove_files(tree, (twin.relative_to(tree.root).as_posix() for twin in twins))
