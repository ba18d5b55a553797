"""Processes of this machine that run this vLLM, and that started before overlays were applied. Linux's /proc only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vpatch.doctor.findings import Finding, Level
from vpatch.doctor.subject import Subject
from vpatch.processes import Process, names_vllm, running, there_is_proc

_UNSURE = "a process of another user runs this vLLM or another one"


@dataclass(frozen=True)
class _Found:
    process: Process
    started: float  # in seconds since the epoch
    sure: bool  # whether it surely runs this vLLM, and not another one


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield the processes that run this vLLM, and whether they run the code from before a change."""
    if subject.changed_at is None or not there_is_proc():
        return
    found = list(_processes(subject))
    for one in found:
        where = (f"process {one.process.id}: {one.process.shown}",)
        if one.started >= subject.changed_at:
            what = "a process runs this vLLM with the overlays" if one.sure else _UNSURE
            yield Finding("process", Level.OK if one.sure else Level.NOTE, what, where)
        elif one.sure:
            what = "a process runs this vLLM since before the overlays were applied: it has the old code"
            yield Finding("process", Level.PROBLEM, what, where, "restart it")
        else:
            what = f"{_UNSURE}, since before the overlays were applied"
            yield Finding("process", Level.WARNING, what, where, "if it uses this vLLM, restart it")
    if not found:
        others = "" if os.geteuid() == 0 else "; of other users, vpatch sees only the command lines"
        yield Finding("process", Level.OK, f"no process runs this vLLM{others}")


def _processes(subject: Subject) -> Iterator[_Found]:
    started = _boot()
    for process in running():
        try:
            fields = (process.folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            sure = _runs(subject, process)
        except OSError:  # it ended
            continue
        if sure is not False:
            at = started + int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of the line, see proc(5)
            yield _Found(process, at, bool(sure))


def _boot() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _runs(subject: Subject, process: Process) -> bool | None:
    """Whether a process runs this vLLM; None if it runs one, and the system does not show which.

    Compiled extensions of vLLM are among the files that a process has mapped. A vLLM without them shows only in the
    command line, together with a program or a mapped file of the environment.
    """
    root, named = subject.tree.root, names_vllm(process.words)
    try:
        maps = process.maps
    except PermissionError:
        return None if named else False
    if f" {root}/vllm/" in maps:
        return True
    prefixes = {root, *([subject.python.prefix.resolve()] if subject.python else [])} - {Path("/"), Path("/usr")}
    if any(f" {prefix}/" in maps for prefix in prefixes):
        return named
    # The interpreter of a virtual environment is a link to one outside of it: only its folder is resolved.
    words = process.words[:2] if named else ()
    called = [(process.folder / "cwd").readlink().joinpath(word).parent.resolve() for word in words]
    return any(path.is_relative_to(prefix) for path in called for prefix in prefixes)
