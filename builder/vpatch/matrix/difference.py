"""What has become of a cell since a baseline was recorded, and how it is told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vpatch.core.verdict import State
from vpatch.errors import Problem


class Kind(StrEnum):
    """What a change is to whoever pins vLLM, the most urgent first; the rules are in `vpatch.matrix.baseline`."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"
    STILL = "still"


_HEADINGS = {
    Kind.WORSE: "Worse",
    Kind.BETTER: "Better",
    Kind.OTHER: "Other changes",
    Kind.STILL: "As bad as in the baseline",
}


@dataclass(frozen=True)
class Change:
    """What has become of one cell, or, where `overlay` is "", of a row as a whole.

    `against` is the row of the baseline that it was compared with, "" where there was none. A state is None where
    there is no cell. `because` is for people.
    """

    row: str
    overlay: str
    against: str
    before: State | None
    after: State | None
    kind: Kind
    because: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.said}"

    @property
    def where(self) -> str:
        """The cell."""
        return f"{self.row}: {self.overlay}" if self.overlay else self.row

    @property
    def other(self) -> str:
        """The row that it is compared with, where that has another name, else ""."""
        return self.against if self.against != self.row else ""

    @property
    def states(self) -> str:
        """What it was and what it is, "" where that is the same or there is no cell."""
        if not self.overlay or self.before is self.after:
            return ""
        return f"{self.before} -> {self.after}" if self.before else str(self.after)

    @property
    def said(self) -> str:
        """What happened, and since when."""
        return _joined(": ", _joined(", ", self.states, self.other and f"compared with {self.other}"), self.because)

    @property
    def problem(self) -> Problem:
        """The same for a report."""
        return Problem(self.kind, self.where, self.said)


def as_objects(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Give the field "changes" of what `vpatch matrix --baseline FILE --json` prints."""
    return [
        {
            "vllm": one.row,
            "overlay": one.overlay or None,
            "against": one.against or None,
            "before": one.before,
            "after": one.after,
            "kind": one.kind,
            "because": one.because,
        }
        for one in changes
    ]


def from_objects(objects: Iterable[Mapping[str, Any]]) -> tuple[Change, ...]:
    """Read that field again."""
    return tuple(
        Change(
            one["vllm"],
            one["overlay"] or "",
            one["against"] or "",
            one["before"] and State(one["before"]),
            one["after"] and State(one["after"]),
            Kind(one["kind"]),
            one["because"],
        )
        for one in objects
    )


def told(changes: Sequence[Change]) -> list[str]:
    """Give Markdown: a list for each kind, worse first."""
    lines = []
    for kind, heading in _HEADINGS.items():
        if items := [_item(change) for change in changes if change.kind is kind]:
            lines += [f"### {heading}", "", *items, ""]
    return lines


def _item(change: Change) -> str:
    where = _joined(", ", _code(change.row), change.overlay and _code(change.overlay))
    since = _joined(", ", change.states, change.other and f"compared with {_code(change.other)}")
    return "- " + _joined(": ", where, since, _code(change.because))


def _joined(by: str, *texts: str) -> str:
    return by.join(filter(None, texts))


def _code(text: str) -> str:
    """Give text as it is: no markup, and, in an issue, nobody who is called and nothing that is linked back to it."""
    line = " ".join(text.split())
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"
