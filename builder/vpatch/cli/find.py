"""The command find: what is known of a pasted error line or a symptom, and its state in this vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import click

from vpatch import api
from vpatch.cli.options import (
    PathType,
    examples,
    introduce_project,
    project,
    reported,
    source_words,
    with_project,
)
from vpatch.cli.output import Report, fitted, on_terminal
from vpatch.cli.target import Target
from vpatch.cli.wording import COLORS, Line, as_objects, command, counted
from vpatch.core.catalogue import Selection, discover
from vpatch.core.verdict import MISFITS, State, Verdict
from vpatch.errors import Failure, naming
from vpatch.known import logs
from vpatch.known.index import Index, KnownMatch
from vpatch.tree.locate import Tree

_PASTED = 128 << 10  # bytes of a text that may be broken anywhere; of a longer one, each line stands alone
_MIB = 1 << 20
_ORDER = (State.PENDING, State.CONFLICT, State.DRIFTED, State.APPLIED, State.MERGED, State.NOT_APPLICABLE)


@dataclass(frozen=True)
class FindAnswer:
    """A match, the state in this vLLM of the overlay that it names, None if it names none or no vLLM is known."""

    match: KnownMatch
    state: State | None
    do: str

    @property
    def name(self) -> str:
        """The overlay's id; else "elsewhere"."""
        overlay = self.match.source.overlay
        return overlay.id if overlay else "elsewhere"

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the command line's contract."""
        match, elsewhere = self.match, self.match.source.elsewhere
        return {
            "overlay": match.source.overlay and match.source.overlay.id,
            "part": match.source.part or None,
            "state": self.state,
            "kind": "symptom" if match.symptom else "part of a line" if match.cut else "line",
            "known": match.known,
            "seen": match.seen,
            "do": self.do,
            "link": elsewhere and address(elsewhere.link),
        }


