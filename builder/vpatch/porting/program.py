"""Whether two texts of a module are the same program, so that a patch file does what the change did.

Layout, comments and docstrings do not count; nor does the order of imports, of the definitions of a class or module, of
the keywords of a call, and of parameters that are passed by keyword.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from vpatch.core import nesting
from vpatch.core.syntax import DEFINITIONS
from vpatch.porting.align import is_text
from vpatch.porting.imports import guarded, names_of, ordinary


def text_in(path: str, data: bytes) -> str:
    """Return the text of a module, or of a data file, which is UTF-8.

    Raises:
        SyntaxError, Unparsable, UnicodeDecodeError: the bytes are no text.
    """
    if path.endswith(".py"):
        return nesting.decode(data)[0]
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise nesting.Unparsable("it is binary: no text in UTF-8") from error


def difference(found: str, wanted: str, before: str = "") -> str:
    """Return the name of a definition in which two modules differ, or what else does; "" if they are one program.

    Args:
        found: the text of one.
        wanted: the text of the other.
        before: the text of both before they changed; imports that `wanted` lacks may stay from there.

    Raises:
        SyntaxError, Unparsable: one of them is not valid Python.
    """
    mine, theirs, old = (nesting.parse(text) for text in (found, wanted, before))
    kept = {**names_of(old.body), **names_of(guarded(old))}
    for names, wants in (
        (names_of(mine.body), names_of(theirs.body)),
        (names_of(guarded(mine)), names_of(guarded(theirs))),
    ):
        if odd := next((name for name in (*(wants.keys() - names), *(names.keys() - wants - kept.keys()))), None):
            return f"the import of {odd[2]}"
    one, other = (
        sorted(
            ((name, ast.dump(_plain(node))) for name, node in _pieces(ordinary(tree.body))), key=lambda piece: piece[0]
        )
        for tree in (mine, theirs)
    )
    for (name, code), (other_name, other_code) in zip(one, other, strict=False):
        if name != other_name or code != other_code:
            return min(name, other_name) or "the module's statements"
    return "" if len(one) == len(other) else [*one, *other][min(len(one), len(other))][0] or "the module's statements"


def _pieces(body: Sequence[ast.stmt], around: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the definitions of a class or module by their qualified names, and its other statements by its own name."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            name = f"{around}{node.name}"
            yield f"{name} (its header)", ast.ClassDef(node.name, node.bases, node.keywords, [], node.decorator_list)
            yield from _pieces(node.body, f"{name}.")
        elif not (is_text(node) or isinstance(node, ast.Pass)):
            yield (f"{around}{node.name}" if isinstance(node, DEFINITIONS) else around), node


def _plain(node: Any) -> Any:
    """Return a statement without what does not count; the statement itself is changed."""
    for one in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(one, name, None), list):
                setattr(one, name, [row for row in block if not (is_text(row) or isinstance(row, ast.Pass))])
        if isinstance(one, ast.Call):
            one.keywords.sort(key=lambda keyword: keyword.arg or "")
        elif isinstance(one, ast.arguments):
            pairs = sorted(zip(one.kwonlyargs, one.kw_defaults, strict=True), key=lambda pair: pair[0].arg)
            one.kwonlyargs, one.kw_defaults = [arg for arg, _ in pairs], [value for _, value in pairs]
    return node
