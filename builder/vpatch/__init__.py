"""Idempotent, reversible source overlays for an installed vLLM.

Overlay authors import the words of an overlay from here, programs the verbs: `status`, `diff`, `apply`, `revert` and
`verify` (see `vpatch.api`).
"""

from vpatch.api import Changed, Diff, Refused, Result, apply, diff, revert, status, verify
from vpatch.core.authoring import Block, Companion, File, Folder, probe
from vpatch.core.edits.definitions import AddFile, AddFunction, ReplaceFunction
from vpatch.core.edits.expressions import AddKeyword, AddParameter, ReplaceExpr
from vpatch.core.edits.imports import EnsureImport
from vpatch.core.edits.statements import DeleteStatements, InsertAfter, InsertBefore, ReplaceStatements
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

__all__ = [
    "AddFile",
    "AddFunction",
    "AddKeyword",
    "AddParameter",
    "All",
    "AnyOf",
    "Block",
    "Changed",
    "Companion",
    "Contains",
    "Defines",
    "DeleteStatements",
    "Diff",
    "Edits",
    "EnsureImport",
    "Failure",
    "File",
    "Folder",
    "HasFile",
    "HasFolder",
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
    "Problem",
    "Refused",
    "ReplaceExpr",
    "ReplaceFunction",
    "ReplaceStatements",
    "Result",
    "Sets",
    "Shape",
    "Takes",
    "Unclear",
    "Use",
    "apply",
    "diff",
    "probe",
    "revert",
    "status",
    "verify",
]
