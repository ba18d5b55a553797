"""Text for people: counts, lists of names, commands to copy; verdicts, one line an overlay or a part; tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import metadata
from typing import Any

import click

from vpatch.core.catalogue import discover
from vpatch.core.verdict import MISFITS, UNRECORDED, PartVerdict, State, Verdict
from vpatch.errors import shell
from vpatch.wrapping import wrapped

MODEL = "Qwen/Qwen3-0.6B"
"""A model for commands to copy: the one that vLLM takes if none is named, 0.18 to 0.33."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 overlay", "4 overlays"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def is_are(number: int) -> str:
    """Return the verb for a number of things."""
    return "is" if number == 1 else "are"


def was_were(number: int) -> str:
    """Return the verb for what happened to a number of things."""
    return "was" if number == 1 else "were"


def it_them(number: int) -> str:
    """Return the pronoun for a number of things."""
    return "it" if number == 1 else "them"


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


def project_url(name: str) -> str:
    """Return one of the addresses of vpatch itself, as its package names them."""
    urls: dict[str, str] = dict(url.split(", ") for url in metadata("vpatch").get_all("Project-URL", ()))
    return urls[name]


def options(name: str, values: Iterable[str]) -> list[str]:
    """Return an option once for each value."""
    return [word for value in values for word in (name, value)]


COLORS: Mapping[str, str] = {
    State.CONFLICT: "red",
    State.DRIFTED: "red",
    State.PENDING: "bright_blue",  # as on the page of `matrix`: nothing is wrong
    State.APPLIED: "green",
    State.MERGED: "green",
    State.NOT_APPLICABLE: "bright_black",
    "passed": "green",
    "FAILED": "red",
    "not run": "yellow",
}

_DONE: Mapping[State, str] = {State.PENDING: "to apply", State.APPLIED: "applied", State.MERGED: "upstream"}

_COLUMN = 24  # the least width of a column of remarks
_BELOW = " " * 6  # before a reason that does not fit beside its state

Row = tuple[str, str, str]
"""What the row is about, its state, and a remark."""


class Aside(str):
    """A remark that a table breaks within its column where its line is too long, in place of below the name."""

    __slots__ = ()


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


def rows(
    verdicts: Sequence[Verdict],
    *,
    parts: bool,
    summaries: Mapping[str, str] | None = None,
    changed: Callable[[str, Sequence[str]], Sequence[str]] | None = None,
) -> Iterator[Row]:
    """Yield a row for each overlay; if `parts`, also one for each of its parts.

    Args:
        verdicts: the verdicts.
        parts: whether parts are shown, with their reasons.
        summaries: by overlay, what stands before the remark on one that is pending or applied, or alone.
        changed: of an overlay's files, returns the changed ones, which are shown with each part that is applied.
    """
    for verdict in verdicts:
        yield f"  {verdict.id}", verdict.state, _about(verdict, (summaries or {}).get(verdict.id, ""))
        for part in verdict.parts if parts else ():
            files = changed(verdict.id, part.files) if changed and part.state is State.APPLIED else ()
            yield f"    {part.name}", part.state, f"in {listed(files)}" if files else part.because


def _about(verdict: Verdict, summary: str) -> str:
    """Return the remark on an overlay, behind its summary unless it says why there is nothing to apply."""
    said = remark(verdict)
    if not (said and summary) or verdict.state not in _DONE or verdict.state is State.MERGED:
        return said or summary
    return Aside(f"{summary}; {said}")


def as_objects(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the verdicts as `--json` has them."""
    return [verdict.as_json() for verdict in verdicts]


def noted(notes: Iterable[str], verdicts: Sequence[Verdict], sources: Sequence[str] = ()) -> list[str]:
    """Return the notes of a command and of its verdicts, each once, with the overlay that it is about.

    Args:
        notes: those of the command.
        verdicts: the verdicts.
        sources: the options that say where overlays come from.
    """
    about: dict[str, dict[str, None]] = {}
    for verdict in verdicts:
        for note in (note for part in verdict.parts for note in part.notes):
            about.setdefault(UNRECORDED if note.startswith(UNRECORDED) else note, {})[verdict.id] = None
    unrecorded = _unrecorded(about.pop(UNRECORDED, {}), sources)
    named = (f"{listed([*ids])}: {note}" for note, ids in about.items())
    return list(dict.fromkeys([*notes, *named, *unrecorded]))


def _unrecorded(names: Collection[str], sources: Sequence[str]) -> Iterator[str]:
    """Yield that it is not recorded what some overlays take from vLLM, and the command that records it.

    Of a copy in the tree nothing is said: the list lies beside the patch file, and `apply` has looked at it.
    """
    if known := sorted({item.id for item in discover()}.intersection(names)) if names else []:
        said = f"{UNRECORDED} {listed(known)} {'takes' if len(known) == 1 else 'take'} from vLLM, so that was not"
        yield f"{said} checked; to record it: {shell(sys.executable, '-m', 'vpatch.calls', *sources, *known)}"


def table(rows: Sequence[Row], width: int | None) -> Iterator[Line]:
    """Yield the lines of a table; `width` is the terminal's, None for a pipe, whose lines are not broken."""
    states = max((len(state) for _, state, _ in rows), default=0)
    room = None if width is None else width - states - 2  # a longer name goes on in further lines
    names = max((len(name) for name, _, _ in rows if room is None or len(name) <= room), default=0)
    for name, state, words in rows:
        start = f"{name:<{names}}  {state:<{states}}"
        line = f"{start}  {words}".rstrip()
        if width is None or len(line) <= width:
            yield Line(line, state, COLORS.get(state, ""))
        elif isinstance(words, Aside) and width - len(start) - 2 >= _COLUMN:
            first, *more = wrapped(words, width - len(start) - 2)
            yield Line(f"{start}  {first}", state, COLORS.get(state, ""))
            yield from (Line(f"{'':{len(start)}}  {piece}") for piece in more)
        else:
            indent = " " * (len(name) - len(name.lstrip()))
            *above, last = wrapped(start.strip(), width, indent, f"{indent}  ")
            yield from map(Line, above)
            yield Line(last, state, COLORS.get(state, ""))
            yield from map(Line, wrapped(words, width, _BELOW, _BELOW) if words else ())


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
