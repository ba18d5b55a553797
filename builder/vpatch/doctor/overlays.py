"""The state of each overlay, and what `vpatch verify` finds wrong with the files that overlays changed."""

from __future__ import annotations

from collections.abc import Iterator

from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import MISFITS, State
from vpatch.doctor.subject import Finding, Level, Subject, unreadable
from vpatch.errors import Code, Problem, shell

_NAMES = {
    **dict.fromkeys((Code.RECORD_UNTRUE, Code.RECORD_UNLISTED, Code.FILE_MISSING, Code.NO_RECORD), "record"),
    Code.EDITED: "edited",
    Code.STALE_BYTECODE: "bytecode",
    Code.NO_PYTHON: "syntax",
    **dict.fromkeys((Code.UNKNOWN_MARK, Code.UNKNOWN_OVERLAY), "mark"),
    Code.PROVENANCE: "provenance",
}
_WORDS = {
    Code.RECORD_UNTRUE: "the file differs from its row in RECORD",
    Code.RECORD_UNLISTED: "RECORD does not list the file: uninstalling vLLM would leave it behind",
    Code.FILE_MISSING: "a file that RECORD lists is missing",
    Code.NO_RECORD: "there is no RECORD, which lists vLLM's files",
    Code.STALE_BYTECODE: "stale bytecode: Python would run it instead of the source beside it",
}


def states(subject: Subject) -> Iterator[Finding]:
    """Yield each overlay that does not fit or is half applied, then the others by state."""
    rest, edited = dict[State, list[str]](), dict[Problem, list[str]]()
    for verdict in subject.verified.overlays:
        if verdict.state in MISFITS and verdict.problems:
            first = verdict.problems[0]
            if first.code is Code.EDITED:
                edited.setdefault(first, []).append(verdict.id)
                continue
            what = f"{verdict.id} does not fit this vLLM: {first.cause.splitlines()[0]}"
            do = subject.commands.command("status", "-v", "--overlay", verdict.id)
            yield Finding("overlay", Level.PROBLEM, what, (_place(first),), do)
        elif verdict.id in subject.marked and verdict.state is not State.APPLIED:
            what = f"{verdict.id} is half applied: {verdict.because}"
            yield Finding("overlay", Level.PROBLEM, what, subject.marked[verdict.id], subject.commands.again("apply"))
        else:
            rest.setdefault(verdict.state, []).append(verdict.id)
    for one, names in edited.items():  # a module that does not compile is one problem for all overlays in it
        what = f"edited after vpatch, in code of {', '.join(names)}: {one.cause.splitlines()[0]}"
        yield Finding("overlay", Level.PROBLEM, what, (_place(one),), one.hint)
    commands, pending = subject.commands, rest.get(State.PENDING)
    if pending:
        chosen = [word for name in pending for word in ("--overlay", name)]
        do = commands.again("apply") if subject.fits else commands.command("apply", *chosen)
        level = Level.PROBLEM if subject.named.intersection(pending) else Level.NOTE
        yield Finding("overlay", level, f"ready to apply, but not applied: {', '.join(pending)}", do=do)
    if applied := rest.get(State.APPLIED):
        yield Finding("overlay", Level.OK, f"applied: {', '.join(applied)}")
    if unneeded := [name for state in (State.MERGED, State.NOT_APPLICABLE) for name in rest.get(state, ())]:
        yield Finding("overlay", Level.OK, f"nothing to change in this vLLM: {', '.join(unneeded)}")


def _place(problem: Problem) -> str:
    return f"{problem.where} ({problem.scope})" if problem.scope else problem.where


def unapplied(subject: Subject) -> list[Catalogued]:
    """Return the overlays that are ready to apply, and of which nothing is in this vLLM."""
    states = {verdict.id: verdict.state for verdict in subject.verified.overlays}
    return [item for item in subject.overlays if states.get(item.id) is State.PENDING and item.id not in subject.marked]


def faults(subject: Subject) -> Iterator[Finding]:
    """Yield what is wrong with changed files, and a run of vpatch that did not end."""
    # The states say the rest already.
    known = {problem for verdict in subject.verified.overlays for problem in verdict.problems}
    states = (Code.NOT_APPLIED, Code.NOTHING_TO_VERIFY)
    found = [one for one in subject.verified.problems if one not in known and one.code not in states]
    for problem in found:
        if name := _NAMES.get(problem.code):
            reason = problem.cause if problem.code is Code.EDITED else problem.reason
            what = _WORDS.get(problem.code, f"{problem.what}: {reason}")
            yield Finding(name, Level.PROBLEM, what, (problem.where,), _cure(subject, problem))
        else:
            yield unreadable(problem)
    if subject.kept.unclean and not subject.kept.broken:
        do = f"complete it: {subject.commands.again('apply')}"
        yield Finding("unfinished", Level.PROBLEM, "a run of vpatch was interrupted, or is under way", do=do)
    elif subject.marked and not found:
        yield Finding("files", Level.OK, "the files that overlays changed are complete")


def _cure(subject: Subject, problem: Problem) -> str:
    """Return what makes a problem go away: `apply` heals RECORD and bytecode, but only if every overlay fits."""
    again = subject.commands.again("apply")
    where = problem.where
    match problem.code:
        case Code.EDITED | Code.RECORD_UNTRUE | Code.FILE_MISSING if problem.hint:
            return problem.hint
        case Code.RECORD_UNTRUE | Code.RECORD_UNLISTED | Code.FILE_MISSING | Code.STALE_BYTECODE if subject.fits:
            return f"remove it: {shell('rm', subject.tree.root / where)}" if subject.is_checkout else again
        case Code.UNKNOWN_MARK:
            return "install the package of that overlay, or reinstall vLLM"
        case Code.UNKNOWN_OVERLAY:
            return f"install the package of that overlay, or remove all: {subject.commands.command('revert')}"
        case _:
            return f"reinstall vLLM, then {again}"
