"""The definitions of a module, and everything that may replace them or attributes of classes at run time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, get_args

from vpatch.core.landing.binding import Read, Scope, annotated_by, dotted, reads
from vpatch.core.landing.flow import STAR, Definition, Function, blocks, children
from vpatch.wrapping import shortened

if TYPE_CHECKING:
    import difflib

Line = Callable[[int], int]
"""Maps a line of a file after the edits to its line on disk."""
ReadAt = tuple[Read, ast.AST, ast.stmt, Scope]
"""A name that is read, the statement, handler or case that reads it, the statement that holds this, and its scope."""

_CLASS = "class "
_OF_CLASSES = frozenset({"__new__", "__init_subclass__", "__class_getitem__"})
"""Methods whose first parameter is the class."""
_ACCESSORS = frozenset({"getter", "setter", "deleter"})

KEEPING = frozenset(
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
"""Decorators that return the function, or something that calls it."""

_STUBS = frozenset({"typing.overload", "typing_extensions.overload"})


@dataclass(frozen=True)
class Replacement:
    """An assignment to `owner.attribute` or its like, in the scope that it stands in; None if `owner` is qualified.

    `instance`: it is an instance's attribute that is assigned.
    """

    owner: str
    attribute: str
    line: int
    scope: Scope | None
    instance: bool = False

    @property
    def of(self) -> str:
        """The qualified name of the owner."""
        home = self.scope.home(self.owner.partition(".")[0]) if self.scope else None
        return f"{home.name}.{self.owner}".strip(".") if home else self.owner


@dataclass(frozen=True)
class Module:
    """A parsed module with its scope, and with what replaces attributes of its classes outside their bodies.

    `replaced` has `Owner.attribute = ...`, `setattr(Owner, "attribute", ...)`, their deletions, and
    `self.attribute = ...` in a method of `Owner`.
    """

    tree: ast.Module
    scope: Scope
    replaced: Sequence[Replacement]

    @cached_property
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
        """Yield the attributes that instances have from a class and its bases in the same module."""
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

    def evaluates_annotations(self, stmt: ast.stmt, scope: Scope) -> bool:
        """Whether Python evaluates the annotations of a statement when it runs."""
        local = isinstance(stmt, ast.AnnAssign) and isinstance(scope.node, Function)
        return not (self.defers_annotations or local)

    @property
    def names(self) -> frozenset[str]:
        """What the module may bind once it is imported; `STAR` among it for a star import."""
        flow = self.scope.flow
        return frozenset(name for name in flow.bits if flow.binds(name, flow.end)) | {*self.scope.global_in_functions}

    def reachable(self, stmt: ast.stmt, scope: Scope) -> Iterator[ast.stmt]:
        """Yield a statement and those in it, as far as they can run."""
        return (each for each, _ in self._reachable(stmt, scope))

    def reads(self, stmt: ast.stmt, scope: Scope) -> Iterator[ReadAt]:
        """Yield what a statement and those in it read, as far as they can run."""
        for each, where in self._reachable(stmt, scope):
            evaluated = self.evaluates_annotations(each, where)
            for node in (each, *getattr(each, "handlers", ()), *getattr(each, "cases", ())):
                yield from ((read, node, each, where) for read in reads(node, annotations=evaluated))

    def _reachable(self, stmt: ast.stmt, scope: Scope) -> Iterator[tuple[ast.stmt, Scope]]:
        if stmt not in scope.flow.before:
            return
        yield stmt, scope
        inner = scope.inner(stmt) if isinstance(stmt, Definition) else scope
        for body in blocks(stmt):
            for child in body:
                yield from self._reachable(child, inner)


_LEAVES = frozenset({ast.Name, ast.Constant, ast.alias})
"""Half of a module's nodes, which contain no others and replace nothing."""

_TELLING = frozenset({ast.Attribute, ast.Call, ast.AnnAssign, ast.Global, *get_args(Definition)})
"""Nodes that may replace something, or decide what is replaced."""


def analyzed(tree: ast.Module) -> Module:
    """Analyze a module.

    Raises:
        RecursionError: it is nested too deeply.
    """
    declared: set[str] = set()
    module = Scope(tree, None, declared)
    replaced: list[Replacement] = []
    todo: list[tuple[ast.AST, Scope, str, str]] = [(tree, module, "", "")]
    while todo:
        # `instance`: the first parameter of the method of class `owner`, behind `_CLASS` if that is the class.
        node, scope, owner, instance = todo.pop()
        inner = scope
        match node:
            case _ if node.__class__ not in _TELLING:
                pass
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
                roles = {dotted(decorator) for decorator in node.decorator_list}
                if isinstance(scope.node, ast.ClassDef):
                    instance = given[0].arg if given and "staticmethod" not in roles else ""
                    instance = _CLASS + instance if "classmethod" in roles or node.name in _OF_CLASSES else instance
        todo.extend((child, inner, owner, instance) for child in children(node) if child.__class__ not in _LEAVES)
    return Module(tree, module, tuple(replaced))


