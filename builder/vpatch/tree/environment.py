"""Which vLLM a command works on, which Python belongs to it, and whether vpatch may run that Python.

vpatch runs an interpreter if the user named it, if it runs vpatch itself, or if it is that of the active environment.
Every other one is read (`sites`): it may lie in a repository that was cloned, or on a share.
"""

from __future__ import annotations

import os
import site
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from vpatch.errors import Code, Failure, Problem, shell
from vpatch.tree import sites
from vpatch.tree.interpreter import asked, interpreter
from vpatch.tree.locate import Tree, imported_by, locate, tree_at


@dataclass(frozen=True)
class Environment:
    """A Python environment that may have a vLLM."""

    name: str  # how users know it
    folder: Path  # its `sys.prefix`
    python: Path  # absolute: it also runs where another folder is the current one; a link stays one, or its packages go
    active: bool = False  # whether the user's shell has activated it
    may_run: bool = False  # whether vpatch may run its interpreter

    @property
    def shown(self) -> str:
        """Its interpreter, as short as a message and a command of the current folder can have it."""
        return str(Path(self.name, "bin", "python") if self.name.startswith("./") else self.python)


@dataclass(frozen=True)
class Located:
    """A vLLM, and how it was found.

    Attributes:
        tree: the vLLM.
        environment: the one whose interpreter runs it, as far as known.
        how: what it was found by, "" if the user named it.
        others: the other environments with a vLLM, which the user may have meant.
        passed_over: why active environments that were searched before were not taken.
        refusal: why the interpreter may not even be run for a command that has to import; "" if that was not asked.
    """

    tree: Tree
    environment: Environment | None = None
    how: str = ""
    others: tuple[Environment, ...] = ()
    passed_over: tuple[str, ...] = ()
    refusal: str = ""

    def importing(self) -> Located:
        """Return the same for a command that has to import: then the interpreter of the user's environment may run."""
        if self.environment is None or self.environment.may_run:
            return self
        from vpatch.tree.own_environment import why_foreign  # late: few commands import, and it needs `guard`

        if why := why_foreign(self.environment.folder, self.environment.python):
            return replace(self, refusal=why)
        return replace(self, environment=replace(self.environment, may_run=True))


def named(path: Path, python: Path | None = None) -> Located:
    """Find the vLLM that the user names by its place, with the environment that it belongs to.

    Args:
        path: as of `locate`.
        python: the path of the interpreter that the user names besides.

    Raises:
        UnknownName, Failure: as `locate`.
    """
    tree = locate(path)
    if python is not None or path.is_file():
        return Located(tree, _of_interpreter(python or path.absolute()))
    folder = sites.prefix_of(tree.root)
    if tree.root != path.resolve() and sites.interpreter_in(path):
        folder = path.absolute()
    return Located(tree, None if folder is None else _of_folder(folder, tree.root))


def imported(python: Path) -> Located:
    """Find the vLLM that an interpreter imports, which the user named.

    Raises:
        UnknownName, Failure: as `imported_by`.
    """
    return Located(imported_by(python), _of_interpreter(interpreter(python)))


def _of_interpreter(python: Path) -> Environment:
    return Environment(str(python), python.parent.parent, python, may_run=True)


def _of_folder(folder: Path, root: Path) -> Environment | None:
    own = root in [Path(one).resolve() for one in site.getsitepackages()]
    for known in environments():
        if known.may_run and (known.folder.resolve() == folder.resolve() or (own and known.folder == Path(sys.prefix))):
            return known
    python = sites.interpreter_in(folder)
    return None if python is None else Environment(str(folder), folder, python)


def environments() -> list[Environment]:
    """List the environments to search, the preferred one first; each once.

    The interpreter that runs vpatch comes first: it is the one whose `vpatch` the user called. If vpatch is installed
    apart from vLLM (`uv tool`, `pipx`), the active environment is meant, and then the project's.
    """
    named = {name: os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    active = {name: Path(value).absolute() for name, value in named.items() if value}
    activated = {folder.resolve() for folder in active.values()}
    own = Path(sys.prefix)
    running = "the interpreter that runs vpatch"
    found = [Environment(running, own, Path(sys.executable), own.resolve() in activated, may_run=True)]
    project = {f"./{name}": Path(name).absolute() for name in sites.PROJECT if Path(name).is_dir()}
    for name, folder in (active | project).items():
        if all(folder.resolve() != other.folder.resolve() for other in found):
            is_active = name in active
            found.append(Environment(name, folder, folder / "bin" / "python", is_active, may_run=is_active))
    return found


def current(instead: str = "") -> Located:
    """Find the vLLM of the first environment that has one; `instead` is what to do without, if not to activate one.

    Raises:
        Failure: none has; the cause names each and why.
    """
    found: dict[Path, Environment] = {}
    lacking: list[str] = []
    passed_over: list[str] = []
    for environment in environments():
        why = sites.NONE
        try:
            if environment.may_run:
                root = asked(interpreter(environment.python)).root
            elif (root := sites.import_root(environment.folder)) is None:
                why = sites.absence(environment.folder, environment.shown)
        except Failure as failure:
            root, why = None, f": {failure.problems[0].cause}"
        if root is not None:
            found.setdefault(root, environment)
            continue
        lacking.append(f"{environment.name} ({environment.shown}){why}")
        if environment.active and not found:
            passed_over.append(lacking[-1])
    if not found:
        absent = [f"./{name}" for name in sites.PROJECT if not Path(name).is_dir()]
        lacking += [f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not there"] if absent else []
        usual = f"activate the environment that has vLLM, or name its folder, as {shell('vpatch', '--help')} explains"
        raise Failure(Problem("no vllm", "here", "; ".join(lacking), hint=instead or usual, code=Code.NO_VLLM))
    (root, first), *others = found.items()
    meant = tuple(environment for _, environment in others)
    return Located(tree_at(root), first, first.name, meant, tuple(passed_over))
