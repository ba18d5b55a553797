"""What edits want changed in a module: statements that come and go, and what changes within a statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from vpatch.core.syntax import Path, Spot

AFTER = (1,)
"""The rank of what comes right behind the statement before."""
BEFORE = (2,)
"""The rank of what comes right before the statement behind."""


@dataclass(frozen=True)
class Splice:
    """Statements of a block go, and code comes in their place, marked.

    Attributes:
        block: the block.
        first: the index of the first statement that goes.
        last: the index of the statement behind the last one that goes. If it is `first`, none goes.
        new: the code that comes; "" leaves the mark alone.
        overlay: whose mark the code gets.
        rank: orders what comes at the same place; of equal rank `AFTER`, the last one comes first. With a rank, equal
            code comes once, with the marks of all.
        above: how many empty lines stand above it.
        under: the header, without colon, of a statement to put it in, which comes with it.
    """

    block: Spot
    first: int
    last: int
    new: str
    overlay: str
    rank: tuple[Any, ...] = ()
    above: int = 0
    under: str = ""


@dataclass(frozen=True)
class Amendment:
    """A node within a statement or its header changes, and the statement gets the mark.

    `change` gets libcst's node and the one that holds it, and returns the new one; None leaves the node.
    """

    path: Path
    overlay: str
    change: Callable[[Any, Any], Any] | None = None


Change: TypeAlias = Splice | Amendment
Group: TypeAlias = dict[Splice, list[str]]
"""What comes at one place, in order, each with the overlays that add it."""
