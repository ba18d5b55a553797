"""What can go wrong, told as `what: where: cause`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that a person must look at.

    `what` is the short lower-case failure, `where` the file, folder or address that it concerns, `cause` the reason,
    `scope` the qualified name inside the file, where there is one.
    """

    what: str
    where: str
    cause: str
    scope: str = ""

    def __str__(self) -> str:
        where = f"{self.where} ({self.scope})" if self.scope else self.where
        return f"{self.what}: {where}: {self.cause}"


class Failure(Exception):
    """A run that did not do what was asked; carries every problem at once. The command line exits with 1."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
