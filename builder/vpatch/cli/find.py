"""The command find: what is known of a pasted error line or a symptom, and its state in this vLLM."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from vpatch import api
from vpatch.cli.given import given, parted
from vpatch.cli.options import (
    PathType,
    examples,
    introduce_project,
    project,
    reported,
    source_words,
    with_project,
)
from vpatch.cli.output import Report, fitted
from vpatch.cli.target import Target
from vpatch.cli.wording import COLORS, Line, as_objects, command, counted, listed, project_url
from vpatch.core.catalogue import Selection, discover
from vpatch.core.verdict import MISFITS, State, Verdict
from vpatch.errors import Failure
from vpatch.known import logs
from vpatch.known.index import LACKED, Index, KnownMatch, MatchKind
from vpatch.known.mentions import references
from vpatch.tree.locate import Tree

_ORDER = (State.PENDING, State.CONFLICT, State.DRIFTED, State.APPLIED, State.MERGED, State.NOT_APPLICABLE)
_ADVICE = "advice"  # what an answer without an overlay is headed by


@dataclass(frozen=True)
class FindAnswer:
    """A match, the state in this vLLM of the overlay that it names, None if it names none or no vLLM is known."""

    match: KnownMatch
    state: State | None
    do: str

    @property
    def name(self) -> str:
        """The overlay's id; else "advice"."""
        overlay = self.match.source.overlay
        return overlay.id if overlay else _ADVICE

    @property
    def possible(self) -> bool:
        """Whether the line has many causes, of which the overlay mends one."""
        return self.match.kind is MatchKind.POSSIBLE

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the command line's contract."""
        match, elsewhere = self.match, self.match.source.elsewhere
        return {
            "overlay": match.source.overlay and match.source.overlay.id,
            "part": match.source.part or None,
            "state": self.state,
            "kind": match.kind,
            "if": match.condition or None,
            "beside": list(match.beside),
            "lacks": list(match.lacks),
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


_KINDS = {
    MatchKind.LINE: "known error line",
    MatchKind.PART: "a part of the known error line",
    MatchKind.SYMPTOM: "symptom",
    MatchKind.POSSIBLE: "mends this line if",
    MatchKind.MENTION: "mentions",
}


def _about(answer: FindAnswer, *, several: bool) -> Iterator[str]:
    match, elsewhere = answer.match, answer.match.source.elsewhere
    if match.known != answer.name:
        yield f"{_KINDS[match.kind]}: {match.condition or match.known}"
    if match.lacks:
        yield f"it does not say: {', '.join(match.lacks)}"
    if match.beside:
        yield f"the log also has: {'; '.join(match.beside)}"
    if match.source.overlay and not answer.possible and (several or match.kind is not MatchKind.LINE):
        yield f"what it mends: {match.source.overlay.overlay.summary}"
    yield answer.do
    if elsewhere:
        yield address(elsewhere.link)


def address(link: str) -> str:
    """Return where a link of `elsewhere` leads: itself, or a page of the documentation."""
    if link.startswith("https://"):
        return link
    return f"{project_url('Documentation')}/{link}"


@click.command(
    "find",
    epilog=examples(
        "find \"invalid literal for int() with base 10: 'sliding_window'\"",
        "find answers are garbage",
        "find 39931",
        "find - --tree .venv < server.log",
    ),
)
@click.argument("text", nargs=-1, metavar="TEXT [TREE]")
@reported
@click.option("--tree", metavar="TREE", type=PathType(), help="The vLLM whose state is shown.")
@click.option("--python", type=PathType(), metavar="PY", help="The vLLM that this interpreter imports.")
@with_project
def find_command(text: tuple[str, ...], tree: Path | None, python: Path | None) -> Report:
    """Find the overlay or the page for an error line or a symptom.

    TEXT is a line of a log, some words, the id of an overlay, or a pull request by its number or address. A file is
    read as a log; `-` reads one, or a line, from standard input. In an error line, paths, numbers, addresses and quotes
    do not matter. If the last word is a folder with a vLLM, it is not searched for, but is TREE, as with --tree.

    An answer shows the known error line that TEXT has, the overlay's state in your vLLM, and what to do. If several
    overlays have the line, the first is one that your vLLM lacks. A line with many causes names the overlays that mend
    some of them, each with its condition, and advice. If nothing is known, the exit code is 1.
    """
    if tree and python:
        raise click.UsageError("--tree and --python name two trees: leave one out")
    text, tree, taken = parted(text, tree, python)
    pasted, note = given(text)
    index = Index(discover())
    found = index.find(pasted) if isinstance(pasted, str) else logs.known_in(index, pasted)
    ids = tuple(dict.fromkeys(one.source.overlay.id for one in found if one.source.overlay))
    target = Target(tree, python, Selection(()), verbose=False, sources=source_words(), project=project().file)
    place, verdicts = _judged(target, ids)
    answers = answered(found, verdicts, target)
    absent = "no vLLM was found here, so no state is shown: name its folder by --tree, to see what to apply"
    notes = [*taken, *note, *([absent] if ids and place is None else [])]
    more = {"tree": place, "verdicts": verdicts, "notes": notes, "failed": not answers}
    said = outcome(answers, target) if answers else _unknown(pasted, target, text)
    return FindReport(answers=answers, outcome=said, **more)  # type: ignore[arg-type]


def _judged(target: Target, ids: tuple[str, ...]) -> tuple[Tree | None, Sequence[Verdict]]:
    """Find the vLLM and the states of overlays in it; without a vLLM that the user named, there may be none."""
    try:
        tree = target.find()
    except Failure:
        introduce_project()
        if target.path or target.python:
            raise
        return None, ()
    return tree, api.status(tree, Selection(ids)).overlays if ids else ()


def answered(found: Sequence[KnownMatch], verdicts: Sequence[Verdict], target: Target) -> list[FindAnswer]:
    """Return the answers: what is certain, what is possible, and advice; what is ready to apply first."""
    answers = [_answer(match, verdicts, target) for match in found]
    place = {state: number for number, state in enumerate(_ORDER)}
    return sorted(answers, key=lambda one: (_rank(one), place.get(one.state or _ORDER[0], 0)))


def _rank(answer: FindAnswer) -> int:
    if answer.match.source.overlay is None:
        return 3
    if answer.possible:
        return 2 if answer.state in LACKED else 4
    return int(answer.match.kind is MatchKind.PART)


def _answer(match: KnownMatch, verdicts: Sequence[Verdict], target: Target) -> FindAnswer:
    item, elsewhere = match.source.overlay, match.source.elsewhere
    if item is None:
        return FindAnswer(match, None, elsewhere.advice if elsewhere else "")
    option = "--with" if item.overlay.opt_in else "--overlay"
    show = target.command("show", item.id)
    verdict = next((one for one in verdicts if one.id == item.id), None)
    if verdict is None:
        return FindAnswer(match, None, show)
    part = next((one.state for one in verdict.parts if one.name == match.source.part), None)
    state = part or verdict.state
    match state:
        case State.PENDING:
            # The nearest symptom, and one that shares a single word, need not be the user's.
            unsure = match.lacks or (match.kind is MatchKind.SYMPTOM and match.words == 1)
            do = show if unsure else target.command("apply", option, item.id)
        case _ if state in MISFITS:
            do = f"it does not fit this vLLM: {target.command('status', '-v', '--overlay', item.id)}"
        case _ if match.kind is MatchKind.MENTION:
            do = _MENTIONED[state]
        case State.APPLIED:
            do = f"it is applied: if the line is newer, see why by {target.command('doctor')}"
        case _:
            do = "this vLLM has nothing of it: the line is of another vLLM, or has another cause"
    return FindAnswer(match, state, do)


_MENTIONED = {
    State.APPLIED: "it is applied",
    State.MERGED: "this vLLM has the change",
    State.NOT_APPLICABLE: "this vLLM has neither the feature nor the defect",
}


def outcome(answers: Sequence[FindAnswer], target: Target) -> str:
    """Return the last line."""
    own = [one for one in answers if one.match.source.overlay]
    sure = [*dict.fromkeys(one.name for one in own if not one.possible)]
    perhaps = [*dict.fromkeys(one.name for one in own if one.possible and one.state in LACKED)]
    advice = len(own) < len(answers)
    if not own:
        return "No overlay is known for this alone: follow the advice."
    if not sure and not perhaps:
        return "This line has many causes. Your vLLM lacks no overlay that is known for it: follow the advice."
    number = len(sure or perhaps)
    shows = f"{target.command('show', (sure or perhaps)[0])} explains {'it' if number == 1 else 'the first'}."
    if not sure:
        what = f"{counted(number, 'overlay')} {'mends' if number == 1 else 'mend'} one of them"
        return f"This line has many causes; {what}, under the condition shown. {shows}"
    if any(one.match.known == one.name for one in own):
        return f"This is an overlay. {shows}"
    if all(one.match.kind is MatchKind.MENTION for one in own):
        return f"{counted(number, 'overlay')} {'mentions' if number == 1 else 'mention'} this. {shows}"
    rows = {(one.match.row, one.match.seen) for one in own if not one.possible}
    apart = " They share words: what each mends tells them apart." if number > len(rows) else ""
    lacks = "No symptom has all of these words. " if all(one.match.lacks for one in own) else ""
    what = f"{counted(number, 'overlay')} known for {'this' if len(rows) == 1 else 'these lines'}"
    return f"{lacks}{what}{', besides the advice' if advice else ''}. {shows}{apart}"


def _unknown(text: str | logs.Tail, target: Target, words: Sequence[str]) -> str:
    if isinstance(text, logs.Tail) or "\n" in text.strip():
        log = next(filter(os.path.isfile, words), "")  # false, too, where a text is no path
        also = f" {target.command('doctor', '--log', log)} lists what its server may need." if log else ""
        return f"No error line is known in this log. Wrong answers and hangs leave none: {logs.silent()}.{also}"
    if not text.strip():
        return "There is no text to search for."
    looks, asked = f"{target.command('doctor')} looks at your vLLM", references(text)
    what = f"No overlay mentions {listed(asked)}" if asked else "Nothing is known of this"
    return f"{what}. {command('list')} has all overlays, {looks}."
