"""Idempotent, reversible source overlays for an installed vLLM.

Overlay authors import the words of an overlay from here, programs the verbs: `status`, `diff`, `apply`, `revert` and
`verify` (see `vpatch.api`), and `patches`, which lets them take patch files, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vpatch.api import Changed, Diff, Refused, Result, apply, diff, revert, status, verify
    from vpatch.core.authoring import Block, Companion, File, Folder, probe
    from vpatch.core.edits.definitions import AddFile, AddFunction
    from vpatch.core.edits.imports import EnsureImport
    from vpatch.core.edits.patch import Patch
    from vpatch.core.overlay import Edits, Need, Overlay, Part, Predicate, Probe, Shape, Use
    from vpatch.core.predicates import (
        All,
        AnyOf,
        Contains,
        Defines,
        HasFile,
        HasFolder,
        Imports,
        Lists,
        Not,
        Sets,
        Takes,
        Unclear,
    )
    from vpatch.errors import Failure, Problem
    from vpatch.project import patches

__all__ = [
    "AddFile",
    "AddFunction",
    "All",
    "AnyOf",
    "Block",
    "Changed",
    "Companion",
    "Contains",
    "Defines",
    "Diff",
    "Edits",
    "EnsureImport",
    "Failure",
    "File",
    "Folder",
    "HasFile",
    "HasFolder",
    "Imports",
    "Lists",
    "Need",
    "Not",
    "Overlay",
    "Part",
    "Patch",
    "Predicate",
    "Probe",
    "Problem",
    "Refused",
    "Result",
    "Sets",
    "Shape",
    "Takes",
    "Unclear",
    "Use",
    "apply",
    "diff",
    "patches",
    "probe",
    "revert",
    "status",
    "verify",
]

_HOMES = (
    *("errors", "core.overlay", "core.predicates", "core.authoring", "core.edits.definitions"),
    *("core.edits.imports", "core.edits.patch", "api", "project"),
)


if not TYPE_CHECKING:  # or else type checkers would take any name for one of these

    def __getattr__(name: str) -> object:
        """Import a name when it is asked for: `vpatch run` starts sooner without the engine."""
        if name in __all__:
            for module in map(import_module, (f"vpatch.{home}" for home in _HOMES)):
                if hasattr(module, name):
                    return globals().setdefault(name, getattr(module, name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return the names, imported yet or not."""
        return sorted({*globals(), *__all__})
