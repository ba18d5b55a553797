"""What an upgrade from one vLLM to another brings, a line for each overlay."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from vpatch.core.verdict import MISFITS, State
from vpatch.matrix.verdicts import Cell, Row


class Prospect(StrEnum):
    """What an upgrade does to an overlay; the value is for people and for scripts."""

    STAYS = "stays"
    NEEDED = "needed"
    OFFERED = "offered"  # an overlay that a user may add
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


def outlooks(before: Row, after: Row, own: Collection[str] = (), opt_in: Collection[str] = ()) -> Iterator[Outlook]:
    """Yield what the upgrade from one vLLM to another does to each overlay, in the order of the ids.

    Args:
        before: the row of the vLLM before.
        after: that of the vLLM after.
        own: the ids that the user has written down, and drops: of patch files, and of a project's file.
        opt_in: the ids of the overlays that `vpatch apply` does not apply by itself.
    """
    known = {cell.verdict.id: cell.verdict.state for cell in before.cells}
    for cell in sorted(after.cells, key=lambda cell: cell.verdict.id):
        was, verdict = known.get(cell.verdict.id), cell.verdict
        prospect, because = _prospect(was, cell)
        if prospect is Prospect.MERGED and was is not State.MERGED:
            because = f"upstream has it{': drop it' if verdict.id in own else ''}"
        if prospect is Prospect.NEEDED and verdict.id in opt_in:
            prospect, because = Prospect.OFFERED, f"not selected; {because}"
        yield Outlook(verdict.id, was, verdict.state, prospect, because)


def _prospect(was: State | None, cell: Cell) -> tuple[Prospect, str]:
    match cell.verdict.state:
        case state if state in MISFITS or cell.urgent:
            return Prospect.DRIFTS, cell.verdict.because
        case State.MERGED:
            return Prospect.MERGED, "as before"
        case State.NOT_APPLICABLE:
            return Prospect.SUPERFLUOUS, "as before" if was is State.NOT_APPLICABLE else cell.verdict.because
        case _ if was in {State.MERGED, State.NOT_APPLICABLE}:
            return Prospect.NEEDED, "it was not before"
        case _:
            return Prospect.STAYS, "" if was is State.PENDING else "it did not fit before"
