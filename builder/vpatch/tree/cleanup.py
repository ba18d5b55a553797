"""What a run removes last: what was kept for files that are as they were, and folders that nothing is left in."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Problem, cause
from vpatch.tree import backup, disk, precheck

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from vpatch.tree.folders import Folders
    from vpatch.tree.tree import Site
    from vpatch.tree.write_plan import Plan

_COMPANIONS = COMPANIONS.rstrip("/")


def leavings(site: Site, plan: Plan, tree: Folders) -> list[str]:
    """Return, before anything is changed, the files and folders that `tidy_up` will remove.

    Raises:
        OSError: a folder cannot be read.
    """
    base = backup.folder(site)
    companions = [_COMPANIONS] if _no_companion_stays(tree, plan, plan.removed) else []
    if plan.ends:
        return [*companions, base]
    top = f"{base}/originals"
    dropped = [f"{top}/{path}" for path in plan.dropped]
    folders = emptied(tree, top, dropped, [f"{top}/{path}" for path in plan.originals])
    strays = (f"{base}/{name}" for name in sorted(disk.names(tree, base) - backup.NAMES))
    return [*companions, *dropped, *folders, *strays]


def tidy_up(site: Site, plan: Plan, tree: Folders) -> None:
    """Remove what nothing needs after `plan` was carried out.

    Raises:
        OSError: the system refuses.
    """
    base = backup.folder(site)
    if _no_companion_stays(tree, plan):
        disk.remove(tree, _COMPANIONS)
    if plan.ends:
        disk.remove(tree, base)
    else:
        for path in plan.dropped:
            disk.remove(tree, f"{base}/originals/{path}")
        disk.prune(tree, f"{base}/originals")
        for stray in sorted(disk.names(tree, base) - backup.NAMES):
            disk.remove(tree, f"{base}/{stray}")
        disk.sync(tree, base)
    disk.sync(tree, site.dist_info or "")


def _no_companion_stays(tree: Folders, plan: Plan, removed: Collection[str] = ()) -> bool:
    """Whether the folder of companions will hold nothing but bytecode; a link to a folder is a user's."""
    if any(map(backup.is_companion, plan.files)):
        return False
    try:
        return all(
            name.endswith(".pyc") or f"vllm/{where}/{name}" in removed if name in files else disk.is_folder(name, at)
            for where, folders, files, at in tree.walk(_COMPANIONS)
            for name in (*files, *folders)
        )
    except FileNotFoundError:
        return False


def emptied(tree: Folders, top: str, gone: Collection[str], new: Collection[str]) -> list[str]:
    """Return the folders in and at `top` that will be empty, innermost first, once `gone` went and `new` came.

    Raises:
        OSError: a folder cannot be read.
    """
    left, found = set(gone), []
    with suppress(FileNotFoundError):
        for where, folders, files, _ in tree.walk(top, topdown=False):
            here = (PurePosixPath(top).parent / where).as_posix()
            stays = any(path.startswith(f"{here}/") for path in new)
            if not stays and all(f"{here}/{name}" in left for name in (*files, *folders)):
                left.add(here)
                found.append(here)
    return found


def refused(tree: Folders, paths: Iterable[str]) -> list[Problem]:
    """Return why files, and folders with all that is in them, cannot be removed."""
    problems = []
    for path in paths:
        try:
            precheck.check_tree(tree, path)
        except OSError as error:
            problems.append(Problem("cannot remove", str(error.filename or path), cause(error)))
    return problems
