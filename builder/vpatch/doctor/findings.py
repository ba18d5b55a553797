"""What `vpatch doctor` reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from vpatch.errors import Code, Problem


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
        return {
            "name": self.name,
            "level": self.level,
            "what": self.what,
            "where": ", ".join(self.where),
            "do": self.do,
        }


def unreadable(problem: Problem) -> Finding:
    """Report that something could not be examined."""
    denied = problem.code is Code.DENIED
    do = "run `vpatch doctor` as a user who may read it" if denied else "reinstall vLLM"
    return Finding("unreadable", Level.PROBLEM, f"{problem.what}: {problem.reason}", (problem.where,), do)


@dataclass(frozen=True)
class Section:
    """The findings on one subject, with its title."""

    title: str
    findings: Sequence[Finding]
