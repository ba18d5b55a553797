"""Other code that changes vLLM: plugins, code that Python runs before vLLM, and folders that hold another vLLM.

A plugin is code of another package that vLLM runs in each of its processes. All is read, and nothing imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import Distribution, EntryPoint
from itertools import islice
from pathlib import Path

from vpatch.doctor.subject import Finding, Level, Subject, pythonpath
from vpatch.errors import shell
from vpatch.foreign import opened_regular, read_regular
from vpatch.guest.ask import module_of
from vpatch.tree.interpreter import Interpreter
from vpatch.tree.sites import editable_source

_GROUPS = ("vllm.general_plugins", "vllm.platform_plugins")
_WRITES = re.compile(
    rb"\.write_(text|bytes)\(|open\([^)\n]{0,200},\s{0,99}(mode\s{0,9}=\s{0,9})?['\"][wax]b?\+?['\"]|\bos\.(replace|rename)\(|shutil\.(copy|move)"
)
_MOST_FILES, _MOST_BYTES = 2_000, 1 << 20  # of one plugin, and of one file

_VLLM = re.compile(rb"\bvllm\b")
_IMPORT = re.compile(rb"^import[ \t]+([\w.]+)")  # of a `.pth` file, Python runs the lines that begin so


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


def plugins(subject: Subject) -> Iterator[Finding]:
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
    where, text = ((str(source),), b"\n".join(_texts(source))) if source else ((), b"")
    name = f"{point.name} ({point.value}) of {owner.metadata['Name']} {owner.version}"
    do = "to rule it out, start the server without plugins: `VLLM_PLUGINS= vllm serve ...`"
    files = sorted(subject.overlay_files)
    if _WRITES.search(text) and (named := [file for file in files if _names(text, file)]):
        what = f"the plugin {name} writes files and names {_some(named)}, which overlays change: it may rewrite them"
        return Finding("plugin", Level.WARNING, what, where, do)
    if named := [one for one in map(module_of, files) if re.search(rb"\b%s\b" % re.escape(one.encode()), text)]:
        what = f"the plugin {name} names {_some(named)}, which overlays change: it may replace functions in memory"
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


def _texts(source: Path) -> Iterator[bytes]:
    paths = sorted(source.rglob("*.py")) if source.is_dir() else [source]
    for path in islice(paths, _MOST_FILES):
        with suppress(OSError), opened_regular(path) as file:
            yield os.pread(file, _MOST_BYTES, 0)


def _names(text: bytes, file: str) -> bool:
    """Whether code names a file: as a path below vllm/, or as two names to join."""
    folder, name = (re.escape(part.encode()) for part in (Path(file).parent.name, Path(file).name))
    joined = rb"['\"]%s['\"],?\s{0,99}/?\s{0,99}['\"]%s['\"]" % (folder, name)
    return file.removeprefix("vllm/").encode() in text or bool(re.search(joined, text))


def startup(subject: Subject) -> Iterator[Finding]:
    """Yield start-up code that mentions vLLM, and every other vLLM that could be imported instead."""
    python = subject.python
    code = list(_startup_code(python)) if python else []
    for path, line in code:
        what = f"{line} runs when Python starts, and mentions vllm"
        do = "to rule it out, rename it, restart the server, and rename it back"
        yield Finding("startup", Level.WARNING, what, (str(path),), do)
    others = list(_others(subject, python))
    yield from others
    if python and not code and not others:
        yield Finding("startup", Level.OK, "no start-up code mentions vllm, and no search path has another one")


def _startup_code(python: Interpreter) -> Iterator[tuple[Path, str]]:
    for file in python.startup:
        if _VLLM.search(_read(file)):
            yield file, file.name
    for pth in sorted(path for site in python.sites if site.is_dir() for path in site.glob("*.pth")):
        if not re.search(r"(^|[._])vllm(-[^-]*)?\.pth$", pth.name):  # vLLM's own editable install
            for line in _read(pth).splitlines():
                if (found := _IMPORT.match(line)) and _VLLM.search(line + _module(python, found[1].decode())):
                    yield pth, f"`{line.decode('utf-8', 'replace')[:60]}`"


def _module(python: Interpreter, name: str) -> bytes:
    """Return the code of a module that a `.pth` file imports; empty if it is not found."""
    path = Path(*name.split("."))
    places = (base / file for base in python.paths for file in (path.with_suffix(".py"), path / "__init__.py"))
    return next((_read(place) for place in places if place.is_file()), b"")


def _read(file: Path) -> bytes:
    try:
        return read_regular(file)
    except OSError:
        return b""


def _others(subject: Subject, python: Interpreter | None) -> Iterator[Finding]:
    named, here = pythonpath(), Path.cwd()

    def is_other(folder: Path) -> bool:
        return (folder / "vllm/__init__.py").is_file() and folder.resolve() != subject.tree.root

    for folder in filter(is_other, named):
        what = "PYTHONPATH of this shell has another vLLM: a server that is started with it imports that one"
        do = "start the server with `env -u PYTHONPATH`"
        yield Finding("search-path", Level.WARNING, what, (str(folder),), do)
    for folder in filter(is_other, python.paths if python else ()):
        if folder not in named:
            what = "this folder, which Python searches, has another vLLM"
            do = f"{shell('vpatch', 'doctor', folder)} examines it; remove the one that you do not use"
            yield Finding("search-path", Level.NOTE, what, (str(folder),), do)
    if is_other(here):
        what = "the current folder has another vLLM: `python -m vllm...` and `python -c` import it when started here"
        do = "start the server in another folder, or with `vllm serve`"
        yield Finding("search-path", Level.WARNING, what, (str(here),), do)
