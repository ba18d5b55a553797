"""Python's scoping rules over one module: what a name refers to, and everything that binds or replaces it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from vpatch.flow import STAR, Definition, Flow, Function, Names, bound_by, flow, header, statements

_IMPLICIT = frozenset({"__file__", "__path__", "__class__", "__module__", "__qualname__"})
_DEFERRED = (ast.Lambda, ast.GeneratorExp)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
ACCESSORS = frozenset({"getter", "setter", "deleter"})


@dataclass(frozen=True)
class Read:
    """A name that some code reads; `late` where it does so after the statement ran, as the body of a lambda does."""

    name: str
    late: bool = False


@dataclass(frozen=True, eq=False)
class Scope:
    """A module, class or function, with the scope around it and the names that it takes from elsewhere."""

    node: ast.Module | Definition
    outer: Scope | None = None
    global_in_functions: Names = frozenset()
    _inner: dict[Definition, Scope] = field(default_factory=dict)

    def inner(self, node: Definition) -> Scope:
        """Enter a definition that stands directly in this scope."""
        return self._inner.setdefault(node, Scope(node, self))

    @property
    def name(self) -> str:
        """The qualified name; "" for the module."""
        around = self.outer.name if self.outer else ""
        return f"{around}.{getattr(self.node, 'name', '')}".strip(".")

    @cached_property
    def parameters(self) -> Names:
        """The parameters of a function, the names of type parameters included."""
        names = {parameter.name for parameter in getattr(self.node, "type_params", ())}
        if isinstance(self.node, Function):
            names |= {arg.arg for arg in ast.walk(self.node.args) if isinstance(arg, ast.arg)}
        return frozenset(names)

    @cached_property
    def flow(self) -> Flow:
        """What is bound where in it."""
        return flow(self.node.body, self.parameters)

    @cached_property
    def _declared(self) -> dict[str, str]:
        kinds = {ast.Global: "global", ast.Nonlocal: "nonlocal"}
        return {n: kinds[type(s)] for s in statements(self.node.body) if type(s) in kinds for n in s.names}  # type: ignore[attr-defined]

    @cached_property
    def own(self) -> Names:
        """The names that are its own, wherever in it they are bound."""
        return frozenset().union(*self._bound.values(), self.parameters) - self._declared.keys()

    @property
    def module(self) -> Scope:
        """The outermost scope."""
        return self.outer.module if self.outer else self

    def home(self, name: str) -> Scope | None:
        """Find the scope whose variable `name` is, read here; None for a builtin, and for what nothing binds."""
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

    def binds(self, name: str, stmt: ast.stmt, *, late: bool = False) -> bool:
        """Tell whether `name` may be bound when `stmt`, directly in this scope, reads it, or `late`, after it ran."""
        home = self.home(name)
        if home is None or home is home.module:
            outer = self.module
            first = self._run_by_import(stmt)
            bound = outer.flow.before.get(first, frozenset()) if first and not late else outer.lasting
            here = _bound_on_the_way(stmt) if home is self else ()
            return name in bound or STAR in bound or name in here or name in _IMPLICIT or hasattr(builtins, name)
        if home is not self or late:
            return True
        return name in self.flow.before.get(stmt, frozenset()) or name in _bound_on_the_way(stmt)

    def _run_by_import(self, stmt: ast.stmt) -> ast.stmt | None:
        """Find the module's statement that runs `stmt` during import; None for code of functions, which runs later."""
        if self.outer is None:
            return stmt
        return None if isinstance(self.node, Function) else self.outer._run_by_import(self.node)  # type: ignore[arg-type]

    @property
    def lasting(self) -> Names:
        """The names of a module once it is imported, those that its functions declare `global` included."""
        return (self.flow.end or frozenset()) | self.global_in_functions

    @cached_property
    def _bound(self) -> Mapping[ast.stmt, Names]:
        return {stmt: frozenset(_bound_in(stmt)) for stmt in statements(self.node.body)}

    @cached_property
    def _binders(self) -> Mapping[str, list[ast.stmt]]:
        found: dict[str, list[ast.stmt]] = {}
        for stmt, names in self._bound.items():
            if stmt in self.flow.before:
                for name in names | _deleted_by(stmt):
                    found.setdefault(name, []).extend([] if _adds_to(stmt, name) else [stmt])
        return found

    def binders(self, name: str) -> list[ast.stmt]:
        """List the statements directly in this scope that may bind or delete `name` when it runs.

        Left out: stubs under `@overload`, and a property's further accessors, which keep the property.
        """
        return self._binders.get(name, [])


def _bound_in(stmt: ast.stmt) -> Iterator[str]:
    """Yield what a statement itself binds, with the names of its exception handlers and match cases."""
    yield from bound_by(stmt)
    for handler in getattr(stmt, "handlers", ()):
        yield from [handler.name] if handler.name else []
    for case in getattr(stmt, "cases", ()):
        yield from bound_by(case)


def _bound_on_the_way(stmt: ast.stmt) -> Iterator[str]:
    """Yield what a statement's header binds before all of it is evaluated: by `:=` and by the items of a `with`."""
    nodes = stmt.items if isinstance(stmt, ast.With | ast.AsyncWith) else header(stmt)
    for node in nodes:
        yield from bound_by(node) if isinstance(node, ast.withitem) else ()
        yield from (inner.target.id for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))


