"""Idempotent, reversible source overlays for an installed vLLM.

This module is what overlay authors import.
"""

from vpatch.core.edits import (
    AddFile,
    AddFunction,
    AddKeyword,
    AddParameter,
    DeleteStatements,
    EnsureFutureAnnotations,
    EnsureImport,
    InsertAfter,
    InsertBefore,
    ReplaceExpr,
    ReplaceFunction,
    ReplaceStatements,
    companion,
)
from vpatch.core.overlay import Need, Overlay, Part, Probe, Shape, Use
from vpatch.core.predicates import All, AnyOf, Contains, Defines, Imports, Lists, Not, Sets, Takes
from vpatch.core.probes import probe

__all__ = [
    "AddFile",
    "AddFunction",
    "AddKeyword",
    "AddParameter",
    "All",
    "AnyOf",
    "Contains",
    "Defines",
    "DeleteStatements",
    "EnsureFutureAnnotations",
    "EnsureImport",
    "Imports",
    "InsertAfter",
    "InsertBefore",
    "Lists",
    "Need",
    "Not",
    "Overlay",
    "Part",
    "Probe",
    "ReplaceExpr",
    "ReplaceFunction",
    "ReplaceStatements",
    "Sets",
    "Shape",
    "Takes",
    "Use",
    "companion",
    "probe",
]
