"""What can go wrong, reported as `what: where: cause`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One failure that needs attention.

    `what` is the failure in a few lower-case words, `where` its file, folder or address, `cause` the reason, and
    `scope` the qualified name inside the file, "" if none.
    """

    what: str
    where: str
    cause: str
    scope: str = ""

    def as_json(self) -> dict[str, str | None]:
        """Return the JSON object of the command line's contract."""
        return {"what": self.what, "file": self.where, "scope": self.scope or None, "cause": self.cause}

    def __str__(self) -> str:
        where = f"{self.where} ({self.scope})" if self.scope else self.where
        return f"{self.what}: {where}: {self.cause}"


class Failure(Exception):
    """A run failed, with every problem at once. The command line exits with 1."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def cause(error: OSError) -> str:
    """Return the reason of the operating system, in lower case."""
    return (error.strerror or str(error)).lower()


@contextmanager
def naming(what: str, where: str, more: str = "") -> Iterator[None]:
    """Turn an OSError into a failure that names the file, with `more` after the cause.

    Raises:
        Failure: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise Failure(Problem(what, where, cause(error) + more)) from error
