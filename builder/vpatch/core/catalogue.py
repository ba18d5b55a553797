"""All overlays: those of packages, by the entry-point group `vpatch.overlays`, and the patch files of `core.sources`.

An entry point names a package or one module. Each module of the package is an overlay, except those whose names begin
with an underscore, which overlays share; subpackages are ignored. A module holds its overlay as `overlay`; its id is
the module's name with hyphens, and its docstring is the explanation. Each patch file of the package is an overlay, too,
see `vpatch.core.patch_file`; its id is its name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, distributions, entry_points
from importlib.resources import files as resources
from itertools import chain
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vpatch.core import calls, patch_file, shapes, sources
from vpatch.core.marks import mark, marked_by, marked_files
from vpatch.core.overlay import Catalogued, Overlay
from vpatch.core.patch_file import SUFFIX
from vpatch.core.sources import PatchBytes, Sources
from vpatch.errors import Failure, Problem, UnknownName, closest, collecting, raise_all

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from vpatch.trial import Note

GROUP = "vpatch.overlays"
_OWN = "vpatch_overlays"  # to ask for the distribution's name takes 10 ms
_FIELDS: Mapping[str, Any] = {  # all of texts
    "summary": str,
    "upstream": tuple | list,
    "symptoms": tuple | list,
    "errors": tuple | list,
    "releases": Mapping,
}
_LONGEST = 1000  # characters of an error


def discover() -> tuple[Catalogued, ...]:
    """Return every overlay, of packages and of the current sources, in the order of the ids.

    Raises:
        Failure: overlays do not load, are not an `Overlay`, share an id, or are not what the project's file says; lists
            all of them.
    """
    found, problems = loadable()
    raise_all(problems)
    return found


def loadable() -> tuple[tuple[Catalogued, ...], tuple[Problem, ...]]:
    """Return the overlays that load, in the order of the ids, and what is wrong with the others."""
    found: dict[str, Catalogued] = {}
    problems: list[Problem] = []
    given = sources.current()
    shipped = chain.from_iterable(_loaded(point, problems) for point in _points(problems))
    for item in chain(shipped, _given(given, problems)):
        twin = found.setdefault(item.id, item)
        if twin is not item:
            problems.append(Problem("overlay id taken", item.id, f"{twin.origin} and {item.origin} both ship it"))
    if not found and not problems:
        problems.append(Problem("no overlays", GROUP, "no installed distribution has this entry point"))
    problems += _unexpected(given, found)
    return tuple(sorted(found.values(), key=lambda item: item.id)), tuple(problems)


def _given(given: Sources, problems: list[Problem]) -> Iterator[Catalogued]:
    for file in given.patches:
        with collecting(problems):
            yield loaded(file)


def _unexpected(given: Sources, found: Mapping[str, Catalogued]) -> Iterator[Problem]:
    """Yield what the project's file says of overlays and is not so."""
    unread = {id_of(file.path) for file in given.patches} - found.keys()  # reported already
    for key, ids in given.named.items():
        for name in (name for name in ids if name not in found.keys() | unread):
            yield Problem("no such overlay", given.file, f"{key}: {name}", hint=closest(name, found))
    for name, wanted in given.required.items():
        item = found.get(name)
        if item and item.patch is not None and item.sha256 != wanted:
            cause = f"require.{name}: {item.origin} has sha256:{item.sha256}, not sha256:{wanted}"
            yield Problem("not the required patch", given.file, cause)
        elif (item is None or item.patch is None) and name not in unread:
            yield Problem("no such patch", given.file, f"require.{name}: no patch file has this id")


def _points(problems: list[Problem]) -> list[EntryPoint]:
    try:
        found = list(entry_points(group=GROUP))
    except (ValueError, TypeError):  # a package has entry points that nothing can read
        found = []
        for distribution in distributions():
            try:
                found += [point for point in distribution.entry_points if point.group == GROUP]
            except (ValueError, TypeError) as error:
                problems.append(Problem("cannot read entry points", str(distribution.locate_file("")), str(error)))
    return sorted(found, key=lambda point: point.value)


