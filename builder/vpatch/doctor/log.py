"""The known error lines in a server's log, each with the overlay that mends it, or with what else helps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from vpatch.core.verdict import MISFITS, State
from vpatch.doctor.subject import Finding, Level, Subject
from vpatch.errors import naming
from vpatch.known import logs
from vpatch.known.index import Index, KnownMatch

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
        yield _finding(subject, match)
    searched = f"the last {log.read // _MIB} of its {log.size // _MIB} MiB" if log.read < log.size else "the log"
    if not found:
        yield Finding("log", Level.NOTE if log.read < log.size else Level.OK, f"no known error line in {searched}")
    elif log.read < log.size:
        yield Finding("log", Level.NOTE, f"only {searched} were searched")


def _finding(subject: Subject, match: KnownMatch) -> Finding:
    item, elsewhere, seen = match.source.overlay, match.source.elsewhere, (match.seen,)
    if item is None:
        return Finding("log", Level.WARNING, match.known, seen, elsewhere.advice if elsewhere else "")
    verdict = next((one for one in subject.verified.overlays if one.id == item.id), None)
    parts = {part.name: part.state for part in verdict.parts} if verdict else {}
    state = parts.get(match.source.part, verdict.state) if verdict else None
    match state:
        case None:
            do = subject.commands.command("apply", "--with", item.id)
            return Finding("log", Level.WARNING, f"{item.id}, which is opt-in, mends this line of the log", seen, do)
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
