"""Processes of this machine that run this vLLM, and that started before overlays were applied. Linux's /proc only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from vpatch.doctor.findings import Finding, Level
from vpatch.doctor.subject import Subject

_PROC = Path("/proc")
_UNSURE = "a process of another user runs this vLLM or another one"


@dataclass(frozen=True)
class _Process:
    id: int
    started: float  # in seconds since the epoch
    shown: str  # its command line, shortened
    sure: bool  # whether it surely runs this vLLM, and not another one


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield the processes that run this vLLM, and whether they run the code from before a change."""
    if subject.changed_at is None or not (_PROC / "self/stat").exists():
        return
    found = list(_processes(subject))
    for process in found:
        where = (f"process {process.id}: {process.shown}",)
        if process.started >= subject.changed_at:
            what = "a process runs this vLLM with the overlays" if process.sure else _UNSURE
            yield Finding("process", Level.OK if process.sure else Level.NOTE, what, where)
        elif process.sure:
            what = "a process runs this vLLM since before the overlays were applied: it has the old code"
            yield Finding("process", Level.PROBLEM, what, where, "restart it")
        else:
            what = f"{_UNSURE}, since before the overlays were applied"
            yield Finding("process", Level.WARNING, what, where, "if it uses this vLLM, restart it")
    if not found:
        others = "" if os.geteuid() == 0 else "; of other users, vpatch sees only the command lines"
        yield Finding("process", Level.OK, f"no process runs this vLLM{others}")


def _processes(subject: Subject) -> Iterator[_Process]:
    started = _boot()
    for folder in sorted(_PROC.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0 ").split("\0")
            fields = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            sure = _runs(subject, words, folder)
        except OSError:  # it ended
            continue
        if sure is not False and int(folder.name) != os.getpid():
            at = started + int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of the line, see proc(5)
            shown = " ".join([*(Path(word).name for word in words[:2]), *words[2:]])
            yield _Process(int(folder.name), at, f"{shown[:60]}..." if len(shown) > 60 else shown, bool(sure))


def _boot() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _runs(subject: Subject, words: list[str], folder: Path) -> bool | None:
    """Whether a process runs this vLLM; None if it runs one, and the system does not show which.

    Compiled extensions of vLLM are among the files that a process has mapped. A vLLM without them shows only in the
    command line, together with a program or a mapped file of the environment.
    """
    root, named = subject.tree.root, _names_vllm(words)
    try:
        maps = (folder / "maps").read_text("utf-8", "surrogateescape")
    except PermissionError:
        return None if named else False
    if f" {root}/vllm/" in maps:
        return True
    prefixes = {root, *([subject.python.prefix.resolve()] if subject.python else [])} - {Path("/"), Path("/usr")}
    if any(f" {prefix}/" in maps for prefix in prefixes):
        return named
    # The interpreter of a virtual environment is a link to one outside of it: only its folder is resolved.
    called = [(folder / "cwd").readlink().joinpath(word).parent.resolve() for word in words[:2]] if named else []
    return any(path.is_relative_to(prefix) for path in called for prefix in prefixes)


def _names_vllm(words: list[str]) -> bool:
    """Whether a command line is that of vLLM: `vllm serve`, `python -m vllm...`, or a worker's `VLLM::EngineCore`."""
    first = Path(words[0]).name
    if first == "vllm" or first.startswith("VLLM::"):
        return True
    if not first.startswith("python"):
        return False
    for before, word in pairwise(words[:5]):
        if before == "-m":
            return word == "vllm" or word.startswith("vllm.")
        if not word.startswith("-"):
            return Path(word).name == "vllm"
    return False
