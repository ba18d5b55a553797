"""Compiled code from before overlays were applied, and whether vLLM can still use it.

vLLM keeps compiled models in `torch_compile_cache`. Without ahead-of-time compilation, the name of an entry is a hash
of the settings and of every source file that torch.compile traced (`VllmBackend.__call__` in
`vllm/compilation/backends.py`). With it, the entry keeps the text of these files, and vLLM compares them before it uses
the entry (`_verify_source_unchanged` in `vllm/compilation/decorators.py`). vLLM 0.18 to 0.33 do both. So a changed file
that is traced leads to a new compilation. A changed file that is not traced, such as one that sets up layers before the
first forward pass, does not.

Triton's key of a kernel is a hash of its source and of the functions that it calls, Inductor's that of a graph.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from vpatch.doctor.findings import Finding, Level, command
from vpatch.doctor.subject import Subject

_DEPTH = 4  # an entry, a rank, a part of the model, a file


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield the caches of this user that hold entries from before overlays were applied."""
    if subject.changed_at is None:
        return
    compiled = _vllm_root() / "torch_compile_cache"
    aot = compiled / "torch_aot_compile"
    models = [*_old(aot, subject.changed_at), *(one for one in _old(compiled, subject.changed_at) if one != aot)]
    if models:
        what = (
            "compiled models are older than the overlays; vLLM compiles one again if a file that it traced changed, "
            "but does not notice a change in other files"
        )
        do = f"if the server still behaves as without overlays: {command('rm', '-r', compiled)}"
        yield Finding("compile-cache", Level.NOTE, what, tuple(map(str, models)), do)
    for name, folder in _kernels():
        if next(_old(folder, subject.changed_at), None):
            what = f"{name}'s kernels from before the overlays need no removal: a changed kernel gets a new entry"
            yield Finding("kernel-cache", Level.OK, what, (str(folder),))
    if not models:
        yield Finding("compile-cache", Level.OK, "no compiled model is older than the overlays", (str(compiled),))


def _vllm_root() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("VLLM_CACHE_ROOT") or f"{home}/vllm").expanduser()


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
    """Yield the entries of a cache in which everything is older than a time."""
    return (entry for entry in _entries([folder]) if _is_old(entry, before))


def _is_old(entry: Path, before: float) -> bool:
    # vLLM writes a model into folders of its entry, by rank and by part, and leaves the entry's own time as it is.
    level = [entry]
    for _ in range(_DEPTH):
        if any(_time(path) >= before for path in level):
            return False
        level = list(_entries(level))
    return True


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
