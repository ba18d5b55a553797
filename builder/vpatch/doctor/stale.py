"""What is older than the overlays: compiled code that vLLM may still use, and processes that run this vLLM.

vLLM keeps compiled models in `torch_compile_cache`. Without ahead-of-time compilation, the name of an entry is a hash
of the settings and of every source file that torch.compile traced (`VllmBackend.__call__` in
`vllm/compilation/backends.py`). With it, the entry keeps the text of these files, and vLLM compares them before it uses
the entry (`_verify_source_unchanged` in `vllm/compilation/decorators.py`). vLLM 0.18 to 0.33 do both. So a changed file
that is traced leads to a new compilation. A changed file that is not traced, such as one that sets up layers before the
first forward pass, does not.

Triton's key of a kernel is a hash of its source and of the functions that it calls, Inductor's that of a graph.

Processes are seen by Linux's /proc only.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from vpatch.doctor.subject import Finding, Level, Subject, unreadable
from vpatch.errors import Failure, UnknownName, shell
from vpatch.processes import there_is_proc
from vpatch.processes.servers import Receipt, Server, servers, wrong

_DEPTH = 4  # an entry, a rank, a part of the model, a file
_RUNS = "a process runs this vLLM"


def caches(subject: Subject) -> Iterator[Finding]:
    """Yield the caches of this user that hold entries from before overlays were applied."""
    if subject.changed_at is None:
        return
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(os.environ.get("VLLM_CACHE_ROOT") or f"{home}/vllm").expanduser()
    compiled = root / "torch_compile_cache"
    aot = compiled / "torch_aot_compile"
    models = [*_old(aot, subject.changed_at), *(one for one in _old(compiled, subject.changed_at) if one != aot)]
    if models:
        what = (
            "compiled models are older than the overlays; vLLM compiles one again if a file that it traced changed, "
            "but does not notice a change in other files"
        )
        do = f"if the server still behaves as without overlays: {shell('rm', '-r', compiled)}"
        yield Finding("compile-cache", Level.NOTE, what, tuple(map(str, models)), do)
    for name, folder in _kernels():
        if next(_old(folder, subject.changed_at), None):
            what = f"{name}'s kernels from before the overlays need no removal: a changed kernel gets a new entry"
            yield Finding("kernel-cache", Level.OK, what, (str(folder),))
    if not models:
        yield Finding("compile-cache", Level.OK, "no compiled model is older than the overlays", (str(compiled),))


def _kernels() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("TRITON_HOME") or "~"
    yield "Triton", Path(os.environ.get("TRITON_CACHE_DIR") or f"{home}/.triton/cache").expanduser()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        user = ""
    default = f"{tempfile.gettempdir()}/torchinductor_{user}"
    yield "Inductor", Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default)


def _old(folder: Path, before: float) -> Iterator[Path]:
    """Yield the entries of a cache in which everything is older than a time.

    vLLM writes a model into folders of its entry, by rank and by part, and leaves the entry's own time as it is.
    """
    for entry in _entries([folder]):
        level, is_old = [entry], True
        for _ in range(_DEPTH):
            is_old = is_old and all(_time(path) < before for path in level)
            level = list(_entries(level)) if is_old else []
        if is_old:
            yield entry


def _entries(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        try:
            yield from sorted(folder.iterdir())
        except OSError:  # a file, gone, or another user's
            continue


def _time(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0


def processes(subject: Subject) -> Iterator[Finding]:
    """Yield the processes that run this vLLM, and whether they run the code from before a change."""
    if subject.changed_at is None or not there_is_proc():
        return
    prefix = subject.python.prefix.resolve() if subject.python else None
    found = False
    for one in servers():
        try:
            if one.runs(subject.tree.root, prefix) is not False:
                yield _claimed(one, one.receipt) if one.receipt else _timed(one, subject.changed_at)
                found = True
        except (OSError, UnknownName):  # it ended
            continue
        except Failure as failure:
            yield from map(unreadable, failure.problems)
            found = True
    if not found:
        others = "" if os.geteuid() == 0 else "; of other users, vpatch sees only the command lines"
        yield Finding("process", Level.OK, f"no process runs this vLLM{others}")


def _claimed(one: Server, receipt: Receipt) -> Finding:
    """Return what a process with a receipt runs: it compared its files when it was started, whenever that was."""
    if problems := wrong(one):
        what = f"a process runs other code than it claims: {problems[0].where}: {problems[0].cause}"
        return _of(one, Level.PROBLEM, what, "restart it")
    way = "with the overlays" if receipt.farm is None else "with overlays by `vpatch run`"
    return _of(one, Level.OK, f"a process runs this vLLM {way}, as its receipt claims")


def _timed(one: Server, changed_at: float) -> Finding:
    """Return what a process without a receipt runs, by the time of its start."""
    unsure = "a process of another user runs this vLLM or another one"
    if one.process.started_at >= changed_at:
        return _of(one, Level.NOTE, unsure) if one.closed else _of(one, Level.OK, f"{_RUNS} with the overlays")
    if one.closed:
        what = f"{unsure}, since before the overlays were applied"
        return _of(one, Level.WARNING, what, "if it uses this vLLM, restart it")
    what = f"{_RUNS} since before the overlays were applied: it has the old code"
    return _of(one, Level.PROBLEM, what, "restart it")


def _of(one: Server, level: Level, what: str, do: str = "") -> Finding:
    return Finding("process", level, what, (f"process {one.process.id}: {one.process.shown}",), do)
