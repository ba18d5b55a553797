"""The installed overlays, discovered by the entry-point group `vpatch.overlays`.

An entry point names a package or one module. Each module of the package is an overlay, except those whose names begin
with an underscore, which overlays share; subpackages are ignored. A module holds its overlay as `overlay`; its id is
the module's name with hyphens, and its docstring is the explanation.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from vpatch.core.marks import mark, marked_by
from vpatch.core.overlay import Catalogued, Overlay
from vpatch.errors import Failure, Problem

GROUP = "vpatch.overlays"


def discover() -> tuple[Catalogued, ...]:
    """Return every installed overlay, in the order of the ids.

    Raises:
        Failure: overlays do not load, are not an `Overlay`, or share an id; lists all of them.
    """
    found: dict[str, Catalogued] = {}
    problems: list[Problem] = []
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.value):
        for name in _modules(point, problems):
            try:
                item = _catalogued(import_module(name), point)
            except (Exception, SystemExit) as error:
                problems.append(Problem("cannot load overlay", name, f"{type(error).__name__}: {error}"))
                continue
            twin = found.setdefault(item.id, item)
            if twin is not item:
                problems.append(Problem("overlay id taken", item.id, f"{twin.origin} and {item.origin} both ship it"))
    if not found and not problems:
        problems.append(Problem("no overlays", GROUP, "no installed distribution has this entry point"))
    if problems:
        raise Failure(*problems)
    return tuple(sorted(found.values(), key=lambda item: item.id))


def _modules(point: EntryPoint, problems: list[Problem]) -> list[str]:
    try:
        root = point.load()
    except (Exception, SystemExit) as error:
        problems.append(Problem("cannot load overlays", point.value, f"{type(error).__name__}: {error}"))
        return []
    if not hasattr(root, "__path__"):
        return [root.__name__]
    modules = pkgutil.iter_modules(root.__path__)
    return [f"{root.__name__}.{m.name}" for m in modules if not m.ispkg and not m.name.startswith("_")]


def _catalogued(module: ModuleType, point: EntryPoint) -> Catalogued:
    overlay = module.overlay
    if not isinstance(overlay, Overlay):
        raise TypeError(f"`overlay` is {type(overlay).__name__}, not vpatch.Overlay")
    if not overlay.parts or not all(part.shapes and all(s.edits for s in part.shapes) for part in overlay.parts):
        raise ValueError("it needs a part, each part a shape, and each shape an edit")
    name = module.__name__.rpartition(".")[2].replace("_", "-")
    if marked_by(mark(name)) != [name]:
        raise ValueError(f"its id would be {name!r}: name the module in lower case, with single underscores")
    return Catalogued(name, overlay, (module.__doc__ or "").strip(), point)


def select(installed: tuple[Catalogued, ...], ids: Iterable[str] | None = None) -> tuple[Catalogued, ...]:
    """Return the overlays with these ids; for None, all but the opt-in ones.

    Raises:
        Failure: an id is not installed.
    """
    if ids is None:
        return tuple(item for item in installed if not item.overlay.opt_in)
    known, wanted = {item.id: item for item in installed}, tuple(ids)
    if unknown := [name for name in wanted if name not in known]:
        raise Failure(*(Problem("no such overlay", name, f"installed: {', '.join(known)}") for name in unknown))
    return tuple(known[name] for name in sorted(set(wanted)))
