"""Where the code that a patch changes went, if a release has it in another module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from vpatch.core import nesting
from vpatch.core.calls import module_files
from vpatch.core.edits.address import hunks
from vpatch.core.landing.lookup import Lookup
from vpatch.core.patch_file import ModuleChange
from vpatch.core.select import names
from vpatch.core.syntax import Spot
from vpatch.core.workspace import Workspace
from vpatch.porting.bases import PatchBase, modules_of, text_of

_MOST = 64  # modules beside a module that are searched; the folder of the models has 250


def new_place(change: ModuleChange, target: PatchBase, base: PatchBase | None = None) -> str:
    """Return the module that has all the definitions that a change is in; "" if it is the same one, or none has them.

    The likely one is that from which the module now imports them. Then come modules of the same name elsewhere, the
    modules of the package that the module became, and the module that its package became; if none of these has them,
    the modules beside it that are new, and then the others.

    Args:
        change: what changes in the module.
        target: the vLLM in which it may be another one.
        base: the vLLM that the change was made for; None if it is not known.

    Raises:
        Failure: a module cannot be read.
    """
    if change.is_whole:
        return ""
    wanted = {edit.scope for edit in hunks(change.path, "", (), change.text) if edit.scope}
    there = defined(target, change.path)
    if not wanted or (there is not None and wanted & there):
        return ""
    files, lookup = module_files(change.path.removesuffix(".py")), Lookup(Workspace(target.read))
    led = {one.file: None for scope in wanted for file in files for one in lookup.find(f"{file} {scope}")}
    for candidates in ([*led], *_candidates(change.path, target, base)):
        if found := [path for path in candidates if wanted <= (defined(target, path) or set())]:
            return found[0] if len(found) == 1 else ""
    return ""


def _candidates(path: str, target: PatchBase, base: PatchBase | None) -> Iterator[list[str]]:
    """Yield the modules that may be the new place, the likely ones first."""
    place = PurePosixPath(path)
    package, above = f"{place.with_suffix('')}/", f"{place.parent}.py"
    files, old = modules_of(target), modules_of(base) if base else []
    yield [
        file
        for file in files
        if (PurePosixPath(file).name == place.name != "__init__.py" and file != path)
        or file == above
        or (file.startswith(package) and file.count("/") == package.count("/"))
    ]
    beside = [file for file in files if PurePosixPath(file).parent == place.parent and file != path]
    yield [file for file in beside if old and file not in old]
    yield beside if len(beside) <= _MOST else []


def defined(target: PatchBase, path: str) -> set[str] | None:
    """Return the qualified names that a module defines; None if it is not there, or is not valid Python.

    Raises:
        Failure: it cannot be read as text.
    """
    text = text_of(target, path)
    if text is None:
        return None
    try:
        return {name for name, _ in names(Spot((), nesting.parse(text)))}
    except (SyntaxError, nesting.Unparsable):
        return None
