"""The kinds of change that an overlay is made of, one kind a module. All are frozen dataclasses."""

from vpatch.core.edits.arguments import AddKeyword, AddParameter
from vpatch.core.edits.delete import DeleteStatements
from vpatch.core.edits.expr import ReplaceExpr
from vpatch.core.edits.files import AddFile
from vpatch.core.edits.functions import AddFunction, ReplaceFunction
from vpatch.core.edits.imports import EnsureFutureAnnotations, EnsureImport
from vpatch.core.edits.statements import InsertAfter, InsertBefore, ReplaceStatements

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
