"""What a patch file adds to vLLM that its reader has to know of: imports, of which some run code of others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vpatch.core import nesting
from vpatch.core.edits.definitions import AddFile, AddFunction
from vpatch.core.edits.imports import EnsureImport
from vpatch.core.edits.patch import Patch
from vpatch.core.overlay import Edit
from vpatch.core.patch_file import PatchFile, overlay_of


def imports(patch: PatchFile) -> tuple[tuple[str, str], ...]:
    """Return the imports that a patch file adds, each once: the module that gets it, and the statement.

    Raises:
        ValueError: a hunk cannot be read.
    """
    edits = [edit for part in overlay_of(patch).parts for shape in part.shapes for edit in shape.edits]
    return tuple(dict.fromkeys((edit.file, statement) for edit in edits for statement in _of(edit)))


def _of(edit: Edit) -> Iterator[str]:
    for node in _coming(edit):
        yield from (ast.unparse(one) for one in ast.walk(node) if isinstance(one, ast.Import | ast.ImportFrom))


def _coming(edit: Edit) -> Iterator[ast.AST]:
    match edit:
        case EnsureImport(statement=code) | AddFunction(new=code) | AddFile(text=code):
            yield nesting.parse(code)
        case Patch(hunk=hunk):
            yield from (item.new for item in hunk.every if item.old is None)
