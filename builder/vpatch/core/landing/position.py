"""The statements of a module, as Python's own parser sees them, that a path through libcst's tree passes."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from vpatch.core import cst
from vpatch.core.landing.binding import inner_names
from vpatch.core.parse import width
from vpatch.core.syntax import Path, along


def chain(module: cst.Module, tree: ast.Module, path: Path) -> list[ast.AST]:
    """List what holds the code at `path`, outermost first, as nodes of `tree`, the same module's syntax tree.

    These are statements, and the exception handlers and match cases between them.
    """
    nodes = along(module, path)
    owner: ast.AST = tree
    block: Sequence[ast.stmt] = tree.body
    found: list[ast.AST] = []
    for (field, index), parent, node in zip(path, nodes, nodes[1:], strict=False):
        match parent:
            case cst.Module() | cst.IndentedBlock():
                block = block[sum(map(width, parent.body[:index])) :]
                if not isinstance(node, cst.SimpleStatementLine):
                    owner = block[0]
                    found.append(block[0])
            case cst.SimpleStatementLine() | cst.SimpleStatementSuite():
                return [*found, block[index]]
            case cst.Else() | cst.Finally():
                continue  # its block is the one that led here
            case _ if field in {"handlers", "cases"}:
                owner = getattr(owner, field)[index]
                found.append(owner)
            case _ if isinstance(node, cst.Else | cst.Finally):
                block = getattr(owner, field)
            case _ if field == "orelse" and isinstance(node, cst.If):  # `elif`
                (owner,) = owner.orelse  # type: ignore[attr-defined]
                found.append(owner)
            case _ if isinstance(node, cst.BaseSuite):
                block = owner.body  # type: ignore[attr-defined]
            case _:
                return found  # an expression, or the header of a compound statement
    return [*found, block[0]] if isinstance(nodes[-1], cst.SimpleStatementLine) else found


def named_around(module: cst.Module, path: Path) -> frozenset[str]:
    """Collect the names that the comprehensions and lambdas around the expression at `path` bind for it."""
    names: set[str] = set()
    for depth, node in enumerate(along(module, path)[:-1]):
        fields = [field for field, _ in path[depth : depth + 2]]
        if isinstance(node, cst.Lambda) and fields[0] == "params":  # defaults are evaluated around it,
            continue
        if isinstance(node, cst.BaseComp) and fields == ["for_in", "iter"]:  # and so is the first iterable
            continue
        if isinstance(node, cst.Lambda | cst.BaseComp):
            names |= inner_names(ast.parse(f"({module.code_for_node(node)})", mode="eval").body)
    return frozenset(names)


def in_annotation(module: cst.Module, path: Path) -> bool:
    """Whether the expression at `path` belongs to an annotation."""
    return any(isinstance(node, cst.Annotation) for node in along(module, path))
