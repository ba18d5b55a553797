"""The kinds of change that an overlay is made of, one kind a module. All are frozen dataclasses."""

from vpatch.core.edits.definitions import AddFile, AddFunction, ReplaceFunction
from vpatch.core.edits.expressions import AddKeyword, AddParameter, ReplaceExpr
from vpatch.core.edits.imports import EnsureFutureAnnotations, EnsureImport
from vpatch.core.edits.statements import DeleteStatements, InsertAfter, InsertBefore, ReplaceStatements

__all__ = [
    "AddFile",
    "AddFunction",
    "AddKeyword",
    "AddParameter",
    "DeleteStatements",
    "EnsureFutureAnnotations",
    "EnsureImport",
    "InsertAfter",
    "InsertBefore",
    "ReplaceExpr",
    "ReplaceFunction",
    "ReplaceStatements",
]
