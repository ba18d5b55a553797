"""Find the vLLM of the current environment: what a command works on if the user names no tree."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from vpatch.errors import Failure, Problem
from vpatch.tree.locate import Tree, import_root, tree_at


@dataclass(frozen=True)
class Environment:
    """A Python environment that may have a vLLM."""

    name: str  # how users know it
    folder: Path  # its `sys.prefix`
    python: Path
    active: bool = False  # whether the user's shell has activated it


@dataclass(frozen=True)
class Located:
    """A vLLM, and how it was found.

    Attributes:
        tree: the vLLM.
        environment: the one that has it; None if the user named the vLLM.
        others: the other environments with a vLLM, which the user may have meant.
        passed_over: why active environments that were searched before were not taken.
    """

    tree: Tree
    environment: Environment | None = None
    others: tuple[Environment, ...] = ()
    passed_over: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        """What it was found by, "" if the user named it."""
        return self.environment.name if self.environment else ""


def environments() -> list[Environment]:
    """List the environments to search, the preferred one first; each once.

    The interpreter that runs vpatch comes first: it is the one whose `vpatch` the user called. If vpatch is installed
    apart from vLLM (`uv tool`, `pipx`), the active environment is meant, and then the project's.
    """
    active = {name: Path(value) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if (value := os.environ.get(name))}
    activated = {folder.resolve() for folder in active.values()}
    own = Path(sys.prefix)
    found = [Environment("the interpreter that runs vpatch", own, Path(sys.executable), own.resolve() in activated)]
    project = {"./.venv": Path(".venv")} if Path(".venv").is_dir() else {}
    for name, folder in (active | project).items():
        if all(folder.resolve() != other.folder.resolve() for other in found):
            found.append(Environment(name, folder, folder / "bin" / "python", name in active))
    return found


def current() -> Located:
    """Find the vLLM of the first environment that has one.

    Raises:
        Failure: none has; the cause names each and why.
    """
    found: dict[Path, Environment] = {}
    lacking: list[str] = []
    passed_over: list[str] = []
    for environment in environments():
        why = " has none"
        try:
            root = import_root(environment.python)
        except Failure as failure:
            root, why = None, f": {failure.problems[0].cause}"
        if root is not None:
            found.setdefault(root, environment)
            continue
        lacking.append(f"{environment.name} ({environment.python}){why}")
        if environment.active and not found:
            passed_over.append(lacking[-1])
    if not found:
        cause = f"{'; '.join(lacking)}; activate the environment that has vLLM, or name it: `vpatch status PATH`"
        raise Failure(Problem("no vllm", "the current environment", cause))
    (root, first), *others = found.items()
    return Located(tree_at(root), first, tuple(environment for _, environment in others), tuple(passed_over))