@dataclass(frozen=True, kw_only=True)
class FindReport(Report):
    """What is known of a text; `tree` is the vLLM that was judged, None without one."""

    answers: Sequence[FindAnswer]
    verdicts: Sequence[Verdict]
    tree: Tree | None

    def fields(self) -> Mapping[str, Any]:
        """Return the vLLM, the verdicts, and the matches."""
        where = {"tree": str(self.tree.root), "vllm": self.tree.version} if self.tree else {}
        matches = [answer.as_json() for answer in self.answers]
        return {**where, "overlays": as_objects(self.verdicts), "matches": matches}

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield each answer: its overlay and state, the line that is known, and what to do."""
        several = sum(one.match.source.overlay is not None for one in self.answers) > 1
        for answer in self.answers:
            state = str(answer.state or "")
            yield Line(f"  {answer.name}  {state}".rstrip(), state, COLORS.get(state, ""))
            yield from fitted([f"      {line}" for line in _about(answer, several=several)], width)


def _about(answer: FindAnswer, *, several: bool) -> Iterator[str]:
    match, elsewhere = answer.match, answer.match.source.elsewhere
    kind = "symptom with all of your words" if match.symptom else "has a part of" if match.cut else "known line"
    yield f"{kind}: {match.known}"
    if match.source.overlay and (several or match.cut or match.symptom):
        yield f"what it mends: {match.source.overlay.overlay.summary}"
    yield answer.do
    if elsewhere:
        yield address(elsewhere.link)


def address(link: str) -> str:
    """Return where a link of `elsewhere` leads: itself, or a page of the documentation."""
    if link.startswith("https://"):
        return link
    urls = dict(url.split(", ") for url in metadata("vpatch").get_all("Project-URL", ()))
    return f"{urls['Documentation']}/{link}"


@click.command(
    "find",
    epilog=examples(
        "find \"invalid literal for int() with base 10: 'sliding_window'\"",
        "find answers are garbage",
        "find - --tree .venv < server.log",
    ),
)
@click.argument("text", nargs=-1, metavar="TEXT")
@reported
@click.option("--tree", metavar="TREE", type=PathType(), help="The vLLM whose state is shown.")
@click.option("--python", type=PathType(), metavar="PY", help="The vLLM that this interpreter imports.")
@with_project
def find_command(text: tuple[str, ...], tree: Path | None, python: Path | None) -> Report:
    """Find the overlay or the page for an error line, or for what you see.

    TEXT is a line of a log, or some words. `-` reads it, or a whole log, from standard input. Paths, numbers,
    addresses and quotes do not matter. An answer shows the known line that TEXT has, the overlay's state in your vLLM,
    and what to do. If several overlays have the line, the first is one that your vLLM lacks. If nothing is known, the
    exit code is 1.
    """
    if tree and python:
        raise click.UsageError("--tree and --python name two trees: leave one out")
    pasted, note = _given(text)
    index = Index(discover())
    found = index.find(pasted) if isinstance(pasted, str) else logs.known_in(index, pasted)
    ids = tuple(dict.fromkeys(one.source.overlay.id for one in found if one.source.overlay))
    target = Target(tree, python, Selection(()), verbose=False, sources=source_words(), project=project().file)
    place, verdicts = _judged(target, ids)
    answers = answered(found, verdicts, target)
    notes = [*note, *(["no vLLM was found here, so no state is shown"] if ids and place is None else [])]
    more = {"tree": place, "verdicts": verdicts, "notes": notes, "failed": not answers}
    said = outcome(answers) if answers else _unknown(pasted)
    return FindReport(answers=answers, outcome=said, **more)  # type: ignore[arg-type]


def _given(text: tuple[str, ...]) -> tuple[str | logs.Tail, list[str]]:
    """Return what the user gave, a long text as a log, with a note if only its end was read."""
    if text and text != ("-",):
        return " ".join(text), []
    if sys.stdin is None or (not text and on_terminal(sys.stdin)):
        raise click.UsageError("give a line, or - and the line on standard input")
    with naming("cannot read", "standard input"):
        found = logs.tail(sys.stdin.buffer)
    return (found.text if found.size <= _PASTED else found), skipped(found)


def skipped(found: logs.Tail) -> list[str]:
    """Return a note if only the end of a log was read."""
    if found.read == found.size:
        return []
    return [f"only the last {found.read // _MIB} of {found.size // _MIB} MiB were searched"]


def _judged(target: Target, ids: tuple[str, ...]) -> tuple[Tree | None, Sequence[Verdict]]:
    """Find the vLLM and the states of overlays in it; without a vLLM that the user named, there may be none."""
    introduce_project()
    try:
        tree = target.find()
    except Failure:
        if target.path or target.python:
            raise
        return None, ()
    return tree, api.status(tree, Selection(ids)).overlays if ids else ()


def answered(found: Sequence[KnownMatch], verdicts: Sequence[Verdict], target: Target) -> list[FindAnswer]:
    """Return the answers: whole lines first, then by state, what is ready to apply first."""
    answers = [_answer(match, verdicts, target) for match in found]
    place = {state: number for number, state in enumerate(_ORDER)}
    return sorted(
        answers, key=lambda one: (one.name == "elsewhere", one.match.cut, place.get(one.state or _ORDER[0], 0))
    )


def _answer(match: KnownMatch, verdicts: Sequence[Verdict], target: Target) -> FindAnswer:
    item, elsewhere = match.source.overlay, match.source.elsewhere
    if item is None:
        return FindAnswer(match, None, elsewhere.advice if elsewhere else "")
    option = "--with" if item.overlay.opt_in else "--overlay"
    verdict = next((one for one in verdicts if one.id == item.id), None)
    if verdict is None:
        return FindAnswer(match, None, target.command("apply", option, item.id))
    part = next((one.state for one in verdict.parts if one.name == match.source.part), None)
    state = part or verdict.state
    match state:
        case State.PENDING:
            do = target.command("apply", option, item.id)
        case State.APPLIED:
            do = f"it is applied: if the line is newer, see why by {target.command('doctor')}"
        case _ if state in MISFITS:
            do = f"it does not fit this vLLM: {target.command('status', '-v', '--overlay', item.id)}"
        case _:
            do = "this vLLM has nothing of it: the line is of another vLLM, or has another cause"
    return FindAnswer(match, state, do)


def outcome(answers: Sequence[FindAnswer]) -> str:
    """Return the last line."""
    ids = [*dict.fromkeys(one.name for one in answers if one.match.source.overlay)]
    others = len(answers) - len([one for one in answers if one.match.source.overlay])
    if not ids:
        return "No overlay mends this: what to do is below the line."
    told = f"{counted(len(ids), 'overlay')} known for this"
    more = f", and {counted(others, 'other cause')}" if others else ""
    apart = " They share words: what each mends tells them apart." if len(ids) > 1 else ""
    return f"{told}{more}. {command('show', ids[0])} explains {'it' if len(ids) == 1 else 'the first'}.{apart}"


def _unknown(text: str | logs.Tail) -> str:
    if isinstance(text, str) and not text.strip():
        return "There is no text to search for."
    return f"Nothing is known of this. {command('list')} has all overlays, {command('doctor')} looks at your vLLM."
