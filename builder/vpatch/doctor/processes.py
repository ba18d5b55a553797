"""Processes of this machine that run this vLLM, and whether they run the overlays that it has. Linux's /proc only."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vpatch.doctor.findings import Finding, Level, unreadable
from vpatch.doctor.subject import Subject
from vpatch.errors import Failure, UnknownName
from vpatch.processes import there_is_proc
from vpatch.processes.servers import Receipt, Server, servers, wrong

_UNSURE = "a process of another user runs this vLLM or another one"


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield the processes that run this vLLM, and whether they run the code from before a change."""
    if subject.changed_at is None or not there_is_proc():
        return
    found = [finding for one in servers() for finding in _finding(subject, one, subject.changed_at)]
    yield from found
    if not found:
        others = "" if os.geteuid() == 0 else "; of other users, vpatch sees only the command lines"
        yield Finding("process", Level.OK, f"no process runs this vLLM{others}")


def _finding(subject: Subject, one: Server, changed_at: float) -> Iterator[Finding]:
    prefix = subject.python.prefix.resolve() if subject.python else None
    try:
        if one.runs(subject.tree.root, prefix) is not False:
            yield _claimed(one, one.receipt) if one.receipt else _timed(one, changed_at)
    except (OSError, UnknownName):  # it ended
        return
    except Failure as failure:
        yield from map(unreadable, failure.problems)


def _claimed(one: Server, receipt: Receipt) -> Finding:
    """Return what a process with a receipt runs: it compared its files when it was started, whenever that was."""
    if problems := wrong(one):
        what = f"a process runs other code than it claims: {problems[0].where}: {problems[0].cause}"
        return Finding("process", Level.PROBLEM, what, _where(one), "restart it")
    way = "with the overlays" if receipt.farm is None else "with overlays by `vpatch run`"
    return Finding("process", Level.OK, f"a process runs this vLLM {way}, as its receipt claims", _where(one))


def _timed(one: Server, changed_at: float) -> Finding:
    """Return what a process without a receipt runs, by the time of its start."""
    if one.process.started_at >= changed_at:
        what = _UNSURE if one.closed else "a process runs this vLLM with the overlays"
        return Finding("process", Level.NOTE if one.closed else Level.OK, what, _where(one))
    if one.closed:
        what = f"{_UNSURE}, since before the overlays were applied"
        return Finding("process", Level.WARNING, what, _where(one), "if it uses this vLLM, restart it")
    what = "a process runs this vLLM since before the overlays were applied: it has the old code"
    return Finding("process", Level.PROBLEM, what, _where(one), "restart it")


def _where(one: Server) -> tuple[str]:
    return (f"process {one.process.id}: {one.process.shown}",)
