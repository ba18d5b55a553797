"""Carry a plan out in two phases: stage every new file beside its target, then rename them one by one.

Wherever it is killed, every file is whole, old or new. What it was at is noted first, and the note goes last, so that
the next run knows whose the new files are, and that there are staged ones to sweep up; what to do it decides anew.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem
from vpatch.model import COMPANIONS
from vpatch.site import bytecode, disk, kept, listing
from vpatch.site.disk import naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from vpatch.site.model import Site
    from vpatch.site.plan import Plan

_NOTE = "under-way.json"
_LATER = "; the next run completes what this one began"


def carry_out(site: Site, plan: Plan) -> None:
    """Bring `site` to where `plan` wants it.

    Raises:
        Failure: the system refuses. If it did so while files were staged, the tree is as it was.
    """
    with naming("cannot remove stale bytecode", f"{site.root}"):
        disk.remove_files(plan.bytecode)
    if not replace(plan, bytecode=()).work:
        return
    folder, record = kept.folder(site), listing.path_of(site)
    originals = {f"{folder}/originals/{path}": content for path, content in plan.originals.items()}
    # Companions come first: a changed module must never look for one that is not there yet.
    companions = {path: content for path, content in plan.files.items() if kept.is_companion(path)}
    modules = {path: content for path, content in plan.files.items() if path not in companions}
    last = {f"{folder}/provenance.json": plan.provenance, record: plan.record}
    lists = {path: content for path, content in last.items() if content is not None}

    with _staged(site, plan, {**originals, **companions, **modules, **lists}):
        for group in (originals, companions, modules):
            _put(site, group)
        for path in plan.removed:
            with naming("cannot remove", path, _LATER):
                (site.root / path).unlink(missing_ok=True)
        _sync(site, plan.removed)
        # Once more: an import may have compiled the old source meanwhile.
        _remove_bytecode(site, [*plan.files, *plan.removed], _LATER)
        _put(site, lists)
        with naming("cannot tidy up", folder, _LATER):
            _end(site, plan)


@contextmanager
def _staged(site: Site, plan: Plan, content: Mapping[str, bytes]) -> Iterator[None]:
    """Stage `content` for the time of the block. If that fails, the tree is as it was."""
    note = site.root / kept.folder(site) / _NOTE
    targets, folders = [note], list[Path]()
    begun = False
    try:
        with naming("cannot write", kept.folder(site)):
            _begin(site, plan, folders)
        _stage(site, content, targets, folders)
        # Before the sources change, so that a kill in between cannot leave old code to run.
        _remove_bytecode(site, [*plan.files, *plan.removed])
        begun = True
        yield
    except BaseException:
        disk.discard([disk.staged(target) for target in targets])
        if not begun:
            # The note of a killed run stays, until what that run left is tidied up.
            disk.discard([] if plan.unclean else [note], folders)
        raise


def _begin(site: Site, plan: Plan, folders: list[Path]) -> None:
    base = site.root / kept.folder(site)
    if plan.unclean:
        disk.sweep(site.root / "vllm")
        disk.sweep(base.parent)
    disk.make_folder(base, base.parent, folders)
    disk.stage(base / _NOTE, plan.under_way, site.root / listing.path_of(site))
    disk.put(base / _NOTE)
    disk.sync(base)
    disk.sync(base.parent)


def _stage(site: Site, content: Mapping[str, bytes], targets: list[Path], folders: list[Path]) -> None:
    record = site.root / listing.path_of(site)
    problems: list[Problem] = []
    for path, new in content.items():
        target = site.root / path
        try:
            with naming("cannot write", path):
                disk.make_folder(target.parent, record.parent, folders)
                targets.append(target)
                disk.stage(target, new, target if target.exists() else record)
        except Failure as failure:
            problems += failure.problems
    if problems:
        raise Failure(*problems)
    for folder in folders:
        with naming("cannot write", folder.relative_to(site.root).as_posix()):
            disk.sync(folder.parent)


def _put(site: Site, paths: Iterable[str]) -> None:
    for path in paths:
        with naming("cannot write", path, _LATER):
            disk.put(site.root / path)
    _sync(site, paths)


def _sync(site: Site, paths: Iterable[str]) -> None:
    for folder in sorted({(site.root / path).parent for path in paths}):
        with naming("cannot write", folder.relative_to(site.root).as_posix(), _LATER):
            disk.sync(folder)


def _remove_bytecode(site: Site, paths: Iterable[str], more: str = "") -> None:
    for path in paths:
        with naming("cannot remove bytecode of", path, more):
            disk.remove_files(bytecode.twins(site.root / path))


def _end(site: Site, plan: Plan) -> None:
    base = site.root / kept.folder(site)
    companions = site.root / COMPANIONS
    if all(name.endswith(".pyc") for _, _, names in os.walk(companions) for name in names):
        disk.remove_tree(companions)
    if plan.ends:
        disk.remove_tree(base)
    else:
        for path in plan.dropped:
            (base / "originals" / path).unlink(missing_ok=True)
        disk.prune(base / "originals")
        for stray in base.iterdir():
            if stray.name not in kept.NAMES:
                disk.remove_tree(stray) if stray.is_dir() else stray.unlink()
        disk.sync(base)
    disk.sync(base.parent)
