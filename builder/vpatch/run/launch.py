"""From a command to the environment in which it runs with overlays; nothing is started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from vpatch.core.catalogue import Selection
from vpatch.errors import Failure, Problem
from vpatch.guest import vpatch_ray
from vpatch.guest.vpatch_receipt import DIGEST, MANIFEST
from vpatch.run import store
from vpatch.run.command import Command, current_folder
from vpatch.run.content import PLUGIN, Content
from vpatch.run.memo import Memo, Watched
from vpatch.run.upkeep import MEMOS
from vpatch.stamps import opened
from vpatch.tree.interpreter import Interpreter, asked
from vpatch.tree.locate import Tree, tree_at

_PLUGINS = "VLLM_PLUGINS"
_RAY_HOOK, _RAY_UV = "RAY_RUNTIME_ENV_HOOK", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
_OUR_RAY_HOOK = "vpatch_ray.hook"
_WITNESS = Path(__file__).with_name("witness")


@dataclass(frozen=True)
class Launch:
    """A command that is ready to be run.

    Attributes:
        tree: the vLLM whose files it takes.
        content: what its farm holds.
        farm: the folder of the farm.
        environment: the variables of its environment.
        lock: an open descriptor that keeps the farm from being removed until this process becomes the command; None if
            the file system has no locks.
    """

    tree: Tree
    content: Content
    farm: Path
    environment: Mapping[str, str]
    lock: int | None


class NoVllm(Failure):
    """An interpreter has no vLLM."""


def prepare(command: Command, selection: Selection, python: Path, cache: Path, expected: str = "") -> Launch:
    """Make the farm of a command, or find it, and check that the command's Python would import it.

    Args:
        command: what is to be run.
        selection: the overlays.
        python: the interpreter that it runs.
        cache: the folder of the farms.
        expected: the digest that the overlays must have, or its beginning; "" for any.

    Raises:
        UnknownName: there is no such overlay.
        Failure: an overlay does not fit; the farm cannot be made or is not safe; the overlays have another digest; or
            another vLLM would be imported.
    """
    cache, others = cache.resolve(), stock_path()  # a link in the path could lead elsewhere later
    if os.pathsep in str(cache):
        raise Failure(Problem("not a folder for farms", str(cache), f"PYTHONPATH ends a name at {os.pathsep!r}"))
    _refuse_hidden(command)
    for folder in (cache, cache / MEMOS):  # what it remembers of earlier runs is read first
        store.refuse_open(folder)
    flags = command.flags if command.python == python.absolute() else ()
    tree = stock_of(python, flags)
    _refuse_second(command, tree, python)
    content = planned(tree, selection, cache)
    refuse_other(content, expected)
    farm, lock = store.held_farm(content, cache, python)
    own = {"PYTHONPATH": _path(farm, others), DIGEST: content.digest, **_plugins(), **ray_variables(os.environ)}
    return Launch(tree, content, farm, {**os.environ, **own}, lock)


def refuse_other(content: Content, expected: str) -> None:
    """Refuse overlays whose digest does not begin as expected.

    Raises:
        Failure: it begins otherwise.
    """
    if not content.digest.startswith(expected):
        cause = f"{', '.join(content.overlays) or 'none'} have the digest {content.digest}, not {expected}"
        raise Failure(Problem("unexpected overlays", str(content.root), cause))


def planned(tree: Tree, selection: Selection, cache: Path | None = None) -> Content:
    """Return what a farm has to hold; with a folder for farms, it is remembered there.

    Raises:
        UnknownName, Failure: as `prepare`.
    """
    memo = Memo.of(cache, tree, selection) if cache else None
    known = memo.recall(tree) if memo else None
    if known:
        return known
    watched = Watched(tree.root, tree.dist_info, tree.version)
    with opened() as code:
        # A start that remembers its plan does without the engine and libcst: they take as long to import as all else.
        from vpatch.run.planning import plan

        content = plan(watched, selection)
    if memo:
        memo.keep(content, watched.seen, code)
    return content


def stock_path() -> list[str]:
    """Return the folders of PYTHONPATH without farms, so that a run within a run begins at the installed vLLM again."""
    path = os.environ.get("PYTHONPATH", "")
    entries = path.split(os.pathsep) if path else []  # an empty entry is the current folder
    # Python ignores an entry that it cannot read, and so does `isfile`; a Path raises.
    return [entry for entry in entries if not entry or not os.path.isfile(f"{entry}/{MANIFEST}")]  # noqa: PTH113


def _path(first: Path, others: Sequence[str]) -> str:
    return os.pathsep.join((str(first), *others))


def _plugins() -> dict[str, str]:
    """Let the receipt be among the plugins, if only those that the user names are loaded.

    vLLM splits the variable at each comma and strips nothing. If it is set and empty, vLLM loads no plugin.
    """
    named = os.environ.get(_PLUGINS)
    if named is None or PLUGIN in named.split(","):
        return {}
    return {_PLUGINS: f"{named},{PLUGIN}" if named else PLUGIN}


def ray_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which Ray calls the hook in a farm, `guest/vpatch_ray.py`.

    They are set for every command: other programs ignore them, and a Python that `uv run` makes cannot be asked for
    Ray. Below `uv run`, Ray calls uv's hook and no other, unless a variable says not to; our hook then calls uv's.
    """
    if environment.get(_RAY_HOOK) == _OUR_RAY_HOOK:  # a run within a run, which keeps what was set before both
        return {}
    earlier = {vpatch_ray.HOOK: environment.get(_RAY_HOOK, ""), vpatch_ray.UV: environment.get(_RAY_UV, "")}
    return {_RAY_HOOK: _OUR_RAY_HOOK, _RAY_UV: "0", **earlier}


