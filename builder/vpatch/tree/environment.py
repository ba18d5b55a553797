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


@dataclass(frozen=True)
class Located:
    """A vLLM, and how it was found.

    Attributes:
        tree: the vLLM.
        environment: the one that has it; None if the user named the vLLM.
        others: the other environments with a vLLM, which the user may have meant.
    """

    tree: Tree
    environment: Environment | None = None
    others: tuple[Environment, ...] = ()

    @property
    def how(self) -> str:
        """What it was found by, "" if the user named it."""
        return self.environment.name if self.environment else ""


def environments() -> list[Environment]:
    """List the environments to search, the preferred one first; each once.

    The interpreter that runs vpatch comes first: it is the one whose `vpatch` the user called. If vpatch is installed
    apart from vLLM (`uv tool`, `pipx`), the active environment is meant, and then the project's.
    """
    found = [Environment("the interpreter that runs vpatch", Path(sys.prefix), Path(sys.executable))]
    active = [(name, os.environ.get(name)) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    folders = [(name, Path(value)) for name, value in active if value]
    if Path(".venv").is_dir():
        folders.append(("./.venv", Path(".venv")))
    for name, folder in folders:
        if all(folder.resolve() != other.folder.resolve() for other in found):
            found.append(Environment(name, folder, folder / "bin" / "python"))
    return found


def current() -> Located:
    """Find the vLLM of the first environment that has one.

    Raises:
        Failure: none has; the cause names each and why.
    """
    found: dict[Path, Environment] = {}
    lacking: list[str] = []
    for environment in environments():
        try:
            root = import_root(environment.python)
        except Failure as failure:
            lacking.append(f"{environment.name} ({environment.python}): {failure.problems[0].cause}")
            continue
        if root is None:
            lacking.append(f"{environment.name} ({environment.python}) has none")
        else:
            found.setdefault(root, environment)
    if not found:
        cause = f"{'; '.join(lacking)}; activate the environment that has vLLM, or name it: `vpatch status PATH`"
        raise Failure(Problem("no vllm", "the current environment", cause))
    (root, first), *others = found.items()
    return Located(tree_at(root), first, tuple(environment for _, environment in others))