def _loaded(point: EntryPoint, problems: list[Problem]) -> list[Catalogued]:
    """Import the overlays of an entry point; those of other packages after a rehearsal, which they may not survive."""
    try:
        module = point.module
    except AttributeError:
        problems.append(Problem("cannot load overlays", f"{point.name} = {point.value}", "it names no module"))
        return []
    if point.value == _OWN:
        return _imported(point, problems)
    from vpatch import trial

    if died := trial.death(module, lambda note: _imported(point, [], note)):
        problems.append(Problem("cannot load overlays", died.during or point.value, f"importing it {died.how}"))
        return []
    with trial.apart():
        return _imported(point, problems)


def _imported(point: EntryPoint, problems: list[Problem], note: Note = lambda _: None) -> list[Catalogued]:
    try:
        root = point.load()
        names, patches = [root.__name__], []
        if hasattr(root, "__path__"):
            modules = pkgutil.iter_modules(root.__path__)
            names = [f"{names[0]}.{m.name}" for m in modules if not m.ispkg and not m.name.startswith("_")]
            patches = list(shapes.families(file.name for file in resources(root).iterdir()).items())
    except BaseException as error:
        problems.append(Problem("cannot load overlays", point.value, _raised(error, point.module)))
        return []
    found = []
    for name in names:
        note(name)
        try:
            found.append(_of_module(import_module(name), point))
        except BaseException as error:
            problems.append(Problem("cannot load overlay", name, _raised(error, name)))
    for name, more in patches:
        file = resources(root) / name
        note(str(file))
        try:
            found.append(of_patch_file(_shipped(file, more, resources(root)), point))
        except (OSError, ValueError, RecursionError, MemoryError) as error:
            problems.append(Problem("cannot load overlay", str(file), str(error)))
    return found


def _raised(error: BaseException, module: str) -> str:
    """Return what importing a module raised, and the module's line that led to it.

    Raises:
        KeyboardInterrupt: the user raised it: a package that does so itself does not survive the rehearsal.
    """
    if type(error) is KeyboardInterrupt:
        raise error
    try:
        message = f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # of its `__str__`
        message = type(error).__name__
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_globals.get("__name__") == module]
    return message[:_LONGEST] + (f" (line {lines[-1]})" if lines else "")


def _check_types(overlay: Overlay) -> None:
    """Refuse fields of other types, on which commands would fail: a dataclass takes anything."""
    for field, kind in _FIELDS.items():
        value: Any = getattr(overlay, field)
        if not isinstance(value, kind) or not all(isinstance(text, str) for text in value):
            raise TypeError(f"its `{field}` is not what `help(vpatch.Overlay)` says")
    if any(not isinstance(part.errors, tuple | list) for part in overlay.parts):
        raise TypeError("the `errors` of a part are not what `help(vpatch.Part)` says")
    if not all(isinstance(file, str) for file in overlay.files):
        raise TypeError("an edit names no file")


def _of_module(module: ModuleType, point: EntryPoint) -> Catalogued:
    overlay = module.overlay
    if not isinstance(overlay, Overlay):
        raise TypeError(f"`overlay` is {type(overlay).__name__}, not vpatch.Overlay")
    if not overlay.parts or not all(part.shapes and all(s.edits for s in part.shapes) for part in overlay.parts):
        raise ValueError("it needs a part, each part a shape, and each shape an edit")
    _check_types(overlay)
    stem = module.__name__.rpartition(".")[2]
    name = _id(stem.replace("_", "-"), "the module in lower case, with single underscores")
    why, source = str(module.__doc__ or "").strip(), module.__file__ or ""
    return Catalogued(name, overlay, why, point, source, _calls(source, getattr(module.__loader__, "get_data", None)))


def _shipped(file: Traversable, more: Sequence[str], folder: Traversable) -> PatchBytes:
    try:
        recorded = (folder / "_calls" / calls.file_of(str(file)).rpartition("/")[2]).read_bytes()
    except OSError:  # it is missing
        recorded = None
    return PatchBytes(str(file), shapes.joined(file.name, more, lambda name: (folder / name).read_bytes()), recorded)


def of_patch_file(file: PatchBytes, point: EntryPoint | None = None) -> Catalogued:
    """Return the overlay that a patch file is.

    Raises:
        ValueError: it is no patch file, has a name that is no id, or its list is damaged.
    """
    name, own = id_of(file.path), file.path.rpartition("/")[2]
    if (main := shapes.main_of(own)) != own:
        raise ValueError(f"it is a shape of {main}, which has to lie beside it, and to be named instead")
    _id(name, "the file in lower case, with single hyphens")
    patch, *more = shapes.shapes(file.data)
    overlay, why = patch_file.overlay_of(patch, *more), patch_file.explanation(patch)
    recorded = None if file.calls is None else _parsed(calls.file_of(file.path), file.calls)
    return Catalogued(name, overlay, why, point, file.path, recorded, file.data)


