"""A function within another one runs only if that one hands it on: by its name, or as an attribute of some object."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vpatch.core.landing.binding import Scope, plain_name
from vpatch.core.landing.definitions import Line, Module, Replacement
from vpatch.core.landing.flow import Definition, Function, statements

_BY_TEXT = frozenset({"locals", "vars", "eval", "exec"})
"""Functions that may read a variable without its name in the code."""


def unused(definition: Definition, scope: Scope, module: Module, line: Line) -> Iterator[str]:
    """Yield why nothing calls a function that stands directly in the function of `scope`.

    Nothing else reads its name; or it only becomes an attribute, as in `cls.method = method`, that gets another value
    before anything is called. With a decorator it may be registered somewhere.

    Args:
        definition: the definition.
        scope: the scope that holds it.
        module: the module that holds it.
        line: maps lines of `module`.
    """
    if not (isinstance(definition, Function) and isinstance(scope.node, Function)) or definition.decorator_list:
        return
    name, full = definition.name, f"{scope.name}.{definition.name}"
    if scope.home(name) is not scope:
        return
    reads = [found for stmt in scope.node.body for found in module.reads(stmt, scope)]
    users = [stmt for read, _, stmt, where in reads if read.name == name and where.home(name) is scope]
    users = [stmt for stmt in users if not _within(stmt.lineno, [definition])]
    if any(read.name in _BY_TEXT for read, *_ in reads):
        return
    if not users:
        yield f"nothing in `{scope.name}` reads `{name}` of line {line(definition.lineno)}: it never runs"
    replaced = [_replaced(stmt, name, scope, module) for stmt in users]
    if all(replaced):
        for each in dict.fromkeys(one for several in replaced for one in several):
            yield f"line {line(each.line)} overrides `{each.owner}.{each.attribute}`, which was `{full}`"


def _replaced(stmt: ast.stmt, name: str, scope: Scope, module: Module) -> list[Replacement]:
    """List what replaces each attribute that a statement sets to the function; none if it does something else."""
    match stmt:
        case ast.Assign(targets=[ast.Attribute() as target], value=ast.Name(id=value)) if value == name:
            owner, _, attribute = plain_name(target).rpartition(".")
        case _:
            return []
    return [
        each
        for each in module.replaced
        if (each.scope, each.owner, each.attribute) == (scope, owner, attribute)
        and each.line > stmt.lineno
        and not _exclusive(scope, stmt.lineno, each.line)
        and not _wraps(scope, each)
        and not _runs_between(scope, stmt.lineno, each.line)
    ]


def _exclusive(scope: Scope, one: int, other: int) -> bool:
    """Whether two lines of a function are in two branches of an `if`."""
    branches = [each for each in statements(scope.node.body) if isinstance(each, ast.If)]
    return any(_within(one, each.body) and _within(other, each.orelse) for each in branches)


def _runs_between(scope: Scope, one: int, other: int) -> bool:
    """Whether code between two lines may call the function, as where one restores what another one replaced."""
    nodes = (node for node in ast.walk(scope.node) if isinstance(node, ast.Call | ast.Yield | ast.Await))
    return any(one < node.lineno < other for node in nodes)


def _wraps(scope: Scope, each: Replacement) -> bool:
    """Whether the statement that sets an attribute reads it, as in `cls.method = wrapped(cls.method)`."""
    old = f"{each.owner}.{each.attribute}"
    found = (node for stmt in statements(scope.node.body) if _within(each.line, [stmt]) for node in ast.walk(stmt))
    return any(isinstance(n, ast.Attribute) and type(n.ctx) is ast.Load and plain_name(n) == old for n in found)


def _within(number: int, block: list[ast.stmt]) -> bool:
    return any(stmt.lineno <= number <= (stmt.end_lineno or 0) for stmt in block)
