"""Where the code that a patch changes went, if a release has it in another module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from vpatch.core import nesting
from vpatch.core.edits.address import hunks
from vpatch.core.patch_file import ModuleChange
from vpatch.core.select import names
from vpatch.core.syntax import Spot
from vpatch.guest.record import parse
from vpatch.porting.bases import PatchBase, text_of


def new_place(change: ModuleChange, target: PatchBase) -> str:
    """Return the module that has all the definitions that a change is in; "" if it is the same one, or none has them.

    Candidates are modules of the same name elsewhere, the modules of the package that the module became, and the module
    that its package became.

    Raises:
        Failure: a module cannot be read.
    """
    if change.is_whole:
        return ""
    wanted = {edit.scope for edit in hunks(change.path, "", (), change.text) if edit.scope}
    there = defined(target, change.path)
    if not wanted or (there is not None and wanted & there):
        return ""
    found = [path for path in _candidates(change.path, target) if wanted <= (defined(target, path) or set())]
    return found[0] if len(found) == 1 else ""


def _candidates(path: str, target: PatchBase) -> Iterator[str]:
    rows = target.read(f"vllm-{target.version}.dist-info/RECORD")
    place = PurePosixPath(path)
    package, above = f"{place.with_suffix('')}/", f"{place.parent}.py"
    for file in sorted(row.path for row in parse(rows or b"").rows):
        if file != path and file.endswith(".py"):
            same = file.startswith("vllm/") and PurePosixPath(file).name == place.name != "__init__.py"
            if same or file == above or (file.startswith(package) and file.count("/") == package.count("/")):
                yield file


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
