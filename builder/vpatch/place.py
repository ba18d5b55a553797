"""The statements of a module, as Python's own parser sees them, that a path through libcst's tree passes."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from vpatch import cst
from vpatch.syntax import Path, along


def chain(module: cst.Module, tree: ast.Module, path: Path) -> list[ast.stmt]:
    """List the statements around and at `path`, outermost first, as nodes of `tree`, the same module's syntax tree."""
    nodes = along(module, path)
    owner: ast.AST = tree
    block: Sequence[ast.stmt] = tree.body
    found: list[ast.stmt] = []
    for (field, index), parent, node in zip(path, nodes, nodes[1:], strict=False):
        match parent:
            case cst.Module() | cst.IndentedBlock():
                block = block[sum(map(_width, parent.body[:index])) :]
                if not isinstance(node, cst.SimpleStatementLine):
                    owner = block[0]
                    found.append(block[0])
            case cst.SimpleStatementLine() | cst.SimpleStatementSuite():
                return [*found, block[index]]
            case cst.Else() | cst.Finally():
                pass  # its block is the one that led here
            case _ if field in {"handlers", "cases"}:
                owner = getattr(owner, field)[index]
            case _ if isinstance(node, cst.Else | cst.Finally):
                block = getattr(owner, field)
            case _ if field == "orelse" and isinstance(node, cst.If):  # `elif`
                (owner,) = owner.orelse  # type: ignore[attr-defined]
                found.append(owner)  # type: ignore[arg-type]
            case _ if isinstance(node, cst.BaseSuite):
                block = owner.body  # type: ignore[attr-defined]
            case _:
                return found  # an expression, or the header of a compound statement
    return [*found, block[0]] if isinstance(nodes[-1], cst.SimpleStatementLine) else found


def _width(node: cst.CSTNode) -> int:
    return len(node.body) if isinstance(node, cst.SimpleStatementLine) else 1