def _replacement(target: ast.expr, attribute: str, scope: Scope, owner: str, instance: str) -> Iterator[Replacement]:
    given = target
    match target:
        case ast.Call(func=ast.Name(id="type"), args=[inner]) | ast.Attribute(value=inner, attr="__class__"):
            target = inner
    if isinstance(target, ast.Name) and target.id == instance.removeprefix(_CLASS):
        own = target is given and not instance.startswith(_CLASS)
        yield Replacement(owner, attribute, target.lineno, None, own)
    elif not any(isinstance(node, ast.Call) for node in ast.walk(target)) and (name := dotted(target)):
        yield Replacement(name, attribute, target.lineno, scope)


def line_before(old: bytes, new: bytes) -> Line:
    """Map the lines of a file after the edits to those on disk."""

    @cache
    def matching() -> list[difflib.Match]:
        import difflib

        lines = difflib.SequenceMatcher(None, old.split(b"\n"), new.split(b"\n"), autojunk=False)
        return [difflib.Match(0, 0, 0), *lines.get_matching_blocks()]

    def line(number: int) -> int:
        last, behind = next(pair for pair in pairwise(matching()) if pair[1].b >= number)
        # A replaced line is mapped to one of those it replaces, an inserted one to the line before it.
        return min(last.a + number - last.b, max(behind.a, last.a + last.size))

    return int if old == new else line


def overrides(
    definition: Definition, scope: Scope, module: Module, line: Line, changed: Collection[ast.AST]
) -> Iterator[str]:
    """Yield what may replace a definition, which stands directly in `scope`.

    Args:
        definition: the definition.
        scope: the scope that holds it.
        module: the module that holds it.
        line: maps lines of `module`.
        changed: the definitions that the overlay changes; one of them overrides no other.
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
        kept = any(dotted(one) == "property" or _accessor(one, definition) for one in definition.decorator_list)
        assigned = [each for each in module.replaced if each.attribute == name and each.of == scope.name]
        replaced = {each.line for each in assigned if not (kept and each.instance)}  # the property's setter gets it
        yield from (cause(at, " overrides") for at in sorted(replaced))
    if scope.outer is None and name in scope.global_in_functions:
        yield f"a function that declares `global {name}` may override `{full}` of line {line(definition.lineno)}"


def decorated(definition: Definition, scope: Scope, line: Line) -> Iterator[str]:
    """Yield the decorators of a function that may replace it."""
    if isinstance(definition, Function):
        full = f"{scope.name}.{definition.name}".strip(".")
        for decorator in definition.decorator_list:
            if not (_accessor(decorator, definition) or _is_one_of(decorator, scope, KEEPING)):
                cause = f"`@{ast.unparse(decorator)}` may replace `{full}` by something else"
                yield f"line {line(definition.lineno)}: {cause}"


def headline(stmt: ast.stmt) -> str:
    """Quote the first line of a statement, shortened."""
    return f"`{shortened(ast.unparse(stmt).splitlines()[0], 80)}`"


def _replaces(other: ast.stmt, definition: Definition, scope: Scope) -> bool:
    """Whether a statement that binds the same name replaces a definition.

    An accessor does not replace its property, nor does a property replace an accessor behind it.
    """
    mine, theirs = accessor_role(definition), accessor_role(other)
    if theirs:
        return theirs == mine or (not mine and theirs == "getter")
    return not is_stub(other, scope) and (not mine or other.lineno > definition.lineno)


def is_stub(stmt: ast.stmt, scope: Scope) -> bool:
    """Whether a statement is an `@overload` of a function, which another definition replaces."""
    return isinstance(stmt, Function) and any(_is_one_of(each, scope, _STUBS) for each in stmt.decorator_list)


def accessor_role(stmt: ast.stmt) -> str:
    """Return "getter", "setter" or "deleter" for that accessor of a property, else ""."""
    roles = (_accessor(each, stmt) for each in stmt.decorator_list) if isinstance(stmt, Function) else ()
    return next(filter(None, roles), "")


def _accessor(decorator: ast.expr, function: ast.stmt) -> str:
    owner, _, role = dotted(decorator).rpartition(".")
    return role if owner == getattr(function, "name", None) and role in _ACCESSORS else ""


def _is_one_of(decorator: ast.expr, scope: Scope, known: Collection[str]) -> bool:
    origins = scope.origins(name) if (name := dotted(decorator)) else frozenset()
    return bool(origins) and all(origin in known for origin in origins)
