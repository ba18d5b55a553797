"""Python's scoping rules in one module: what a name refers to, and everything that binds it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from vpatch.core.landing.flow import (
    COMPREHENSIONS,
    Definition,
    Flow,
    Function,
    Names,
    bound_by,
    flow,
    header,
    statements,
)

_IMPLICIT = frozenset({"__file__", "__path__", "__class__", "__module__", "__qualname__"})
_DEFERRED = (ast.Lambda, ast.GeneratorExp)


@dataclass(frozen=True)
class Read:
    """A name that some code reads; `late`: only after its statement ran, as in the body of a lambda."""

    name: str
    late: bool = False


@dataclass(frozen=True, eq=False)
class Scope:
    """A module, class or function, with the scope around it and the names that functions declare global."""

    node: ast.Module | Definition
    outer: Scope | None = None
    global_in_functions: Collection[str] = ()
    _inner: dict[Definition, Scope] = field(default_factory=dict)

    def inner(self, node: Definition) -> Scope:
        """Return the scope of a definition directly in this scope."""
        return self._inner.setdefault(node, Scope(node, self))

    def free(self) -> None:
        """Forget the scopes of definitions: scopes that know each other outlive their last user."""
        while self._inner:
            self._inner.popitem()[1].free()

    @property
    def name(self) -> str:
        """The qualified name; "" for the module."""
        around = self.outer.name if self.outer else ""
        return f"{around}.{getattr(self.node, 'name', '')}".strip(".")

    @cached_property
    def parameters(self) -> Names:
        """The names of a function's parameters, type parameters included."""
        names = {parameter.name for parameter in getattr(self.node, "type_params", ())}
        if isinstance(self.node, Function):
            names |= _parameters(self.node.args)
        return frozenset(names)

    @cached_property
    def flow(self) -> Flow:
        """The names that may be bound at each statement."""
        return flow(self.node.body, self.parameters)

    @cached_property
    def _declared(self) -> dict[str, str]:
        kinds = {ast.Global: "global", ast.Nonlocal: "nonlocal"}
        return {n: kinds[type(s)] for s in statements(self.node.body) if type(s) in kinds for n in s.names}  # type: ignore[attr-defined]

    @cached_property
    def own(self) -> Names:
        """The scope's own names: bound, annotated or deleted anywhere in it."""
        bound = frozenset().union(*self._bound.values(), self.parameters)
        if isinstance(self.node, Function):
            bound |= {name for stmt in self._bound for name in (*_deleted_by(stmt), *annotated_by(stmt))}
        return bound - self._declared.keys()

    @property
    def module(self) -> Scope:
        """The outermost scope."""
        return self.outer.module if self.outer else self

    def home(self, name: str) -> Scope | None:
        """Return the scope that owns `name` as read here; None for builtins and unbound names."""
        scope: Scope | None = self
        if self._declared.get(name) == "global":
            scope = self.module
        elif self._declared.get(name) == "nonlocal":
            scope = self.outer
        while scope and name not in scope.own:
            scope = scope.outer
            while scope and isinstance(scope.node, ast.ClassDef):  # its names are not seen from functions in it
                scope = scope.outer
        return scope

    def binds(self, name: str, at: ast.AST, *, late: bool = False) -> bool:
        """Whether `name` may be bound when `at` reads it, or, if `late`, after `at` ran.

        `at` is a statement, an exception handler or a match case directly in this scope.
        """
        home = self.home(name)
        if home is not None and home is not home.module:
            if home is not self or late or self.flow.binds(name, self.flow.before.get(at)):
                return True
            if name in _bound_on_the_way(at):
                return True
            if not isinstance(self.node, ast.ClassDef):
                return False
        # What the body of a class has not bound yet, Python looks up in the module.
        outer = self.module
        first = self._run_by_import(at)
        if first is None or late:  # all of the module has run
            bound = outer.flow.binds(name, outer.flow.end) or name in outer.global_in_functions
        else:
            bound = outer.flow.binds(name, outer.flow.before.get(first))
        here = _bound_on_the_way(at) if home is self else ()
        return bound or name in here or name in _IMPLICIT or hasattr(builtins, name)

    def _run_by_import(self, at: ast.AST) -> ast.AST | None:
        """Return the module's statement that runs `at` during import; None inside functions, which run later."""
        if self.outer is None:
            return at
        return None if isinstance(self.node, Function) else self.outer._run_by_import(self.node)

    @cached_property
    def _bound(self) -> Mapping[ast.stmt, Names]:
        return {stmt: frozenset(_bound_in(stmt)) for stmt in statements(self.node.body)}

    @cached_property
    def _binders(self) -> Mapping[str, list[ast.stmt]]:
        found: dict[str, list[ast.stmt]] = {}
        for stmt, names in self._bound.items():
            if stmt in self.flow.before:
                for name in names | _deleted_by(stmt):
                    found.setdefault(name, []).append(stmt)
        return found

    def binders(self, name: str) -> list[ast.stmt]:
        """List the reachable statements directly in this scope that bind or delete `name`."""
        return self._binders.get(name, [])

    def origins(self, name: str) -> frozenset[str]:
        """Resolve a dotted name by the imports that bind its first part; "" for each other binding.

        `ft.cache` is `functools.cache` after `import functools as ft`, and `len` is `builtins.len`.
        """
        first, dot, rest = name.partition(".")
        if (home := self.home(first)) is None:
            return frozenset({f"builtins.{name}"})
        return frozenset(
            f"{origin}{dot}{rest}" if (origin := imported_as(first, stmt)) else "" for stmt in home.binders(first)
        )


