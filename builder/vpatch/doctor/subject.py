"""What is examined: a vLLM, its overlays, and the interpreter that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from vpatch import api
from vpatch.core.catalogue import Selection, discover
from vpatch.core.marks import marks_in
from vpatch.doctor.interpreter import Interpreter, describe, interpreter_of
from vpatch.errors import Failure, Problem
from vpatch.tree import backup
from vpatch.tree.backup import Kept
from vpatch.tree.environment import Located
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
        unanswered: why the interpreter does not answer.
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
        found = {}
        for verdict in self.verified.overlays:
            files = [file for file in verdict.files if verdict.id in marks_in(self.tree.read(file) or b"")]
            if files:
                found[verdict.id] = tuple(files)
        return found

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


def examine(located: Located, python: Path | None, selection: Selection, commands: Commands) -> Subject:
    """Read what several findings rest on.

    Args:
        located: the vLLM.
        python: the interpreter that runs it; None to look for the one that its folder belongs to.
        selection: the overlays.
        commands: what to suggest to the user.

    Raises:
        UnknownName: there is no such overlay.
        Failure: a file cannot be read.
    """
    try:
        verified = api.verify(located.tree, selection.only, selection.also)
    except api.Refused as refused:
        verified = refused.result
    told, unanswered = None, None
    try:
        told = describe(python) if python else interpreter_of(located.tree.root)
    except Failure as failure:
        unanswered = failure.problems[0]
    return Subject(located, verified, selection.named, told, unanswered, commands)
