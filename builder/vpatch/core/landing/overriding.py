"""What may replace a definition that an overlay changes, so that the changed code never runs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator

from vpatch.core.landing.binding import Scope, dotted
from vpatch.core.landing.definitions import Module
from vpatch.core.landing.flow import STAR, Definition, Function

Line = Callable[[int], int]

_ACCESSORS = frozenset({"getter", "setter", "deleter"})

# Decorators that give back the function, or something that calls it.
_KEEPING = frozenset(
    f"{module}.{name}"
    for module, names in (
        ("builtins", "classmethod staticmethod property"),
        ("functools", "cached_property cache lru_cache wraps"),
        ("abc", "abstractmethod"),
        ("typing", "override final overload no_type_check"),
        ("typing_extensions", "override final overload deprecated"),
        ("warnings", "deprecated"),
        ("contextlib", "contextmanager asynccontextmanager"),
        ("torch", "inference_mode no_grad enable_grad"),
        ("triton", "jit autotune heuristics constexpr_function"),
        ("vllm.triton_utils.triton", "jit autotune heuristics constexpr_function"),
        ("vllm.tracing", "instrument"),
    )
    for name in names.split()
)
_STUBS = frozenset({"typing.overload", "typing_extensions.overload"})


def overrides(
    definition: Definition, scope: Scope, module: Module, line: Line, changed: Collection[ast.AST]
) -> Iterator[str]:
    """Yield what may replace a definition, directly in `scope`, by something else.

    Args:
        definition: the definition.
        scope: the scope that it stands in.
        module: the module around.
        line: translates a line of `module` into the line of the file as it is on disk.
        changed: definitions that the overlay changes. Where a name has several, it may change each.
    """
    name = definition.name
    full = f"{scope.name}.{name}".strip(".")
    if definition not in scope.flow.before:
        yield f"`{full}` is defined only where it never runs"
        return

    def cause(at: int, what: str) -> str:
        return f"line {line(at)}{what} `{full}` of line {line(definition.lineno)}"

    for stmt in scope.binders(name):
        if stmt is not definition and stmt not in changed and _replaces(stmt, definition, scope):
            yield cause(stmt.lineno, f", {headline(stmt)}, overrides")
    for stmt in scope.binders(STAR):
        if stmt.lineno > definition.lineno:
            yield cause(stmt.lineno, f", {headline(stmt)}, may override")
    if isinstance(scope.node, ast.ClassDef):
        replaced = {each.line for each in module.replaced if each.attribute == name and each.of == scope.name}
        yield from (cause(at, " overrides") for at in sorted(replaced))
    if scope.outer is None and name in scope.global_in_functions:
        yield f"a function that declares `global {name}` may override `{full}` of line {line(definition.lineno)}"


def decorated(definition: Definition, scope: Scope, line: Line) -> Iterator[str]:
    """Yield the decorators of a function that are not known to keep it."""
    if isinstance(definition, Function):
        full = f"{scope.name}.{definition.name}".strip(".")
        for decorator in definition.decorator_list:
            if not (_accessor(decorator, definition) or _is_one_of(decorator, scope, _KEEPING)):
                told = f"`@{ast.unparse(decorator)}` may replace `{full}` by something else"
                yield f"line {line(definition.lineno)}: {told}"


def headline(stmt: ast.stmt) -> str:
    """Quote the first line of a statement, shortened."""
    text = ast.unparse(stmt).splitlines()[0]
    return f"`{text if len(text) <= 80 else text[:77] + '...'}`"


def _replaces(other: ast.stmt, definition: Definition, scope: Scope) -> bool:
    """Whether a statement that binds the same name takes the place of a definition.

    A property stays what it is when it gets further accessors, and an accessor when it stands behind what it adds to.
    """
    mine, theirs = accessor_role(definition), accessor_role(other)
    if theirs:
        return theirs == mine or (not mine and theirs == "getter")
    if isinstance(other, Function) and any(_is_one_of(each, scope, _STUBS) for each in other.decorator_list):
        return False
    return not mine or other.lineno > definition.lineno


def accessor_role(stmt: ast.stmt) -> str:
    """Return "getter", "setter" or "deleter" for a function that is that accessor of a property, else ""."""
    roles = (_accessor(each, stmt) for each in stmt.decorator_list) if isinstance(stmt, Function) else ()
    return next(filter(None, roles), "")


def _accessor(decorator: ast.expr, function: ast.stmt) -> str:
    owner, _, role = dotted(decorator).rpartition(".")
    return role if owner == getattr(function, "name", None) and role in _ACCESSORS else ""


def _is_one_of(decorator: ast.expr, scope: Scope, known: Collection[str]) -> bool:
    origins = scope.origins(name) if (name := dotted(decorator)) else frozenset()
    return bool(origins) and all(origin in known for origin in origins)
