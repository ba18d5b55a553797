"""Text for people: counts, lists of names, commands to copy; verdicts, one line an overlay or a part; tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from vpatch.core.verdict import MISFITS, PartVerdict, State, Verdict
from vpatch.errors import shell
from vpatch.wrapping import wrapped


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 overlay", "4 overlays"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def is_are(number: int) -> str:
    """Return the verb for a number of things."""
    return "is" if number == 1 else "are"


def counted_are(number: int, noun: str) -> str:
    """Return a number with its noun and verb: "1 overlay is", "4 overlays are"."""
    return f"{counted(number, noun)} {is_are(number)}"


def do_not_fit(overlays: Sequence[str], vllm: str) -> str:
    """Return a clause: "a does not fit this vLLM", "a and b do not fit this vLLM"."""
    return f"{listed(overlays)} {'does' if len(overlays) == 1 else 'do'} not fit {vllm}"


def listed(names: Sequence[str]) -> str:
    """Return names as in a sentence: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def command(*words: object) -> str:
    """Return a command of vpatch to copy, quoted for a shell."""
    return shell("vpatch", *words)


def options(name: str, values: Iterable[str]) -> list[str]:
    """Return an option once for each value."""
    return [word for value in values for word in (name, value)]


COLORS: Mapping[str, str] = {
    State.CONFLICT: "red",
    State.DRIFTED: "red",
    State.PENDING: "yellow",
    State.APPLIED: "green",
    State.MERGED: "green",
    State.NOT_APPLICABLE: "bright_black",
    "passed": "green",
    "FAILED": "red",
    "not run": "yellow",
}

_DONE: Mapping[State, str] = {State.PENDING: "to apply", State.APPLIED: "applied", State.MERGED: "upstream"}

_BELOW = " " * 6  # before a reason that does not fit beside its state

Row = tuple[str, str, str]
"""What the row is about, its state, and a remark."""


@dataclass(frozen=True)
class Line:
    """A line, with the word in it that is shown in color: a state, the level of a finding; "" for the whole line."""

    text: str
    word: str = ""
    color: str = ""

    def styled(self, escaped: Callable[[str], str]) -> str:
        """Return the line with the word in color."""
        if not self.color:
            return escaped(self.text)
        if not self.word:
            return click.style(escaped(self.text), fg=self.color)
        before, _, after = self.text.partition(f"  {self.word}")
        return f"{escaped(before)}  {click.style(self.word, fg=self.color)}{escaped(after)}"


_OF_DIFFS: Mapping[str, str] = {"@": "cyan", "-": "red", "+": "green"}


def diff_line(line: str) -> Line:
    """Return a line of a unified diff, in git's colors; the two that name the file have none."""
    return Line(line, color="" if line.startswith(("--- ", "+++ ")) else _OF_DIFFS.get(line[:1], ""))


def rows(verdicts: Sequence[Verdict], *, parts: bool) -> Iterator[Row]:
    """Yield a row for each overlay; if `parts`, also one for each of its parts."""
    for verdict in verdicts:
        yield f"  {verdict.id}", verdict.state, remark(verdict)
        if parts:
            yield from ((f"    {part.name}", part.state, part.because) for part in verdict.parts)


def as_objects(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the verdicts as `--json` has them."""
    return [verdict.as_json() for verdict in verdicts]


def noted(notes: Iterable[str], verdicts: Sequence[Verdict]) -> list[str]:
    """Return the notes of a command and of its verdicts, each once."""
    parts = (part for verdict in verdicts for part in verdict.parts)
    return list(dict.fromkeys([*notes, *(note for part in parts for note in part.notes)]))


def table(rows: Sequence[Row], width: int | None) -> Iterator[Line]:
    """Yield the lines of a table; `width` is the terminal's, None for a pipe, whose lines are not broken."""
    names = max((len(name) for name, _, _ in rows), default=0)
    states = max((len(state) for _, state, _ in rows), default=0)
    for name, state, words in rows:
        start = f"{name:<{names}}  {state:<{states}}"
        line = f"{start}  {words}".rstrip()
        if width is None or len(line) <= width:
            yield Line(line, state, COLORS.get(state, ""))
        else:
            yield Line(start.rstrip(), state, COLORS.get(state, ""))
            yield from map(Line, wrapped(words, width, _BELOW, _BELOW))


def remark(verdict: Verdict) -> str:
    """Return what the state does not say, in a few words; "" if it says everything."""
    mine = [part for part in verdict.parts if part.state is verdict.state]
    match verdict.state:
        case state if state in MISFITS and not verdict.problems:  # another version wrote it
            return mine[0].because
        case state if state in MISFITS:
            files = {problem.where for problem in verdict.problems}
            where = next(iter(files)) if len(files) == 1 else counted(len(files), "file")
            return f"{counted(len(verdict.problems), 'problem')} in {where}"
        case State.NOT_APPLICABLE:
            return mine[0].brief
        case State.MERGED:
            return _links(mine)
        case _:
            return _and_others(verdict, mine)


def _and_others(verdict: Verdict, mine: Sequence[PartVerdict]) -> str:
    """Return how many parts have the overlay's state, and what the others have instead."""
    others = []
    for state in (State.APPLIED, State.MERGED):
        parts = [part for part in verdict.parts if part.state is state is not verdict.state]
        if parts:
            links = f" ({_links(parts)})" if _links(parts) else ""
            others.append(f"{len(parts)} {_DONE[state]}{links}")
    return "; ".join([f"{counted(len(mine), 'part')} {_DONE[verdict.state]}", *others]) if others else ""


def _links(parts: Sequence[PartVerdict]) -> str:
    return ", ".join(dict.fromkeys(link for part in parts for link in part.brief.split(", ") if link))
