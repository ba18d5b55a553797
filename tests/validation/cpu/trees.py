"""Patched trees in `.cache/patched`, so that their bytecode is found again."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.tree.apply import apply
from vpatch.tree.locate import locate
from vpatch.tree.write_plan import SitePackages

from tests.overlays.deepgemm import add_sources
from tests.paths import CACHE, link
from tests.releases import tree_of
from tests.validation.cpu.environment import BYTECODE, interpreter, probe


@cache
def patched_tree(version: str, *overlays: str, pristine: Path | None = None) -> Path:
    """Return a release with overlays, by default all that are default ones. Do not modify it.

    Its name has a hash of all that overlays change. Files that they leave alone are hard links, of `pristine` if given.
    """
    pristine, chosen = pristine or tree_of(version), select(discover(), overlays or None)
    changeset = Engine(chosen).plan(locate(pristine).read)
    assert not changeset.problems
    assert changeset.files

    def patch(made: Path) -> None:
        written, _ = apply(SitePackages(locate(made)), chosen)
        assert written.files == changeset.files

    return _made(
        version, (pristine.name, sorted(changeset.files.items()), [item.id for item in chosen]), pristine, patch
    )


@cache
def with_sources(version: str, names: tuple[str, ...]) -> Path:
    """Return a release with empty sources of these names beside DeepGEMM. Do not modify it."""
    return _made(version, names, tree_of(version), lambda made: add_sources(made, names))


def _made(version: str, what: object, model: Path, change: Callable[[Path], object]) -> Path:
    """Return a copy of a tree that was changed; `what` identifies the change."""
    key = hashlib.sha256(repr(what).encode()).hexdigest()
    tree = CACHE / "patched" / f"{version}-{key[:16]}"
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tree.with_name(f".{tree.name}.lock").open("w") as lock, TemporaryDirectory(dir=tree.parent) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            made = shutil.copytree(model, Path(folder, "tree"), copy_function=link)
            change(made)
            _share_bytecode(version, tree_of(version), made, tree)
            made.rename(tree)
    return tree


def _share_bytecode(version: str, pristine: Path, made: Path, tree: Path) -> None:
    """Import the pristine release, then link its bytecode for the same files of the patched one."""
    with TemporaryDirectory() as home:
        probe(interpreter(version), "nothing", pristine, Path(home))
    compiled = BYTECODE.joinpath(*pristine.parts[1:])
    for file in compiled.rglob("*.pyc"):
        source = file.relative_to(compiled).with_name(f"{file.name.partition('.')[0]}.py")
        target = BYTECODE.joinpath(*tree.parts[1:]) / file.relative_to(compiled)
        if (made / source).exists() and (made / source).samefile(pristine / source) and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            link(str(file), str(target))
