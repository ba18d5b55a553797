"""Edits of others that `revert --force` undoes: shown first, and kept as a diff that brings them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vpatch import api
from vpatch.cli.output import tell_diff
from vpatch.cli.target import Target
from vpatch.cli.wording import options
from vpatch.core.catalogue import discover, loadable
from vpatch.core.engine import Engine
from vpatch.core.patch_file import SUFFIX
from vpatch.core.verdict import State
from vpatch.errors import naming, shell
from vpatch.settings import rfc3339, state_folder
from vpatch.tree import backup
from vpatch.tree.locate import Tree
from vpatch.tree.standing import compared
from vpatch.wrapping import from_here


def show(target: Target, tree: Tree, *, keep: bool) -> str:
    """Print what others edited in a tree after vpatch, and keep it; return a note on where it is, "" without edits.

    Args:
        target: names the overlays that are reverted. Edits of files that their revert leaves alone stay.
        tree: the vLLM.
        keep: whether to keep them.

    Raises:
        Failure: the tree cannot be read, or the copy cannot be written.
    """
    store, overlays = api.open_tree(tree), target.selection.only
    found = compared(store.tree, store, loadable()[0])
    if overlays is not None and found.edited:
        going = api.revert(tree, overlays, dry_run=True, force=True).changed
        found = replace(found, edited={file: pair for file, pair in found.edited.items() if file in going})
    if not (lines := found.edits):
        return ""
    tell_diff(lines)
    if not keep:
        return "these edits would be discarded, and kept as a diff"
    name = f"vllm-{tree.version or 'checkout'}-{rfc3339().replace(':', '')}.diff"
    file = state_folder() / "discarded" / name
    with naming("cannot write", str(file)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines), "utf-8", "surrogateescape")
    apply = target.command("apply", *_as_applied(target, tree, sorted(found.applied), file.with_suffix("")))
    again = shell("patch", "-p1", "-d", from_here(tree.root), "-i", file)
    return f"the edits above are kept in {file}; after {apply}, {again} brings them back"


def _as_applied(target: Target, tree: Tree, applied: Sequence[str], folder: Path) -> list[str]:
    """Return the options that apply what is reverted; patch files that are not at hand are written to `folder`."""
    here = discover()
    lost = {name: data for name, data in backup.read(tree).patches.items() if name not in {item.id for item in here}}
    with naming("cannot write", str(folder)):
        for name, data in lost.items():
            folder.mkdir(exist_ok=True)
            (folder / f"{name}{SUFFIX}").write_bytes(data)
    sources = options("--patches", [str(folder)] * bool(lost))
    if target.selection.only is not None:
        return [*sources, *options("--overlay", (name for name in applied if name in target.selection.only))]
    usual = target.selection.among(here)
    states = {one.id: one.state for one in Engine(usual).status(tree.read) if one.id not in applied}
    if not {*states.values()} <= {State.MERGED, State.NOT_APPLICABLE}:
        return [*sources, *options("--overlay", applied)]
    return [*sources, *options("--with", (name for name in applied if name not in {item.id for item in usual}))]
