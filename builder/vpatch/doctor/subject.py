"""What is examined, a vLLM with its overlays and its interpreter; and what is reported of it, findings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Protocol

from vpatch import api
from vpatch.core.catalogue import discover
from vpatch.core.marks import marked_files
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import MISFITS
from vpatch.errors import Code, Problem
from vpatch.tree import backup, sites
from vpatch.tree.backup import Kept
from vpatch.tree.copies import known_in
from vpatch.tree.environment import Environment, Located
from vpatch.tree.interpreter import Interpreter, asked
from vpatch.tree.locate import Tree, is_checkout


class Level(StrEnum):
    """How serious a finding is, in rising order."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"  # it may be the reason why a server does not work
    PROBLEM = "problem"  # it keeps overlays from working


@dataclass(frozen=True)
class Finding:
    """One fact about a vLLM or its surroundings.

    Attributes:
        name: the kind of finding, for scripts.
        level: how serious it is.
        what: the fact, in a sentence without a period.
        where: the files, folders or processes that it is about.
        do: what to do next, with commands in backticks; "" if there is nothing to do.
    """

    name: str
    level: Level
    what: str
    where: tuple[str, ...] = ()
    do: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the JSON object of the command line's contract."""
        where = ", ".join(self.where)
        return {"name": self.name, "level": self.level, "what": self.what, "where": where, "do": self.do}


def unreadable(problem: Problem) -> Finding:
    """Report that something could not be examined."""
    denied = problem.code is Code.DENIED
    do = "run `vpatch doctor` as a user who may read it" if denied else "reinstall vLLM"
    return Finding("unreadable", Level.PROBLEM, f"{problem.what}: {problem.reason}", (problem.where,), do)


class Commands(Protocol):
    """Commands of vpatch for the vLLM that is examined, in backticks."""

    def command(self, name: str, *arguments: str) -> str:
        """Return the command with these arguments."""
        ...

    def instead(self) -> str:
        """Return the command that runs vLLM with the user's selection, and writes nothing to its files."""
        ...

    def again(self, name: str, *arguments: str) -> str:
        """Return the command with the user's selection of overlays."""
        ...


@dataclass(frozen=True)
class Subject:
    """A vLLM with all that several findings rest on.

    Attributes:
        located: the vLLM, and how it was found.
        verified: what `vpatch verify` finds: the verdicts, and what is wrong with files that overlays changed.
        named: ids of overlays that the user named.
        python: the interpreter that runs this vLLM; None if none is known, or if it does not answer.
        unanswered: why the interpreter is not described: it does not answer, or its files contradict each other.
        commands: what to suggest to the user.
    """

    located: Located
    verified: api.Result
    named: frozenset[str]
    python: Interpreter | None
    unanswered: Problem | None
    commands: Commands

    @property
    def tree(self) -> Tree:
        """The vLLM."""
        return self.located.tree

    @property
    def is_checkout(self) -> bool:
        """Whether it is a source checkout, which has no RECORD."""
        return is_checkout(self.tree)

    @property
    def fits(self) -> bool:
        """Whether every overlay fits this vLLM."""
        return all(verdict.state not in MISFITS for verdict in self.verified.overlays)

    @cached_property
    def kept(self) -> Kept:
        """What vpatch keeps beside the tree."""
        return backup.read(self.tree)

    @cached_property
    def overlays(self) -> tuple[Catalogued, ...]:
        """Every overlay that may be in the tree."""
        return known_in(self.tree, self.tree.read, discover())

    @cached_property
    def overlay_files(self) -> frozenset[str]:
        """Every file that an overlay reads or changes."""
        return frozenset(file for item in self.overlays for file in item.overlay.files)

    @cached_property
    def marked(self) -> Mapping[str, tuple[str, ...]]:
        """By overlay, the files that carry its marks; only overlays that have any."""
        files = {one.id: marked_files(one.id, one.files, self.tree.read) for one in self.verified.overlays}
        return {name: marked for name, marked in files.items() if marked}

    @cached_property
    def changed_at(self) -> float | None:
        """The time of the last change, in seconds since the epoch; None if no overlay is applied.

        Files have the time at which vpatch wrote them. In an image they have the image's time, and so does provenance.
        """
        changed = {file for files in self.marked.values() for file in files}
        if not changed:
            return None
        notes = {f"{backup.folder(self.tree)}/provenance.json"} if self.tree.dist_info else set()
        files = [path for file in changed | notes if (path := self.tree.root / file).is_file()]
        return max(path.stat().st_mtime for path in files)


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
