"""What is examined: a vLLM, its overlays, and the interpreter that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from vpatch import api
from vpatch.core.catalogue import Selection, discover
from vpatch.core.marks import marked_files
from vpatch.doctor.interpreter import described
from vpatch.errors import Failure, Problem, UnknownName
from vpatch.tree import backup
from vpatch.tree.backup import Kept
from vpatch.tree.environment import Located
from vpatch.tree.interpreter import Interpreter
from vpatch.tree.locate import Tree, is_checkout


class Commands(Protocol):
    """Commands of vpatch for the vLLM that is examined, in backticks."""

    def command(self, name: str, *arguments: str) -> str:
        """Return the command with these arguments."""
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

    @cached_property
    def kept(self) -> Kept:
        """What vpatch keeps beside the tree."""
        return backup.read(self.tree)

    @cached_property
    def overlay_files(self) -> frozenset[str]:
        """Every file that an installed overlay reads or changes."""
        return frozenset(file for item in discover() for file in item.overlay.files)

    @cached_property
    def marked(self) -> Mapping[str, tuple[str, ...]]:
        """By overlay, the files that carry its marks; only overlays that have any."""
        files = {one.id: marked_files(one.id, one.files, self.tree.read) for one in self.verified.overlays}
        return {name: marked for name, marked in files.items() if marked}

    @property
    def changed(self) -> tuple[str, ...]:
        """Every file that carries marks of an overlay."""
        return tuple(sorted({file for files in self.marked.values() for file in files}))

    @cached_property
    def changed_at(self) -> float | None:
        """The time of the last change, in seconds since the epoch; None if no overlay is applied.

        Files have the time at which vpatch wrote them. In an image they have the image's time, and so does provenance.
        """
        if not self.changed:
            return None
        notes = [f"{backup.folder(self.tree)}/provenance.json"] if self.tree.dist_info else []
        files = [path for file in (*self.changed, *notes) if (path := self.tree.root / file).is_file()]
        return max(path.stat().st_mtime for path in files)


def examine(located: Located, selection: Selection, commands: Commands) -> Subject:
    """Read what several findings rest on.

    Args:
        located: the vLLM.
        selection: the overlays.
        commands: what to suggest to the user.

    Raises:
        UnknownName: there is no such overlay.
    """
    python, unanswered = None, None
    try:
        python = described(located.environment) if located.environment else None
    except Failure as failure:
        unanswered = failure.problems[0]
    return Subject(located, _verified(located.tree, selection), selection.named, python, unanswered, commands)


def _verified(tree: Tree, selection: Selection) -> api.Result:
    """Return what `verify` finds; if it cannot finish, the states alone, with the reason among the problems."""
    try:
        return api.verify(tree, selection.only, selection.also)
    except api.Refused as refused:
        return refused.result
    except UnknownName:
        raise
    except Failure as failure:
        problems = failure.problems
    try:
        found = api.status(tree, selection.only, selection.also)
    except Failure:
        return api.Result(tree.root, tree.version, problems=problems)
    return replace(found, problems=(*found.problems, *problems))
