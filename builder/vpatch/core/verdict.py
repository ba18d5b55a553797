"""What the engine finds in a tree: findings of edits, answers of predicates, states, verdicts and changesets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vpatch.core.landing.binding import Read
    from vpatch.core.syntax import Path
    from vpatch.errors import Problem


class State(StrEnum):
    """The state of a part or an overlay in a tree, in order of precedence.

    Attributes:
        CONFLICT: two overlays change the same code.
        DRIFTED: no shape fits, or the evidence contradicts itself; the reason names what was found.
        PENDING: ready to apply.
        APPLIED: every change is in place, with its marks.
        MERGED: upstream has the change.
        NOT_APPLICABLE: this vLLM has neither the feature nor the defect.
    """

    CONFLICT = "conflict"
    DRIFTED = "drifted"
    PENDING = "pending"
    APPLIED = "applied"
    MERGED = "merged"
    NOT_APPLICABLE = "not_applicable"

    @classmethod
    def first(cls, states: Iterable[State]) -> State:
        """Return the state that comes first; there must be one."""
        return min(states, key=list(cls).index)


MISFITS = frozenset({State.DRIFTED, State.CONFLICT})
"""The states of overlays that do not fit a tree: vpatch writes nothing, and a person must decide."""

UNRECORDED = "nothing is recorded of what"
"""The beginning of a note on code of which the list of calls, if there is one, has nothing."""
UNPROVED = "is not one that the overlay was proved with"
"""The end of a note on a function that inserted code calls, and of which only the body is new."""


class Found(Enum):
    """What an edit finds in its file."""

    BEFORE = "its precondition"
    AFTER = "its postcondition"
    LOST = "neither"


@dataclass(frozen=True)
class Landed:
    """Code that an edit inserted; `vpatch.core.landing` checks it where it stands."""

    path: Path  # the inserted statement, or what contains the inserted piece: a statement or an expression
    reads: frozenset[Read] | None = None  # the names that a piece reads; None for a whole statement or header
    header: bool = False  # with `reads` None: only the statement's header is inserted, its blocks are upstream's
    binds: frozenset[str] = frozenset()  # the names that an import binds; nothing else may bind them in their scope
    uses: tuple[str, ...] = ()  # attributes, written `self.name`, that the code relies on and its class must set

    @property
    def whole(self) -> bool:
        """Whether the edit owns the whole statement."""
        return self.reads is None and not self.header


ADDED = frozenset({0})
"""What `EditFinding.marked` is of a file that the edit added."""


@dataclass(frozen=True)
class EditFinding:
    """What one edit finds."""

    found: Found
    because: object = ""  # for `LOST`, the reason; `str` of it is the message
    marked: frozenset[int] = frozenset()  # the lines with marks that the edit explains; or `ADDED`
    regions: tuple[Path, ...] = ()  # the code that the edit changes
    context: tuple[Path, ...] = ()  # the code that it knows its place by
    binds: tuple[tuple[str, str], ...] = ()  # qualified names that the edit binds, each with what it binds them to
    landed: tuple[Landed, ...] = ()  # the edit's own code in the file

    @property
    def adds(self) -> bool:
        """Whether the edit has added the whole file."""
        return self.marked == ADDED


@dataclass(frozen=True)
class Answer:
    """A predicate's answer, None if unknown, with the reason in words."""

    holds: bool | None
    because: str
    meaning: str = ""  # for users, in a few words
    file: str = ""  # the module that the reason is about, if it does not name it

    @property
    def reason(self) -> str:
        """The reason, with its module."""
        return f"{self.file}: {self.because}" if self.file else self.because


@dataclass(frozen=True)
class PartVerdict:
    """The state of one part, with the reason in words.

    `files` are those that the part changes or adds, `shape` is the name of the matched shape. `notes` are remarks about
    the surrounding code that change no state. `brief` is the reason in a few words, "" if the state says it all.
    """

    name: str
    state: State
    because: str
    files: tuple[str, ...]
    shape: str | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    brief: str = ""


@dataclass(frozen=True)
class Verdict:
    """The state of one overlay, with the verdicts of its parts."""

    id: str
    parts: tuple[PartVerdict, ...]

    @property
    def state(self) -> State:
        """The first state, in order of precedence, among the parts."""
        return State.first(part.state for part in self.parts)

    @property
    def because(self) -> str:
        """The reasons of the parts that decide the overlay's state; if they differ, each names its parts."""
        reasons: dict[str, list[str]] = {}
        for part in self.parts:
            if part.state is self.state:
                reasons.setdefault(part.because, []).append(part.name)
        if len(reasons) == 1:
            return next(iter(reasons))
        return "; ".join(f"{', '.join(names)}: {because}" for because, names in reasons.items())

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of all parts, each once."""
        return tuple(dict.fromkeys(problem for part in self.parts for problem in part.problems))

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the overlay changes or adds, sorted."""
        return tuple(sorted({file for part in self.parts for file in part.files}))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the command line's contract."""
        parts = [
            {"name": p.name, "state": p.state, "because": p.because, "shape": p.shape, "files": list(p.files)}
            for p in self.parts
        ]
        return {"id": self.id, "state": self.state, "because": self.because, "parts": parts}


@dataclass(frozen=True)
class Changeset:
    """The new bytes of every file that changes, with the verdicts `before` and `after`. Nothing is written yet.

    If there are `problems`, nothing changes and the verdicts are equal.
    """

    before: tuple[Verdict, ...]
    after: tuple[Verdict, ...]
    files: Mapping[str, bytes]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class PartChange:
    """What one part changes on its own: its verdict, and by path the bytes before (None: no such file) and after.

    `files` is empty unless the part is pending, or applied in a tree whose pristine bytes are known.
    """

    verdict: PartVerdict
    files: Mapping[str, tuple[bytes | None, bytes]]