def _deleted_by(stmt: ast.stmt) -> set[str]:
    return {t.id for t in stmt.targets if isinstance(t, ast.Name)} if isinstance(stmt, ast.Delete) else set()


def _adds_to(stmt: ast.stmt, name: str) -> bool:
    if not isinstance(stmt, Function):
        return False
    return any(
        last == "overload" or (first == name and last in ACCESSORS)
        for first, _, last in (dotted(decorator).rpartition(".") for decorator in stmt.decorator_list)
    )


def dotted(node: ast.expr) -> str:
    """Spell a name or an attribute of one as `a.b.c`, the arguments of a call left out; "" for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{owner}.{attr}" if (owner := dotted(value)) else ""
        case ast.Call(func=func):
            return dotted(func)
    return ""


def reads(node: ast.AST, *, annotations: bool, late: bool = False) -> Iterator[Read]:
    """Yield the names that a statement's header, or an expression, reads in the scope in which it stands.

    Args:
        node: the code; of a definition decorators, defaults and bases are read, not the body.
        annotations: whether annotations are evaluated; those of local variables never are.
        late: whether all of it is read only later.
    """
    match node:
        case ast.Name(id=name, ctx=ast.Load() | ast.Del()):
            yield Read(name, late)
        case ast.AugAssign(target=ast.Name(id=name)):
            yield Read(name, late)
    inner = inner_names(node)
    for child in [*header(node), *([node.body] if isinstance(node, ast.Lambda) else [])]:
        if not annotations and _is_annotation(node, child):
            continue
        later = late or isinstance(node, _DEFERRED)
        yield from (read for read in reads(child, annotations=annotations, late=later) if read.name not in inner)


def inner_names(node: ast.AST) -> set[str]:
    """Collect the names that a comprehension, a lambda or a generic definition binds for itself."""
    if isinstance(node, _COMPREHENSIONS):
        return {name for generator in node.generators for name in bound_by(generator.target)}
    if isinstance(node, ast.Lambda):
        return {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
    return {parameter.name for parameter in getattr(node, "type_params", ())}


def _is_annotation(node: ast.AST, child: ast.AST) -> bool:
    return child in (getattr(node, "annotation", None), getattr(node, "returns", None))


@dataclass(frozen=True)
class Module:
    """A parsed module: its scope, and what replaces attributes of its classes from outside their bodies.

    `replaced` lists (owner, attribute, line): for `Owner.attribute = ...`, `setattr(Owner, "attribute", ...)`, their
    deletions, and `self.attribute = ...` in a method of `Owner`.
    """

    tree: ast.Module
    scope: Scope
    replaced: Sequence[tuple[str, str, int]]

    @property
    def defers_annotations(self) -> bool:
        """Whether annotations are not evaluated when a definition runs (PEP 563)."""
        return any(
            isinstance(stmt, ast.ImportFrom)
            and stmt.module == "__future__"
            and any(alias.name == "annotations" for alias in stmt.names)
            for stmt in self.tree.body
        )

    def attributes(self, owner: Scope) -> Iterator[str]:
        """Yield what the instances of a class have by the class itself and by its bases in the same module."""
        body = owner.node.body
        yield from owner.own
        yield from (s.target.id for s in body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name))
        yield from (attr for name, attr, _ in self.replaced if name == owner.name)
        for base in getattr(owner.node, "bases", ()):
            for stmt in self.scope.binders(dotted(base.value if isinstance(base, ast.Subscript) else base)):
                if isinstance(stmt, ast.ClassDef) and stmt is not owner.node:
                    yield from self.attributes(self.scope.inner(stmt))


@lru_cache(maxsize=64)
def analyzed(data: bytes) -> Module:
    """Parse a module's bytes.

    Raises:
        SyntaxError, ValueError, RecursionError: it is not Python, or too deeply nested.
    """
    tree = ast.parse(data)
    replaced: list[tuple[str, str, int]] = []
    declared: set[str] = set()
    todo: list[tuple[ast.AST, str, str]] = [(tree, "", "")]
    while todo:
        node, owner, instance = todo.pop()  # `instance`: the first parameter of the method around, `owner` its class
        match node:
            case ast.Attribute(value=value, attr=attr, ctx=ast.Store() | ast.Del()) if name := dotted(value):
                replaced.append((owner if name == instance else name, attr, node.lineno))
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, ast.Constant(value=str(attr)), *_]):
                if name := dotted(target):
                    replaced.append((owner if name == instance else name, attr, node.lineno))
            case ast.Global(names=names):
                declared.update(names)
            case ast.ClassDef(name=name):
                owner, instance = f"{owner}.{name}".strip("."), ""
            case ast.FunctionDef() | ast.AsyncFunctionDef() if owner and not instance:
                given = [*node.args.posonlyargs, *node.args.args]
                static = any(dotted(decorator) == "staticmethod" for decorator in node.decorator_list)
                instance = given[0].arg if given and not static else ""
        todo.extend((child, owner, instance) for child in ast.iter_child_nodes(node))
    return Module(tree, Scope(tree, None, frozenset(declared)), tuple(replaced))