def stock_of(python: Path, flags: Sequence[str] = ()) -> Tree:
    """Return the vLLM that an interpreter imports without a farm, if it is started with these flags.

    Raises:
        NoVllm: it has none.
        Failure: it would import another one before a farm on PYTHONPATH.
    """
    found = _found(python, flags)
    line = " ".join((str(python), *flags))
    if not found.behind:
        raise NoVllm(Problem("no vllm", line, "this interpreter has no vllm to import"))
    if found.root != _WITNESS.resolve():
        raise Failure(Problem("out of reach", line, f"it imports vllm from {found.root}/vllm, before PYTHONPATH"))
    return tree_at(found.behind)


def _found(python: Path, flags: Sequence[str]) -> Interpreter:
    """Ask an interpreter for its `vllm` if another one is first on PYTHONPATH, as a farm will be, and behind that."""
    environment = {**os.environ, "PYTHONPATH": _path(_WITNESS, stock_path())}
    return asked(python, _WITNESS, flags, environment)


def _refuse_second(command: Command, tree: Tree, python: Path) -> None:
    """Refuse the vLLM of one interpreter for a command that runs another one, which has its own."""
    runs = command.python
    if runs is None or runs == python.absolute():
        return
    own = _found(runs, command.flags).behind
    if own and tree_at(own).root != tree.root:
        cause = f"the command runs it, and it has another vLLM than {python}: name no other with --python"
        raise Failure(Problem("two vllms", str(runs), cause))


def _refuse_hidden(command: Command) -> None:
    """Refuse a vLLM that Python would find before PYTHONPATH.

    The current folder counts, too: vLLM starts processes by `python -m`.
    """
    here = [] if os.environ.get("PYTHONSAFEPATH") else [current_folder()]
    for folder in (*filter(None, [command.first]), *here):
        found = PathFinder.find_spec("vllm", [str(folder)])
        if found and found.loader:  # a folder without __init__.py gives way to a package
            cause = f"Python would import {found.origin}, which stands before PYTHONPATH"
            raise Failure(Problem("out of reach", str(folder), cause, hint="start in another folder"))
