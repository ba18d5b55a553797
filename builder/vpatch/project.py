"""The project's file: which patch files and overlays a repository's vLLM gets.

It is `vpatch.toml`, or the table `[tool.vpatch]` of `pyproject.toml`, in the current folder or the nearest above it:

    patches = ["patches"]                # folders of patch files, or single ones, relative to the file
    with = ["receipt"]                   # also these overlays; `without` and `overlays` are as the options

    [require]                            # in pyproject.toml: [tool.vpatch.require]
    my-fix = "sha256:9f86d0..."          # the bytes that a patch file must have

Nothing in it is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from vpatch.core import sources
from vpatch.core.calls import file_of
from vpatch.core.catalogue import Selection, id_of
from vpatch.core.patch_file import SUFFIX
from vpatch.core.shapes import families, joined
from vpatch.core.sources import PatchBytes, Sources
from vpatch.errors import Failure, Problem, UnknownName, closest, collecting, naming, raise_all, shell
from vpatch.foreign import CODE_BYTES, TOML_BYTES, parse_toml, read_regular

OWN, SHARED = "vpatch.toml", "pyproject.toml"
_IGNORE = "--no-project ignores this file"
_LISTS = ("patches", "overlays", "with", "without")
_KEYS = (*_LISTS, "require")
_DIFFS = (".patch", ".diff", ".mbox", ".eml")
_PIN = re.compile("sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Project:
    """What the project's file and the user's `--patches` name.

    Attributes:
        file: the project's file, for people; "" without one.
        sources: the patch files.
        selection: the overlays that the file selects.
        named: the ids of the patch files that the user's `--patches` name.
    """

    file: str
    sources: Sources
    selection: Selection
    named: tuple[str, ...] = ()


@contextmanager
def patches(*places: str | os.PathLike[str]) -> Iterator[None]:
    """Let `vpatch.apply` and the like take patch files, too, during the block. No project's file is read.

        with vpatch.patches("patches"):
            vpatch.apply()

    Args:
        places: folders of patch files, or single ones.

    Raises:
        UnknownName: there is no such folder or file.
        Failure: a folder has no patch file, or one cannot be read.
    """
    with sources.using(opened([Path(place) for place in places], ignored=True).sources):
        yield


def opened(places: Sequence[Path], *, ignored: bool = False) -> Project:
    """Read the project's file, unless it is to be `ignored`, and all patch files.

    Args:
        places: folders of patch files, or single ones, which the user named.
        ignored: whether only `places` count.

    Raises:
        UnknownName: one of `places` does not exist.
        Failure: the project's file, or a patch file, cannot be read or has mistakes; lists all of them.
    """
    found = None if ignored else _found()
    file, table = found or (Path(), {})
    shown = _short(file) if found else ""
    problems = [Problem("bad project file", shown, cause, hint=_IGNORE) for cause in _mistakes(table, file.name)]
    raise_all(problems)
    files: list[Path] = []
    for place in table.get("patches", ()):
        with collecting(problems):
            files += _patch_files(file.parent / place, f"{shown}: patches")
    raise_all(problems)
    given = [file for place in places for file in _patch_files(place)]
    files += given
    unique: dict[str, Path] = {}  # a folder may be named twice, as by the project and by the user
    for path in files:
        unique.setdefault(os.path.realpath(path), path)
    kin = {folder: _families(folder) for folder in dict.fromkeys(path.parent for path in unique.values())}
    read = tuple(_read(path, kin[path.parent].get(path.name, ())) for path in unique.values())
    required = {name: pin.removeprefix("sha256:") for name, pin in table.get("require", {}).items()}
    overlays, also, without = (tuple(table.get(key, ())) for key in _LISTS[1:])
    named = {"overlays": overlays, "with": also, "without": without}
    selection = Selection(None, also, without, overlays if "overlays" in table else None)
    return Project(shown, Sources(read, shown, required, named), selection, tuple(id_of(str(one)) for one in given))


def _found() -> tuple[Path, dict[str, Any]] | None:
    """Return the nearest project's file, with its table; a repository ends the search."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the folder was removed
        return None
    for folder in (here, *here.parents):
        shared, own = _shared(folder / SHARED), folder / OWN
        if own.exists():
            if shared is not None:
                cause = f"{OWN} and [tool.vpatch] in {SHARED} are both there: keep one"
                raise Failure(Problem("two project files", str(folder), cause, hint="--no-project ignores them"))
            return own, _parsed(own)
        if shared is not None:
            return folder / SHARED, shared
        if (folder / ".git").exists():
            return None
    return None