def loaded(file: PatchBytes) -> Catalogued:
    """Return the overlay that a patch file is, which no package ships.

    Raises:
        Failure: it is none; the problem names the file.
    """
    try:
        return of_patch_file(file)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Failure(Problem("cannot load overlay", file.path, str(error))) from error


def id_of(path: str) -> str:
    """Return the id of the overlay that the patch file at `path` is."""
    return path.rpartition("/")[2].removesuffix(SUFFIX)


def _id(name: str, rule: str) -> str:
    if marked_by(mark(name)) != [name]:
        raise ValueError(f"its id would be {name!r}: name {rule}")
    return name


def _calls(source: str, read: Callable[[str], bytes] | None) -> calls.Calls | None:
    """Read what an overlay's code takes from vLLM; None if there is no list.

    Raises:
        ValueError: the list is damaged, or a newer vpatch wrote it.
    """
    file = calls.file_of(source)
    if read is None:
        return None
    try:
        data = read(file)
    except OSError:  # it is missing
        return None
    return _parsed(file, data)


def _parsed(file: str, data: bytes) -> calls.Calls:
    try:
        return calls.parse(data)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def select(installed: tuple[Catalogued, ...], ids: Iterable[str] | None = None) -> tuple[Catalogued, ...]:
    """Return the overlays with these ids; for None, all but the opt-in ones.

    Raises:
        UnknownName: an id is not installed.
    """
    return Selection.of(ids).among(installed)


@dataclass(frozen=True)
class Selection:
    """The overlays that a user asks for.

    Attributes:
        only: exactly these; None: the default ones.
        also: more of them.
        without: what is taken out of the default ones.
        default: the default ones, as a project's file has them; None: all but the opt-in ones.
    """

    only: tuple[str, ...] | None = None
    also: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    default: tuple[str, ...] | None = None

    @classmethod
    def of(cls, only: Iterable[str] | Selection | None, also: Iterable[str] = ()) -> Selection:
        """Make a selection; one id may be given as a string."""
        if isinstance(only, Selection):
            return only
        return cls(None if only is None else _ids(only), _ids(also))

    @property
    def named(self) -> frozenset[str]:
        """The ids that the user gave, or the project's file."""
        own = () if self.only is not None else frozenset(self.default or ()).difference(self.without)
        return frozenset((*(self.only or ()), *self.also, *own))

    def selects(self, name: str, *, opt_in: bool = False) -> bool:
        """Whether an overlay is selected."""
        usual = self.only is None and self.default is None and not opt_in
        return name in self.named or (usual and name not in self.without)

    def among(self, installed: tuple[Catalogued, ...]) -> tuple[Catalogued, ...]:
        """Return the selected overlays.

        Raises:
            UnknownName: an id is not installed.
        """
        known = {item.id: item for item in installed}
        if unknown := sorted({*self.named, *self.without} - known.keys()):
            raise UnknownName(*(Problem("no such overlay", name, closest(name, known)) for name in unknown))
        return tuple(item for name, item in sorted(known.items()) if self.selects(name, opt_in=item.overlay.opt_in))

    def in_tree(self, installed: tuple[Catalogued, ...], read: Callable[[str], bytes | None]) -> tuple[Catalogued, ...]:
        """Return the selected overlays; without `only` from the user, also each that has a mark in the tree.

        Raises:
            UnknownName: an id is not installed.
        """
        chosen = self.among(installed)
        if self.only is not None:
            return chosen
        return tuple(item for item in installed if item in chosen or has_mark(item, read))


def _ids(given: Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def applied_beside(
    chosen: Sequence[Catalogued], installed: Iterable[Catalogued], read: Callable[[str], bytes | None]
) -> tuple[Catalogued, ...]:
    """Return the overlays that are applied, besides the chosen ones."""
    return tuple(item for item in installed if item not in chosen and has_mark(item, read))


def has_mark(item: Catalogued, read: Callable[[str], bytes | None]) -> bool:
    """Whether an overlay is applied, wholly or in part: a file that it changes or adds has its mark."""
    return bool(marked_files(item.id, item.overlay.files, read))
