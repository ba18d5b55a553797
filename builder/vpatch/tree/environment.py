"""Which vLLM a command works on, which Python belongs to it, and whether vpatch may run that Python.

vpatch runs an interpreter if the user named it, if it runs vpatch itself, or if it is that of the active environment.
Every other one is read (`sites`): it may lie in a repository that was cloned, or on a share.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import site
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISLNK, S_ISVTX

from vpatch.errors import Failure, Problem, cause
from vpatch.foreign import descriptor, read_regular
from vpatch.tree import guard, sites
from vpatch.tree.interpreter import asked, interpreter
from vpatch.tree.locate import Tree, imported_by, locate, tree_at


@dataclass(frozen=True)
class Environment:
    """A Python environment that may have a vLLM."""

    name: str  # how users know it
    folder: Path  # its `sys.prefix`
    python: Path
    active: bool = False  # whether the user's shell has activated it
    may_run: bool = False  # whether vpatch may run its interpreter


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
    active = {name: Path(value) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if (value := os.environ.get(name))}
    activated = {folder.resolve() for folder in active.values()}
    own = Path(sys.prefix)
    running = "the interpreter that runs vpatch"
    found = [Environment(running, own, Path(sys.executable), own.resolve() in activated, may_run=True)]
    project = {"./.venv": Path(".venv")} if Path(".venv").is_dir() else {}
    for name, folder in (active | project).items():
        if all(folder.resolve() != other.folder.resolve() for other in found):
            is_active = name in active
            found.append(Environment(name, folder, folder / "bin" / "python", is_active, may_run=is_active))
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
            if environment.may_run:
                root = asked(interpreter(environment.python)).root
            elif (root := sites.import_root(environment.folder)) is None:
                why = sites.absence(environment.folder, environment.python)
        except Failure as failure:
            root, why = None, f": {failure.problems[0].cause}"
        if root is not None:
            found.setdefault(root, environment)
            continue
        lacking.append(f"{environment.name} ({environment.python}){why}")
        if environment.active and not found:
            passed_over.append(lacking[-1])
    if not found:
        hint = "activate the environment that has vLLM, or name it: `vpatch status PATH`"
        raise Failure(Problem("no vllm", "the current environment", "; ".join(lacking), hint=hint))
    (root, first), *others = found.items()
    meant = tuple(environment for _, environment in others)
    return Located(tree_at(root), first, first.name, meant, tuple(passed_over))


_MOST_INDEX = 1 << 28  # bytes of git's index


def why_foreign(folder: Path, python: Path) -> str:
    """Return why another user may have made a virtual environment; "" if this user made it.

    The owner of the files does not tell: what a user clones or unpacks is the user's own. But whoever makes an
    environment writes its place into it, and neither commits it nor leaves it to others.

    Args:
        folder: the environment.
        python: its interpreter.
    """
    try:
        place = folder.resolve()
        inner = (place, place / "pyvenv.cfg", place / "bin", place / "bin/activate", python, *sites.own_sites(place))
        reasons = (*_open_to_others(inner, place), _remote(place), _moved(place), _committed(place))
        return next(filter(None, reasons), "")
    except OSError as error:
        return f"{error.filename or folder}: {cause(error)}"


def _open_to_others(inner: tuple[Path, ...], place: Path) -> Iterator[str]:
    me = os.geteuid()
    for path in inner:
        about = path.lstat()
        if about.st_uid != me:
            yield f"{path} belongs to another user"
        if not S_ISLNK(about.st_mode) and _others_write(about):
            yield f"others may write to {path}"
    for above in place.parents:
        about = above.stat()
        if about.st_uid not in (0, me) or (_others_write(about) and not about.st_mode & S_ISVTX):
            yield f"others may replace what is in {above}"


def _others_write(about: os.stat_result) -> bool:
    """Whether users besides its owner may write to it; many systems make what a group of one user may write to."""
    return bool(about.st_mode & 0o002 or (about.st_mode & 0o020 and not _is_private(about.st_gid)))


def _is_private(group: int) -> bool:
    try:
        name, entry = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == name and {*entry.gr_mem} <= {name}


def _remote(place: Path) -> str:
    """On a share, the owner that files show is often whoever mounted it."""
    with descriptor(place, os.O_DIRECTORY) as file:
        return "it is not on a file system of this machine" if guard.is_remote(file) else ""


def _moved(place: Path) -> str:
    """Whoever makes an environment here writes this place into it; one that is cloned or unpacked has another."""
    text = read_regular(place / "bin/activate").decode(errors="surrogateescape")
    found = re.findall(r"""^[ \t]*+(?:export )?VIRTUAL_ENV=["']?([^"'\n]*+)["']?[ \t\r]*+$""", text, re.MULTILINE)
    return "" if str(place) in map(os.path.realpath, found) else f"it was not made in {place}"


def _committed(place: Path) -> str:
    """Look in the bytes of git's index, as git itself may run what the repository names."""
    if (place / ".git").exists():
        return "it is a repository itself"
    for top in (folder for folder in place.parents if (folder / ".git").exists()):
        begin = os.fsencode(f"{place.relative_to(top)}/")
        for index in _indexes(top / ".git"):
            data = read_regular(index, _MOST_INDEX)
            if begin in data or data[4:8] == b"\0\0\0\4":  # version 4 does not have whole names
                return f"it may be part of the repository {top}"
    return ""


def _indexes(git: Path) -> Iterator[Path]:
    if git.is_file():
        git = git.parent / read_regular(git).decode(errors="surrogateescape").removeprefix("gitdir:").strip()
    with suppress(FileNotFoundError):
        yield from (path for path in git.iterdir() if path.name == "index" or path.name.startswith("sharedindex."))
