"""Run some statements of a function of vLLM's, without the function around them."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from unittest.mock import MagicMock


class Names(dict[str, Any]):
    """Names by which statements run; a name that is not set there, and no built-in, stands for anything."""

    def __missing__(self, name: str) -> Any:
        return vars(builtins)[name] if hasattr(builtins, name) else MagicMock()


def run(function: Any, wants: Callable[[ast.stmt], bool], names: Mapping[str, Any]) -> Names:
    """Run all statements of a function that `wants` takes, but none that stands in another one of them.

    Args:
        function: of vLLM's.
        wants: whether to run a statement.
        names: what the statements read beside the module's.

    Returns:
        All names, also what the statements set.

    Raises:
        LookupError: there is no such statement.
    """
    found = Names(vars(inspect.getmodule(function)) | dict(names))
    exec(_compiled(function, wants), {}, found)  # noqa: S102 - vLLM's own statements
    return found


def holding(code: str, kind: type[ast.stmt]) -> Callable[[ast.stmt], bool]:
    """Want statements of a kind, such as `ast.If`, in which this code stands, as `ast.unparse` writes it."""
    return lambda one: isinstance(one, kind) and code in ast.unparse(one)


@cache
def _compiled(function: Any, wants: Callable[[ast.stmt], bool]) -> Any:
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    found = list(_outermost(tree, wants))
    if not found:
        raise LookupError(f"this vLLM has other code in {function.__name__}")
    loop = ast.While(ast.Constant(value=True), [*found, ast.Break()], [])  # they may leave one
    return compile(ast.fix_missing_locations(ast.Module([loop], [])), function.__name__, "exec")


def _outermost(node: ast.AST, wants: Callable[[ast.stmt], bool]) -> Any:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and wants(child):
            yield child
        else:
            yield from _outermost(child, wants)
