"""What an upgrade from one vLLM to another brings, a line for each overlay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from vpatch.core.verdict import MISFITS, State
from vpatch.matrix.verdicts import Cell, Row


class Prospect(StrEnum):
    """What an upgrade does to an overlay; the value is for people and for scripts."""

    STAYS = "stays"
    NEEDED = "needed"
    MERGED = "merged"
    SUPERFLUOUS = "superfluous"
    DRIFTS = "drifts"


@dataclass(frozen=True)
class Outlook:
    """An overlay, and what an upgrade does to it; the fields are those of the JSON object."""

    overlay: str
    before: State | None
    after: State
    prospect: Prospect
    because: str


def outlooks(before: Row, after: Row) -> Iterator[Outlook]:
    """Yield what the upgrade from one vLLM to another does to each overlay, in the order of the ids."""
    known = {cell.verdict.id: cell.verdict.state for cell in before.cells}
    for cell in sorted(after.cells, key=lambda cell: cell.verdict.id):
        was, verdict = known.get(cell.verdict.id), cell.verdict
        yield Outlook(verdict.id, was, verdict.state, *_prospect(was, cell))


def _prospect(was: State | None, cell: Cell) -> tuple[Prospect, str]:
    match cell.verdict.state:
        case state if state in MISFITS or cell.urgent:
            return Prospect.DRIFTS, cell.verdict.because
        case State.MERGED:
            return Prospect.MERGED, "as before" if was is State.MERGED else "upstream has it: drop it"
        case State.NOT_APPLICABLE:
            return Prospect.SUPERFLUOUS, "as before" if was is State.NOT_APPLICABLE else cell.verdict.because
        case _ if was in {State.MERGED, State.NOT_APPLICABLE}:
            return Prospect.NEEDED, "it was not before"
        case _:
            return Prospect.STAYS, "" if was is State.PENDING else "it did not fit before"
