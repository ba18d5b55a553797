"""The interpreter that would run vLLM: its version, and where it looks for code.

It is asked, importing nothing, if vpatch may run it. Otherwise its environment's files are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vpatch.tree import sites
from vpatch.tree.environment import Environment
from vpatch.tree.interpreter import Interpreter, asked


def described(environment: Environment) -> Interpreter:
    """Describe the interpreter of an environment, which is run only if it may be.

    Raises:
        Failure: it does not answer, or its environment has more than one vLLM.
    """
    return asked(environment.python) if environment.may_run else _read(environment)


def _read(environment: Environment) -> Interpreter:
    prefix, first = environment.folder, [folder.resolve() for folder in pythonpath()]
    path, own = [*first, *sites.search_path(prefix)], sites.own_sites(prefix)
    root = next((folder for folder in first if (folder / "vllm/__init__.py").is_file()), None)
    root = root or sites.import_root(prefix)
    about = (sites.version_of(prefix), prefix, tuple(path), tuple(own), tuple(_startup(path)))
    return Interpreter(environment.python, *about, root)


def pythonpath() -> list[Path]:
    """List the folders of this shell's PYTHONPATH."""
    return [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _startup(path: list[Path]) -> Iterator[Path]:
    for name in ("sitecustomize.py", "usercustomize.py"):
        yield from [folder / name for folder in path if (folder / name).is_file()][:1]
