"""Which changes of a diff an overlay can have: modules and data files of vLLM. The rest is left out, or refused."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from vpatch.core.overlay import DATA, MODULE
from vpatch.errors import Failure, Problem, raise_all
from vpatch.porting.diffs import FileDiff, LineChange, LineHunk
from vpatch.porting.paths import BESIDE, BUILT

FAILED = "cannot import"
_BUILT_FILES = frozenset({"setup.py", "CMakeLists.txt", "Cargo.toml", "Cargo.lock", "build.rs", "MANIFEST.in"})
_NATIVE = re.compile(r"\.(?:cu|cuh|hip|c|cc|cpp|cxx|h|hpp|rs|so|pyd|proto)$")
# Names by which Python finds native code: of operators, in strings, and of Rust's functions.
_NATIVE_NAME = re.compile(r'"(?:\w+::)?([A-Za-z]\w{3,})["(]|\bfn ([A-Za-z]\w{3,})')


class Fate(Enum):
    """What happens to a changed file; the value says why."""

    KEPT = "a module of vLLM"
    LEFT_OUT = "not part of an installed vLLM"
    BUILD = "part of vLLM's build, which an overlay cannot repeat"
    PACKAGE = "not part of vLLM"
    DATA = "not Python"
    OTHER = "a patch file cannot have it"
    ODD = "a change that no overlay can make"


# What `python_only` does without.
_OPTIONAL = (Fate.BUILD, Fate.PACKAGE, Fate.OTHER)


def kept(files: Sequence[FileDiff], where: str, *, python_only: bool) -> tuple[tuple[LineChange, ...], tuple[str, ...]]:
    """Return the changes of a diff that an overlay can have, and a sentence for each kind of files that are left out.

    A file that the diff has twice is one change, in the order of the diff. There is no change if the diff is only of
    what no installed vLLM has, such as tests.

    Args:
        files: what the diff changes.
        where: the diff, for messages.
        python_only: whether to leave out data files, and what no overlay can have, where no module that remains needs
            it.

    Raises:
        Failure: with a problem for each kind of files that are refused.
    """
    by_fate = defaultdict[Fate, list[FileDiff]](list)
    for file in files:
        by_fate[fate_of(file)].append(file)
    foreign = by_fate[Fate.PACKAGE] and not by_fate[Fate.BUILD]
    if foreign and not any(file.path.startswith("vllm/") for file in files):
        raise Failure(Problem(FAILED, where, f"it changes no file below vllm/, only {_listed(files)}"))
    optional, data = (*_OPTIONAL, *([Fate.DATA] if python_only else [])), [] if python_only else by_fate[Fate.DATA]
    raise_all(_refusals(by_fate, where, python_only=python_only))
    left_out = (fate for fate in (Fate.LEFT_OUT, *optional) if by_fate[fate])
    sentences = tuple(f"{_listed(by_fate[fate])}: {fate.value}" for fate in left_out)
    return _changes([*by_fate[Fate.KEPT], *data]), sentences


def fate_of(file: FileDiff) -> Fate:
    """Return what happens to a changed file if nothing is left out but what an installed vLLM lacks."""
    top, _, below = file.path.partition("/")
    if top in BESIDE or top.startswith("."):
        return Fate.LEFT_OUT
    if top == "vllm" and file.odd:
        return Fate.ODD
    if top in BUILT or file.path in _BUILT_FILES or _NATIVE.search(file.path):
        return Fate.BUILD
    if not below:
        return Fate.LEFT_OUT
    if top != "vllm":
        return Fate.PACKAGE
    if not file.path.endswith(".py"):
        return Fate.DATA if DATA.fullmatch(file.path) else Fate.OTHER
    return Fate.KEPT if MODULE.fullmatch(file.path) else Fate.ODD


def _refusals(by_fate: Mapping[Fate, Sequence[FileDiff]], where: str, *, python_only: bool) -> Iterator[Problem]:
    for file in by_fate[Fate.ODD]:
        cause = f"{file.odd}; an overlay only changes and adds files" if file.odd else "no module can have this name"
        yield Problem(FAILED, where, f"line {file.line}: {file.path}: {cause}")
    for fate in (*_OPTIONAL, Fate.DATA):
        files = by_fate[fate]
        if files and not python_only and fate in _OPTIONAL:
            cause = f"line {files[0].line}: {_listed(files)}: {fate.value}"
            yield Problem(FAILED, where, cause, hint="`--python-only` leaves it out")
        for file, name in _needed(files, by_fate[Fate.KEPT]) if python_only else ():
            yield Problem(FAILED, where, f"line {file.line}: Python that the patch adds needs `{name}` of {file.path}")


def _needed(left_out: Iterable[FileDiff], modules: Sequence[FileDiff]) -> Iterator[tuple[FileDiff, str]]:
    """Yield files without which the modules may not run, each with the name that new Python has in common with it."""
    used = {word for file in modules for line in _added(file.hunks) for word in re.findall(r"\w+", line)}
    for file in left_out:
        stem = file.path.rpartition("/")[2].split(".")[0]
        names = {one or other for line in _added(file.hunks) for one, other in _NATIVE_NAME.findall(line)}
        if found := sorted(used & {*names, *([stem] if fate_of(file) is Fate.DATA else [])}):
            yield file, found[0]


def _added(hunks: Iterable[LineHunk]) -> Iterator[str]:
    for hunk in hunks:
        yield from set(hunk.new) - set(hunk.old)


def _changes(files: Iterable[FileDiff]) -> tuple[LineChange, ...]:
    changes: dict[str, LineChange] = {}
    for file in files:
        before = changes.get(file.path)
        new, passes = (before.new, before.passes) if before else (file.new, ())
        changes[file.path] = LineChange(file.path, new, (*passes, file.hunks))
    return tuple(changes.values())


def _listed(files: Iterable[FileDiff]) -> str:
    return listed(file.path for file in files)


def listed(paths: Iterable[str]) -> str:
    """Return the first paths, and how many more there are."""
    every = list(dict.fromkeys(paths))
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")
