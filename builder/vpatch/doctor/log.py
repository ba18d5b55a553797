"""The known error lines in a server's log, each with the overlay that mends it, or with what else helps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import MISFITS, State
from vpatch.doctor.subject import Finding, Level, Subject
from vpatch.errors import naming
from vpatch.known import logs
from vpatch.known.index import LACKED, Index, KnownMatch, MatchKind

_MIB = 1 << 20


def read(path: Path) -> logs.Tail:
    """Read the end of a log; `-` is standard input.

    Raises:
        Failure: it cannot be read.
    """
    with naming("cannot read", str(path)):
        if str(path) == "-":
            return logs.tail(sys.stdin.buffer)
        with path.open("rb") as stream:
            return logs.tail(stream)


def findings(subject: Subject, log: logs.Tail) -> Iterator[Finding]:
    """Yield a finding for each overlay and each other cause whose line the log has, and what was not read."""
    found = logs.known_in(Index(subject.overlays), log)
    for match in found:
        if match.kind is MatchKind.POSSIBLE:
            yield from _possible(subject, match)
        else:
            yield _finding(subject, match)
    searched = f"the last {log.read // _MIB} of its {log.size // _MIB} MiB" if log.read < log.size else "the log"
    if not found:
        level = Level.NOTE if log.read < log.size else Level.OK
        what = f"no known error line in {searched}; wrong answers and hangs leave none"
        yield Finding("log", level, what, do=logs.silent())
    elif log.read < log.size:
        yield Finding("log", Level.NOTE, f"only {searched} were searched")


def _finding(subject: Subject, match: KnownMatch) -> Finding:
    item, elsewhere, seen = match.source.overlay, match.source.elsewhere, (match.seen, *match.beside)
    if item is None:
        return Finding("log", Level.WARNING, match.known, seen, elsewhere.advice if elsewhere else "")
    state = _state(subject, match)
    match state:
        case None:
            do = subject.commands.command("apply", "--with", item.id)
            return Finding("log", Level.WARNING, f"{item.id}{_unseen(item)} mends this line of the log", seen, do)
        case State.PENDING:
            do = subject.commands.command("apply", "--overlay", item.id)
            return Finding("log", Level.PROBLEM, f"{item.id}, not applied, mends this line of the log", seen, do)
        case State.APPLIED:
            do = "if the log is newer, another vLLM may have written it"
            return Finding("log", Level.WARNING, f"{item.id} mends this line of the log, and is applied", seen, do)
        case _ if state in MISFITS:
            do = subject.commands.command("status", "-v", "--overlay", item.id)
            what = f"{item.id} mends this line of the log, and does not fit this vLLM"
            return Finding("log", Level.PROBLEM, what, seen, do)
        case _:
            what = f"{item.id} is known for this line of the log, and this vLLM has nothing of it"
            return Finding("log", Level.WARNING, what, seen, "another vLLM may have written the log")


def _possible(subject: Subject, match: KnownMatch) -> Iterator[Finding]:
    """Yield a finding for an overlay that may mend a line with many causes, unless this vLLM lacks nothing of it."""
    item, state = match.source.overlay, _state(subject, match)
    if item is None or state not in LACKED:
        return
    if state in MISFITS:
        do = subject.commands.command("status", "-v", "--overlay", item.id)
    else:
        do = subject.commands.command("apply", "--with" if state is None else "--overlay", item.id)
    known = {None: _unseen(item), State.PENDING: ", not applied,"}
    about = known.get(state, ", which does not fit this vLLM,")
    what = f"{item.id}{about} mends this line of the log, if: {match.condition}"
    yield Finding("log", Level.WARNING, what, (match.seen,), do)


def _unseen(item: Catalogued) -> str:
    return ", which is opt-in," if item.overlay.opt_in else ", which is not selected,"


def _state(subject: Subject, match: KnownMatch) -> State | None:
    """Return the state of the overlay of a match, or of its part; None if it is not selected."""
    name = match.source.overlay.id if match.source.overlay else ""
    verdict = next((one for one in subject.verified.overlays if one.id == name), None)
    parts = {part.name: part.state for part in verdict.parts} if verdict else {}
    return parts.get(match.source.part, verdict.state) if verdict else None