def _shared(file: Path) -> dict[str, Any] | None:
    """Return the table of a pyproject.toml; None if it has none."""
    with naming("cannot read", _short(file), _IGNORE):
        if not file.exists():
            return None
        data = read_regular(file)
    if b"vpatch" not in data:  # a file of another tool's business, which may be wrong in any way
        return None
    tool = _parsed(file, data).get("tool", {})
    if not isinstance(tool, dict) or "vpatch" not in tool:
        return None
    if not isinstance(tool["vpatch"], dict):
        raise Failure(Problem("bad project file", _short(file), "tool.vpatch: not a table", hint=_IGNORE))
    return tool["vpatch"]


def _parsed(file: Path, data: bytes | None = None) -> dict[str, Any]:
    try:
        with naming("cannot read", _short(file), _IGNORE):
            return parse_toml(read_regular(file, TOML_BYTES) if data is None else data)
    except ValueError as error:
        raise Failure(Problem("bad project file", _short(file), f"not TOML: {error}", hint=_IGNORE)) from error


def _mistakes(table: Mapping[str, Any], file: str) -> Iterator[str]:
    """Yield what is wrong with the keys of a project's file, and with their values."""
    for key in table:
        if key == "tool" and file == OWN:
            yield f"tool: the keys of {OWN} stand at its top, and not below [tool.vpatch]"
        elif key not in _KEYS:
            yield f"{key}: no such key; {closest(key, _KEYS)}"
        elif key in _LISTS and not _is_list(table[key]):
            yield f"{key}: not a list of texts, none of them empty"
    if "overlays" in table and {"with", "without"} & table.keys():
        yield "overlays: it selects exactly these; leave out `with` and `without`"
    elif _is_list(both := table.get("with")) and _is_list(out := table.get("without")):
        yield from (f"without: {name} is in `with`, too" for name in both if name in out)
    pins = table.get("require", {})
    if not isinstance(pins, dict):
        yield "require: not a table of hashes"
        return
    for name, pin in pins.items():
        if not isinstance(pin, str) or not _PIN.fullmatch(pin):
            yield f"require.{name}: {pin!r} is not sha256: and 64 hexadecimal digits"


def _is_list(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


def _patch_files(place: Path, key: str = "") -> list[Path]:
    """Return the patch files at a place, which `key` of the project's file has; "" for the command line.

    Raises:
        UnknownName: the user named something that does not exist.
        Failure: the project's file did, or there is no patch file.
    """
    shown = _short(place)
    where, what = (key, f"{shown}: ") if key else (shown, "")
    if not place.exists():
        raise (Failure if key else UnknownName)(Problem("no patch files", where, f"{what}no such file or folder"))
    if not place.is_dir():
        if not place.name.endswith(SUFFIX):
            raise Failure(
                Problem("no patch file", where, f"{what}its name does not end with {SUFFIX}", hint=_way(place))
            )
        return [place]
    if not (files := [place / name for name in _families(place)]):
        with naming("cannot read", shown):
            others = sorted(one for one in place.iterdir() if _way(one))
        hint = _way(others[0]) if others else ""
        raise Failure(Problem("no patch files", where, f"{what}no *{SUFFIX} is in it", hint=hint))
    return files


def _way(file: Path) -> str:
    """Return how a diff or a module becomes an overlay; "" for any other file."""
    if file.suffix in _DIFFS:
        return f"{shell('vpatch', 'import', _short(file))} makes a patch file of a diff"
    if file.suffix != ".py" or file.name.startswith((".", "_")):
        return ""
    words = "-".join(re.findall("[a-z0-9]+", file.stem.lower()))
    name = words if re.match("[a-z]", words) else "my-fix"
    begun = f"a module is an overlay of a package, which {shell('vpatch', 'new', name)} begins"
    return f"vpatch executes nothing that it finds here: {begun}; in one file, an overlay is hunks, NAME{SUFFIX}"


def _families(folder: Path) -> Mapping[str, tuple[str, ...]]:
    with naming("cannot read", _short(folder)):
        return families(one.name for one in folder.iterdir())


def _read(path: Path, more: Sequence[str]) -> PatchBytes:
    shown = _short(path)
    with naming("cannot read", shown):
        try:
            data = joined(path.name, more, lambda name: _content(path.parent / name))
        except ValueError as error:
            raise Failure(Problem("cannot read", shown, str(error))) from error
        try:
            recorded = read_regular(file_of(str(path)), CODE_BYTES)
        except FileNotFoundError:
            recorded = None
    return PatchBytes(shown, data, recorded)


def _content(path: Path) -> bytes:
    with naming("cannot read", _short(path)):
        return read_regular(path)


def _short(path: Path) -> str:
    """Return a path relative to the current folder, if it is below it."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - links stay: the user wrote them
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return str(absolute)
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def merged(base: Selection, also: Sequence[str], without: Sequence[str]) -> Selection:
    """Return the default selection of a command: the project's, `also` more, and `without` some. These two win."""
    more = (*(name for name in base.also if name not in without), *also)
    out = (*(name for name in base.without if name not in also), *without)
    return Selection(None, tuple(dict.fromkeys(more)), tuple(dict.fromkeys(out)), base.default)
