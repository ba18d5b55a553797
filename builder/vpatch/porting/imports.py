"""What changes in the imports of a module, and which definitions may stand at its end."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeGuard

from vpatch.core.edits.imports import GUARD

_IMPORTS = ast.Import | ast.ImportFrom
_Name = tuple[str, int, str, str | None]
"""An imported name: the module, how many dots before it, the name, and what it is called."""
Names = dict[_Name, None]


def ordinary(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements that are no imports, nor `if TYPE_CHECKING` with imports alone."""
    return [
        node for node in body if not isinstance(node, _IMPORTS) and not (_is_guard(node) and not ordinary(node.body))
    ]


def import_hunks(before: ast.Module, after: ast.Module) -> tuple[list[str], tuple[str, ...]]:
    """Return the hunks of imports that change, and a note on each that goes, which stays where it is."""
    known, now = names_of(before.body), names_of(after.body)
    typing, typing_now = names_of(guarded(before)), names_of(guarded(after))
    found = [
        *_changed("", before.body, known, now),
        *_changed(f" / {GUARD}", guarded(before), known | typing, typing_now),
    ]
    kept = {_bound(one) for one in now | typing_now}
    gone = [one for one in known | typing if _bound(one) not in kept]
    return found, tuple(f"keeps the import of `{_bound(one)}`, which the change drops" for one in gone)


def _changed(where: str, body: Sequence[ast.stmt], known: Names, now: Names) -> Iterator[str]:
    """Yield the hunks of one block: of imports that come, and of imports that take a name from elsewhere."""
    came = [one for one in now if one not in known]
    for node in body:
        mine = names_of([node])
        names = {_bound(one) for one in mine if one not in now}
        if other := [one for one in came if _bound(one) in names]:
            came = [one for one in came if one not in other]
            left = [one for one in mine if _bound(one) not in {_bound(new) for new in other}]
            lines = [f"-{ast.unparse(node)}", *(f"+{line}" for line in _statements([*left, *other]))]
            yield f"@@{where}\n" + "".join(f"{line}\n" for line in lines)
    if came:
        yield f"@@ import{where}\n" + "".join(f"+{line}\n" for line in _statements(came))


def is_movable(tree: ast.Module, node: Any) -> bool:
    """Whether a definition may stand at the end of its class or module: nothing reads it while that is imported."""
    if any(isinstance(one, ast.If) and "__main__" in ast.dump(one.test) for one in tree.body):
        return False
    return node.name not in set(_read_at_import(tree))


def _read_at_import(node: ast.AST) -> Iterator[str]:
    """Yield the names that are read outside of functions."""
    if isinstance(node, ast.Name):
        yield node.id
    inner: Sequence[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        inner = [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]
    elif isinstance(node, ast.Lambda):
        inner = [node.args]
    for child in inner:
        yield from _read_at_import(child)


def guarded(tree: ast.Module) -> list[ast.stmt]:
    """Return the statements below the `if TYPE_CHECKING` of a module."""
    return [node for guard in tree.body if _is_guard(guard) for node in guard.body]


def _is_guard(node: ast.stmt) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse


def names_of(body: Sequence[ast.stmt]) -> Names:
    """Return the names that the imports in a block import."""
    found: Names = {}
    for node in body:
        if isinstance(node, ast.Import):
            found |= {("", 0, alias.name, alias.asname): None for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", node.level, alias.name, alias.asname): None for alias in node.names}
    return found


def _bound(name: _Name) -> str:
    module, level, what, called = name
    return called or (what if module or level else what.partition(".")[0])


def _statements(names: Iterable[_Name]) -> Iterator[str]:
    """Yield statements that import the names, one for each module."""
    groups: dict[object, list[_Name]] = {}
    for one in names:
        groups.setdefault(one[:2] if one[0] or one[1] else one, []).append(one)
    yield from map(_statement, groups.values())


def _statement(names: Sequence[_Name]) -> str:
    whole = ", ".join(f"{what} as {called}" if called else what for _, _, what, called in names)
    module, level, *_ = names[0]
    return f"from {'.' * level}{module} import {whole}" if module or level else f"import {whole}"