def imported_as(name: str, stmt: ast.stmt) -> str:
    """Return what an import binds `name` to, as `module.name`; "" for any other statement."""
    for alias in stmt.names if isinstance(stmt, ast.Import | ast.ImportFrom) else ():
        bound = alias.asname or (alias.name.partition(".")[0] if isinstance(stmt, ast.Import) else alias.name)
        if bound == name and isinstance(stmt, ast.ImportFrom):
            return f"{'.' * stmt.level}{stmt.module or ''}.{alias.name}"
        if bound == name:
            return alias.name if alias.asname else bound
    return ""


def absolute(imported: str, file: str) -> str:
    """Return what `..module.name` means in a file, without the dots."""
    level = len(imported) - len(imported.lstrip("."))
    return ".".join(filter(None, [*file.split("/")[:-level], imported.lstrip(".")])) if level else imported


def _bound_in(stmt: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement, its exception handlers and its match cases bind."""
    yield from bound_by(stmt)
    for handler in getattr(stmt, "handlers", ()):
        yield from [handler.name] if handler.name else []
    for case in getattr(stmt, "cases", ()):
        yield from bound_by(case)


def _bound_on_the_way(stmt: ast.AST) -> Iterator[str]:
    """Yield the names that a header binds while it is evaluated: by `:=` and by the items of a `with`."""
    nodes = stmt.items if isinstance(stmt, ast.With | ast.AsyncWith) else header(stmt)
    for node in nodes:
        yield from bound_by(node) if isinstance(node, ast.withitem) else ()
        yield from (inner.target.id for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))


def _deleted_by(stmt: ast.stmt) -> set[str]:
    return {t.id for t in stmt.targets if isinstance(t, ast.Name)} if isinstance(stmt, ast.Delete) else set()


def annotated_by(stmt: ast.stmt) -> set[str]:
    """Return the name that an annotation declares, bound or not."""
    return {stmt.target.id} if isinstance(stmt, ast.AnnAssign) and isinstance(stmt.target, ast.Name) else set()


def _parameters(arguments: ast.arguments) -> set[str]:
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in given if argument}


def dotted(node: ast.expr) -> str:
    """Return a name or attribute as `a.b.c`, without the arguments of a call; "" for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{owner}.{attr}" if (owner := dotted(value)) else ""
        case ast.Call(func=func):
            return dotted(func)
    return ""


def plain_name(node: ast.expr) -> str:
    """Return a name or attribute as `a.b.c`; "" for anything else."""
    return "" if any(isinstance(each, ast.Call) for each in ast.walk(node)) else dotted(node)


def reads(node: ast.AST, *, annotations: bool, late: bool = False) -> Iterator[Read]:
    """Yield the names that an expression or a statement's header reads in its scope.

    The header of a definition has its decorators, defaults and bases. `annotations` are read if they are evaluated.
    """
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Store):
            yield Read(node.id, late)
        return
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield Read(node.target.id, late)
    inner = inner_names(node)
    for child, outside in _pieces(node):
        if not annotations and child in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            continue
        later = late or (isinstance(node, _DEFERRED) and not outside)
        found = reads(child, annotations=annotations, late=later)
        yield from (read for read in found if outside or read.name not in inner)


def inner_names(node: ast.AST) -> set[str]:
    """Return the names that a comprehension, a lambda or a generic definition binds inside itself."""
    if isinstance(node, COMPREHENSIONS):
        return {name for generator in node.generators for name in bound_by(generator.target)}
    if isinstance(node, ast.Lambda):
        return {*_parameters(node.args), *bound_by(node.body)}
    return {parameter.name for parameter in getattr(node, "type_params", ())}


def _pieces(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the parts of a header; True for parts of a comprehension or lambda that the outer scope evaluates."""
    first = node.generators[0] if isinstance(node, COMPREHENSIONS) else None
    for child in header(node):
        if first and child is first:
            yield first.iter, True
            yield from ((part, False) for part in (first.target, *first.ifs))
        else:
            yield child, isinstance(node, ast.Lambda)  # the defaults of its parameters
    if isinstance(node, ast.Lambda):
        yield node.body, False
