"""Separate values that come from libraries from those of vLLM, where Jedi does not know a type.

torch need not be installed, so a tensor's `view` resolves to nothing. So does a method of something annotated `Any`,
and only that hides a call.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from vpatch.calls.resolve import Types
from vpatch.calls.sites import Site
from vpatch.core.landing.binding import dotted, imported_as
from vpatch.core.landing.flow import Function, bound_by, statements

_DEEPEST = 12  # steps from a value to where it comes from
_HANDED_ON = ("vllm.triton_utils.", "vllm._vpatch.")  # vLLM's modules that hand on a library, and companions


@dataclass(frozen=True)
class Origins:
    """Follows values in one file to where they come from."""

    types: Types
    file: str

    def foreign(self, node: ast.AST, site: Site, depth: int = 0) -> bool:
        """Whether the value of an expression of a site is a library's, Python's, or a literal.

        Without a declaration in vLLM, Jedi is not asked.
        """
        if depth > _DEEPEST:
            return False
        if any(map(_is_kernel, site.around)):
            return True
        match node:
            case ast.Name(id=name):
                return self._name(name, site, depth)
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                return self.foreign(value, site, depth + 1) or self._declared(node)
            case ast.Call(func=func):
                return self.foreign(func, site, depth + 1) or self._declared(func)
            case ast.BinOp(left=left, right=right):
                return self.foreign(left, site, depth + 1) or self.foreign(right, site, depth + 1)
            case ast.IfExp(body=body, orelse=other):
                return self.foreign(body, site, depth + 1) or self.foreign(other, site, depth + 1)
            case ast.UnaryOp(operand=value) | ast.NamedExpr(value=value) | ast.Starred(value=value):
                return self.foreign(value, site, depth + 1)
        return not isinstance(node, ast.Lambda | ast.Await)

    def _name(self, name: str, site: Site, depth: int) -> bool:
        for holder in reversed(site.around):
            for annotation, value in _bound(holder, name):
                return _library(annotation, self.types.parsed(self.file)) or (
                    value is not None and self.foreign(value, site, depth + 1)
                )
        return _library(ast.Name(name), self.types.parsed(self.file))

    def _declared(self, node: ast.expr) -> bool:
        """Whether something of vLLM's, or of a companion's, is declared as a library's."""
        if any(self.types.is_outside(found) for found in self.types.types(self.file, node)):
            return True
        return any(
            _library(annotation, self.types.parsed(target.file))
            for target in self.types.attributes(self.file, node)
            for annotation in _annotations(target.node, target.name)
        )

    def of_library(self, node: ast.expr, site: Site) -> bool:
        """Whether an expression begins with a name that is imported from a library; without asking Jedi."""
        first = dotted(node).partition(".")[0]
        local = any(any(True for _ in _bound(holder, first)) for holder in site.around)
        return bool(first) and not local and _library(ast.Name(first), self.types.parsed(self.file))


def _bound(holder: ast.AST, name: str) -> Iterator[tuple[ast.expr | None, ast.expr | None]]:
    """Yield the annotation and the value of each binding of a name in a function or comprehension."""
    if isinstance(holder, Function | ast.Lambda):
        arguments = holder.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if each.arg == name:
                yield each.annotation, None
    for each in getattr(holder, "generators", ()):
        if name in bound_by(each.target):
            yield None, each.iter
    for stmt in statements(holder.body) if isinstance(holder, Function | ast.Module) else ():
        for target, annotation, value in _targets(stmt):
            if name in bound_by(target):
                yield annotation, value


def _targets(stmt: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | None, ast.expr | None]]:
    """Yield what a statement assigns to, with the annotation if there is one, else with the value."""
    match stmt:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, None, value) for target in targets)
        case ast.AnnAssign(target=target, annotation=annotation):
            yield target, annotation, None
        case ast.For(target=target, iter=value):
            yield target, None, value
        case ast.With(items=items):
            yield from ((each.optional_vars, None, each.context_expr) for each in items if each.optional_vars)


def _annotations(node: ast.stmt, name: str) -> Iterator[ast.expr]:
    """Yield what a definition says of its result, or a class or method of an attribute."""
    if isinstance(node, Function) and node.name == name:
        yield from [node.returns] if node.returns else []
        return
    for stmt in statements(getattr(node, "body", ())):
        match stmt:
            case ast.AnnAssign(target=ast.Name(id=found) | ast.Attribute(attr=found)) if found == name:
                yield stmt.annotation
            case ast.Assign(targets=[ast.Attribute(attr=found)], value=ast.Name(id=parameter)) if found == name:
                yield from (annotation for annotation, _ in _bound(node, parameter) if annotation)


def _library(annotation: ast.expr | None, tree: ast.Module) -> bool:
    """Whether a type, or a name, is a library's or Python's."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.Subscript) and dotted(annotation.value) not in {"Optional", "Union"}:
        annotation = annotation.value  # whatever it holds
    names = [each.id for each in ast.walk(annotation) if isinstance(each, ast.Name)] if annotation else []
    return bool(names) and "Any" not in names and all(_of_library(name, tree) for name in names)


def _of_library(name: str, tree: ast.Module) -> bool:
    origins = [imported_as(name, stmt) for stmt in ast.walk(tree) if isinstance(stmt, ast.Import | ast.ImportFrom)]
    found = [origin for origin in origins if origin]
    texts = {text for stmt in tree.body if _is_literal(stmt) for text in bound_by(stmt)}
    return all(map(_names_library, found)) if found else name in texts or hasattr(builtins, name)


def _is_literal(stmt: ast.stmt) -> bool:
    """Whether a statement names a type of some texts or numbers: `Choice = Literal["a", "b"]`."""
    return (
        isinstance(stmt, ast.Assign) and isinstance(stmt.value, ast.Subscript) and dotted(stmt.value.value) == "Literal"
    )


def _is_kernel(node: ast.AST) -> bool:
    """Whether a function is Triton's: what it gets are pointers and numbers."""
    return any(dotted(each).endswith("jit") for each in getattr(node, "decorator_list", ()))


def _names_library(origin: str) -> bool:
    return not origin.startswith(("vllm.", ".")) or origin.startswith(_HANDED_ON)
