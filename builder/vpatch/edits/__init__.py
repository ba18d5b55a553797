"""The kinds of change that an overlay is made of, one kind a module. All are frozen dataclasses."""

from vpatch.edits.arguments import AddKeyword, AddParameter
from vpatch.edits.delete import DeleteStatements
from vpatch.edits.expr import ReplaceExpr
from vpatch.edits.files import AddFile, companion
from vpatch.edits.functions import AddFunction, ReplaceFunction
from vpatch.edits.imports import EnsureFutureAnnotations, EnsureImport
from vpatch.edits.statements import InsertAfter, InsertBefore, ReplaceStatements

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
    "companion",
]
