"""Symlinks that a writer must not follow or replace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpatch.errors import Failure, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vpatch.tree.tree import Site


def check(site: Site, paths: Iterable[str]) -> None:
    """Look at every file that is to be written or removed, `paths` relative to the site's root.

    Raises:
        Failure: some are symlinks, or lie in a folder that is a symlink out of the tree; all are named.
    """
    found = [problem for path in paths if (problem := _problem(site, path))]
    if found:
        raise Failure(*found)


def _problem(site: Site, path: str) -> Problem | None:
    target = site.root / path
    folder = target.parent.resolve()
    if not folder.is_relative_to(site.root):
        return Problem("symlinked folder", path, f"it leads out of the tree, to {folder}")
    if target.is_symlink():
        return Problem("symlink", path, f"it stands for {target.resolve()}, which vpatch would not change")
    return None
