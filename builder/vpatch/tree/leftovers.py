"""What vpatch kept of a vLLM that is gone: a package manager that does not read RECORD, as conda, apt and rpm, left it.

The folder `vllm-OLD.dist-info` has no METADATA, so `importlib.metadata` may find no version of vLLM at all.
"""

from __future__ import annotations

from vpatch.core.overlay import COMPANIONS
from vpatch.errors import Problem, naming
from vpatch.manifest import sha256
from vpatch.tree import backup, bytecode, guard
from vpatch.tree.backup import is_companion
from vpatch.tree.disk import Folders
from vpatch.tree.locate import Tree


def problems(tree: Tree) -> list[Problem]:
    """Report each folder, and how to remove it."""
    do = "`vpatch revert` removes it" if tree.dist_info else "reinstall vLLM; `vpatch revert` then removes it"
    cause = (
        f"an earlier vLLM's package manager left it, with what vpatch kept; Python may find no version of vllm; {do}"
    )
    return [Problem("left over", name, cause) for name in tree.leftovers]


def remove(tree: Tree) -> tuple[str, ...]:
    """Remove the folders, and the companions that nobody edited since; return the paths of what is gone.

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
            if not all(map(is_companion, ours)):
                continue
            with naming("cannot remove", name):
                for file in ours:
                    folders.remove_bytecode(bytecode.twins(folders.root / file))
                    folders.remove(file)
                folders.prune(COMPANIONS.rstrip("/"))
                folders.remove(f"{name}/vpatch")
                folders.prune(name)
            gone += [*ours, *([] if (tree.root / name).exists() else [name])]
    return tuple(sorted(gone))
