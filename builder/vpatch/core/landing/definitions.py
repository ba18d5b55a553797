"""A module as Python's parser sees it, with everything that replaces attributes of its classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vpatch.core.landing.binding import Scope, annotated_by, dotted
from vpatch.core.landing.flow import Definition, children


@dataclass(frozen=True)
class Replacement:
    """`owner.attribute = ...` or its like, on a line. `scope` reads the owner's name; None if that is qualified."""

    owner: str
    attribute: str
    line: int
    scope: Scope | None

    @property
    def of(self) -> str:
        """The qualified name of the owner."""
        home = self.scope.home(self.owner.partition(".")[0]) if self.scope else None
        return f"{home.name}.{self.owner}".strip(".") if home else self.owner


@dataclass(frozen=True)
class Module:
    """A parsed module: its scope, and what replaces attributes of its classes from outside their bodies.

    `replaced` has `Owner.attribute = ...`, `setattr(Owner, "attribute", ...)`, their deletions, and
    `self.attribute = ...` in a method of `Owner`.
    """

    tree: ast.Module
    scope: Scope
    replaced: Sequence[Replacement]

    @property
    def defers_annotations(self) -> bool:
        """Whether annotations are not evaluated when a definition runs (PEP 563)."""
        return any(
            isinstance(stmt, ast.ImportFrom)
            and stmt.module == "__future__"
            and any(alias.name == "annotations" for alias in stmt.names)
            for stmt in self.tree.body
        )

    def scopes(self, name: str) -> list[Scope]:
        """List the scopes of the definitions that a qualified name leads to."""
        found = [self.scope]
        for step in name.split(".") if name else ():
            found = [s.inner(stmt) for s in found for stmt in s.binders(step) if isinstance(stmt, Definition)]
        return found

    def attributes(self, owner: Scope) -> Iterator[str]:
        """Yield what the instances of a class have by the class itself and by its bases in the same module."""
        seen: set[Scope] = set()
        todo = [owner]
        while todo:
            if (scope := todo.pop()) in seen:
                continue
            seen.add(scope)
            yield from scope.own
            yield from (name for stmt in scope.node.body for name in annotated_by(stmt))
            yield from (each.attribute for each in self.replaced if each.scope is None and each.owner == scope.name)
            for base in getattr(scope.node, "bases", ()):
                bound = self.scope.binders(dotted(base.value if isinstance(base, ast.Subscript) else base))
                todo += [self.scope.inner(stmt) for stmt in bound if isinstance(stmt, ast.ClassDef)]


_LEAVES = frozenset({ast.Name, ast.Constant, ast.alias})
"""Half of a module's nodes: they have nothing in them, and replace nothing."""


def analyzed(tree: ast.Module) -> Module:
    """Collect the scopes of a module, and what replaces attributes of its classes.

    Raises:
        RecursionError: it is nested too deeply.
    """
    declared: set[str] = set()
    module = Scope(tree, None, declared)
    replaced: list[Replacement] = []
    todo: list[tuple[ast.AST, Scope, str, str]] = [(tree, module, "", "")]
    while todo:
        node, scope, owner, instance = todo.pop()  # `instance`: the first parameter of the method of class `owner`
        inner = scope
        match node:
            case ast.Attribute(value=value, attr=attr, ctx=ast.Store() | ast.Del()):
                replaced += _replacement(value, attr, scope, owner, instance)
            case ast.Call(
                func=ast.Name(id="setattr" | "delattr") | ast.Attribute(attr="__setattr__" | "__delattr__"),
                args=[target, ast.Constant(value=str(attr)), *_],
            ):
                replaced += _replacement(target, attr, scope, owner, instance)
            case ast.AnnAssign(value=None):
                continue
            case ast.Global(names=names):
                declared.update(names)
            case ast.ClassDef():
                inner = scope.inner(node)
                owner, instance = inner.name, ""
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                inner = scope.inner(node)
                given = [*node.args.posonlyargs, *node.args.args]
                static = any(dotted(decorator) == "staticmethod" for decorator in node.decorator_list)
                if isinstance(scope.node, ast.ClassDef):
                    instance = given[0].arg if given and not static else ""
        todo.extend((child, inner, owner, instance) for child in children(node) if child.__class__ not in _LEAVES)
    return Module(tree, module, tuple(replaced))


def _replacement(target: ast.expr, attribute: str, scope: Scope, owner: str, instance: str) -> Iterator[Replacement]:
    match target:
        case ast.Call(func=ast.Name(id="type"), args=[inner]) | ast.Attribute(value=inner, attr="__class__"):
            target = inner
    if isinstance(target, ast.Name) and target.id == instance:
        yield Replacement(owner, attribute, target.lineno, None)
    elif not any(isinstance(node, ast.Call) for node in ast.walk(target)) and (name := dotted(target)):
        yield Replacement(name, attribute, target.lineno, scope)
