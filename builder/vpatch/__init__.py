"""Idempotent, reversible source overlays for an installed vLLM.

This module is what overlay authors import.
"""

from vpatch.core.authoring import Block, Companion, File
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
)
from vpatch.core.overlay import Edits, Need, Overlay, Part, Predicate, Probe, Shape, Use
from vpatch.core.predicates import All, AnyOf, Contains, Defines, Imports, Lists, Not, Sets, Takes
from vpatch.core.probes import probe

__all__ = [
    "AddFile",
    "AddFunction",
    "AddKeyword",
    "AddParameter",
    "All",
    "AnyOf",
    "Block",
    "Companion",
    "Contains",
    "Defines",
    "DeleteStatements",
    "Edits",
    "EnsureFutureAnnotations",
    "EnsureImport",
    "File",
    "Imports",
    "InsertAfter",
    "InsertBefore",
    "Lists",
    "Need",
    "Not",
    "Overlay",
    "Part",
    "Predicate",
    "Probe",
    "ReplaceExpr",
    "ReplaceFunction",
    "ReplaceStatements",
    "Sets",
    "Shape",
    "Takes",
    "Use",
    "probe",
]
