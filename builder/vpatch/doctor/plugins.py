"""Plugins of vLLM: code of other packages that vLLM runs in each of its processes. They are read, not imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, EntryPoint
from itertools import islice
from pathlib import Path

from vpatch.doctor.findings import Finding, Level
from vpatch.doctor.subject import Subject
from vpatch.foreign import opened_regular, read_regular
from vpatch.guest.ask import module_of
from vpatch.tree.interpreter import Interpreter
from vpatch.tree.sites import editable_source

_GROUPS = ("vllm.general_plugins", "vllm.platform_plugins")
_WRITES = re.compile(
    rb"\.write_(text|bytes)\(|open\([^)\n]{0,200},\s{0,99}(mode\s{0,9}=\s{0,9})?['\"][wax]b?\+?['\"]|\bos\.(replace|rename)\(|shutil\.(copy|move)"
)
_MOST_FILES, _MOST_BYTES = 2_000, 1 << 20  # of one plugin, and of one file


class _Installed(Distribution):
    """What `importlib.metadata` knows of a package, whose metadata may be anything, such as a pipe."""

    def __init__(self, info: Path) -> None:
        self._info = info

    def read_text(self, filename: str) -> str | None:
        """Return the text of a file of its metadata; None if it cannot be read."""
        try:
            return read_regular(self._info / filename).decode()
        except (OSError, ValueError):
            return None

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        """Return the path of one of its files."""
        return self._info.parent / path


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield the plugins of other packages, and the selection in `VLLM_PLUGINS`."""
    selected = os.environ.get("VLLM_PLUGINS")
    if selected is not None:
        which = f"vLLM loads only the plugins {selected}" if selected else "vLLM loads no plugin"
        what = f"VLLM_PLUGINS is set in this shell: {which}"
        yield Finding("plugins-selected", Level.NOTE, what, do="see whether your server has the same setting")
    if subject.python is None:
        return
    found = list(_plugins(subject, subject.python))
    for owner, point in found:
        yield _plugin(subject, subject.python, owner, point)
    if not found:
        yield Finding("plugin", Level.OK, "no other package has a plugin for vLLM")


def _plugins(subject: Subject, python: Interpreter) -> Iterator[tuple[Distribution, EntryPoint]]:
    own = (subject.tree.dist_info or "").partition("-")[0]
    seen = {own}
    infos = (info for path in python.paths for kind in ("dist", "egg") for info in sorted(path.glob(f"*.{kind}-info")))
    for distribution in map(_Installed, infos):
        try:
            points = [point for point in distribution.entry_points if point.group in _GROUPS]
            name = re.sub(r"[-_.]+", "_", distribution.metadata["Name"]).lower() if points else ""
        except (ValueError, LookupError, TypeError):  # damaged metadata, which vLLM could not read either
            continue
        # A package may be in two folders of the path; Python takes the first.
        if points and name not in seen:
            seen.add(name)
            yield from ((distribution, point) for point in points)


def _plugin(subject: Subject, python: Interpreter, owner: Distribution, point: EntryPoint) -> Finding:
    source = _source(subject, python, owner, point.value.partition(":")[0].strip())
    name = f"{point.name} ({point.value}) of {owner.metadata['Name']} {owner.version}"
    where = (str(source),) if source else ()
    writes, files, modules = _looked_at(source, sorted(subject.overlay_files)) if source else (False, [], [])
    do = "to rule it out, start the server without plugins: `VLLM_PLUGINS= vllm serve ...`"
    if writes and files:
        what = f"the plugin {name} writes files and names {_some(files)}, which overlays change: it may rewrite them"
        return Finding("plugin", Level.WARNING, what, where, do)
    if modules:
        what = f"the plugin {name} names {_some(modules)}, which overlays change: it may replace functions in memory"
        return Finding("plugin", Level.WARNING, what, where, do)
    what = f"the plugin {name} runs in every process of vLLM"
    return Finding("plugin", Level.NOTE, what if source else f"{what}; its code was not found", where)


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and others"


def _source(subject: Subject, python: Interpreter, owner: Distribution, module: str) -> Path | None:
    """Find the folder or file of a plugin's package without importing it; None if it cannot be found."""
    parts = module.split(".")
    # A patcher may put its package into vLLM's own.
    top = Path(*parts[:2]) if parts[0] == "vllm" else Path(parts[0])
    edited = editable_source(owner.read_text("direct_url.json"))
    for base in [*python.paths, subject.tree.root, *([edited, edited / "src"] if edited else [])]:
        for path in (base / top, base / top.with_suffix(".py")):
            if path.exists():
                return path
    return None


def _looked_at(source: Path, files: Sequence[str]) -> tuple[bool, list[str], list[str]]:
    """Return whether a plugin writes files, and which files and modules that overlays change its code names."""
    text = b"\n".join(_texts(source))
    paths = [file for file in files if _names(text, file)]
    modules = [name for name in map(module_of, files) if re.search(rb"\b%s\b" % re.escape(name.encode()), text)]
    return bool(_WRITES.search(text)), paths, modules


def _texts(source: Path) -> Iterator[bytes]:
    paths = sorted(source.rglob("*.py")) if source.is_dir() else [source]
    for path in islice(paths, _MOST_FILES):
        try:
            with opened_regular(path) as file:
                yield os.pread(file, _MOST_BYTES, 0)
        except OSError:
            continue


def _names(text: bytes, file: str) -> bool:
    """Whether code names a file: as a path below vllm/, or as two names to join."""
    path = Path(file)
    joined = rb"['\"]%s['\"],?\s{0,99}/?\s{0,99}['\"]%s['\"]" % (
        re.escape(path.parent.name.encode()),
        re.escape(path.name.encode()),
    )
    return file.removeprefix("vllm/").encode() in text or bool(re.search(joined, text))
