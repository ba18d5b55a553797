"""Find a definition by file and qualified name, where vLLM has it now: along imports, aliases and base classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vpatch.core.calls import module_files
from vpatch.core.landing.binding import Scope, absolute, annotated_by, dotted, imported_as, plain_name
from vpatch.core.landing.definitions import accessor_role, is_stub
from vpatch.core.landing.flow import STAR, Definition, Function, statements
from vpatch.core.landing.interfaces import Interface, interface_of, parameters_of, source_digest
from vpatch.core.marks import marked_by
from vpatch.core.workspace import Workspace

_SETTERS = frozenset({"setattr", "__setattr__", "register_buffer", "register_parameter"})
_ANYTHING = "self, *args, **options"
_FIELDS = frozenset({"dataclass", "config", "dataclass_transform"})
_FIELD_BASES = frozenset({"NamedTuple", "BaseModel", "Struct"})


@dataclass(frozen=True)
class Defined:
    """A statement that binds a name, in its scope: a definition, or anything else, of which only the name is known."""

    file: str
    stmt: ast.stmt
    scope: Scope

    @property
    def name(self) -> str:
        """The qualified name of a definition."""
        return f"{self.scope.name}.{getattr(self.stmt, 'name', '')}".strip(".")


@dataclass(frozen=True)
class Lookup:
    """Looks definitions up in `files`."""

    files: Workspace

    def find(self, place: str) -> list[Defined]:
        """Return what a place, `file name`, leads to: several where a condition at import decides; [] if nothing."""
        file, _, name = place.partition(" ")
        return self._find(file, name, frozenset())

    def defines(self, module: str, name: str) -> bool:
        """Whether `from module import name` finds something."""
        found = any(self._find(file, name, frozenset()) for file in module_files(module))
        return found or any(map(self._exists, module_files(f"{module}.{name}")))

    def unset(self, place: str, attributes: Iterable[str]) -> list[str]:
        """Return the attributes that neither a class nor a base of it, as far as vLLM defines it, sets."""
        classes = [scope for each in self.find(place) for scope in self._line(each)]
        missing = [name for name in attributes if not any(name in scope.own for scope in classes)]
        stored = {name for scope in classes for name in _stored(scope.node)} if missing else set()
        return [name for name in missing if name not in stored]

    def names(self, place: str) -> frozenset[str]:
        """Return what a class, or for `file ` a module, binds."""
        file, _, name = place.partition(" ")
        if not name:
            return scope.own if (scope := self.files.scope(file)) else frozenset()
        classes = [each.scope.inner(each.stmt) for each in self.find(place) if isinstance(each.stmt, ast.ClassDef)]
        return frozenset().union(*(scope.own for scope in classes))

    def interface(self, found: Defined) -> Interface | None:
        """Return the interface of a function, or of a class and its constructor; None for anything else."""
        if isinstance(found.stmt, Function):
            return interface_of(found.stmt, in_class=isinstance(found.scope.node, ast.ClassDef))
        return Interface("class", self._constructor(found)) if isinstance(found.stmt, ast.ClassDef) else None

    def digest(self, found: Defined) -> str:
        """Return the digest of a definition's source; "" if an overlay changed it, or if it is no definition."""
        if not isinstance(found.stmt, Definition):
            return ""
        lines = (self.files.read(found.file) or b"").decode("utf-8", "replace").split("\n")
        own = lines[found.stmt.lineno - 1 : found.stmt.end_lineno]
        return "" if marked_by("\n".join(own)) else source_digest(own)

    def _find(self, file: str, name: str, seen: frozenset[tuple[str, str]]) -> list[Defined]:
        module = self.files.scope(file)
        if module is None or (file, name) in seen:
            return []
        seen |= {(file, name)}
        first, _, rest = name.partition(".")
        bound = _in_force(module, first)
        found = [each for stmt in bound for each in self._follow(file, module, stmt, first, rest, seen)]
        if not bound:
            for stmt in module.binders(STAR):
                found += self._imported(absolute(imported_as(STAR, stmt), file)[:-2], name, seen)
        if not found and module.binders("__getattr__") and _names(self.files.read(file) or b"", name):
            found = [Defined(file, ast.Pass(), module)]
        return found

    def _follow(
        self, file: str, module: Scope, stmt: ast.stmt, first: str, rest: str, seen: frozenset[tuple[str, str]]
    ) -> list[Defined]:
        if imported := imported_as(first, stmt):
            return self._imported(absolute(imported, file), rest, seen)
        if isinstance(stmt, ast.ClassDef) and rest:
            return self._member(file, module, module.inner(stmt), rest, seen)
        if isinstance(stmt, ast.Assign) and (alias := plain_name(stmt.value)):
            return self._find(file, f"{alias}.{rest}".strip("."), seen) or [Defined(file, stmt, module)]
        return [Defined(file, stmt, module)]

    def _member(
        self, file: str, module: Scope, owner: Scope, name: str, seen: frozenset[tuple[str, str]]
    ) -> list[Defined]:
        if here := [stmt for stmt in _in_force(owner, name) if not accessor_role(stmt)]:
            return [Defined(file, stmt, owner) for stmt in here]
        for base in bases_of(owner.node):
            if found := self._find(file, f"{base}.{name}", seen):
                return found
        return []

    def _imported(self, path: str, rest: str, seen: frozenset[tuple[str, str]]) -> list[Defined]:
        """Find `rest` in what an import binds: a name that a module defines, else a module."""
        owner, _, last = path.rpartition(".")
        name = f"{last}.{rest}".strip(".")
        if found := [each for file in module_files(owner) for each in self._find(file, name, seen)]:
            return found
        for file in module_files(path):
            module = self.files.scope(file) if self._exists(file) else None
            if module and not rest:
                return [Defined(file, ast.Pass(), module)]
            if module and (found := self._find(file, rest, seen)):
                return found
        first, _, rest = rest.partition(".")
        return self._imported(f"{path}.{first}", rest, seen) if first else []

    def _exists(self, file: str) -> bool:
        return self.files.read(file) is not None

    def _line(self, found: Defined) -> Iterator[Scope]:
        """Yield the scopes of a class and of its bases that vLLM defines."""
        todo, seen = [found], set[ast.stmt]()
        while todo:
            each = todo.pop(0)
            if isinstance(each.stmt, ast.ClassDef) and each.stmt not in seen:
                seen.add(each.stmt)
                yield each.scope.inner(each.stmt)
                todo += [above for base in bases_of(each.stmt) for above in self._find(each.file, base, frozenset())]

    def _constructor(self, found: Defined) -> str:
        """Return the parameters of a class: of its `__init__`, or its fields; anything, if a base decides."""
        line = list(self._line(found))
        fields: dict[str, ast.expr | None] = {}
        for depth, scope in enumerate(line):
            for stmt in _in_force(scope, "__init__"):
                if isinstance(stmt, Function) and not (fields or any(_has_fields(one.node) for one in line[:depth])):
                    return parameters_of(stmt.args)
        if not any(_has_fields(scope.node) for scope in line):
            return _ANYTHING
        for scope in reversed(line):
            for stmt in scope.node.body:
                if isinstance(stmt, ast.AnnAssign) and isinstance(stmt.target, ast.Name) and _is_field(stmt):
                    fields[stmt.target.id] = stmt.value
        return ", ".join(["self", *(f"{name}=..." if _has_default(value) else name for name, value in fields.items())])


def _in_force(scope: Scope, name: str) -> Sequence[ast.stmt]:
    """List the statements that may have bound a name last: where several stand in one block, the last of them."""
    bound = [stmt for stmt in scope.binders(name) if not is_stub(stmt, scope)]
    direct = [stmt for stmt in bound if stmt in scope.node.body]
    last = direct[-1].lineno if direct else 0
    return [stmt for stmt in bound if stmt.lineno >= last and not isinstance(stmt, ast.Delete)]


def _stored(owner: ast.AST) -> Iterator[str]:
    """Yield the fields of a class, and the attributes that its methods set. A declaration alone sets nothing."""
    fields = _has_fields(owner)
    for member in getattr(owner, "body", ()):
        yield from annotated_by(member) if fields else ()
        for stmt in statements(member.body) if isinstance(member, Function) else ():
            match stmt:
                case ast.Assign(targets=targets):
                    yield from (attribute for target in targets for attribute in _attributes(target))
                case ast.AnnAssign(target=target) | ast.AugAssign(target=target) | ast.For(target=target):
                    yield from _attributes(target)
                case ast.With(items=items):
                    yield from (
                        name for each in items if each.optional_vars for name in _attributes(each.optional_vars)
                    )
                case ast.Expr(value=ast.Call(func=func, args=args)) if dotted(func).rpartition(".")[2] in _SETTERS:
                    yield from (
                        each.value for each in args if isinstance(each, ast.Constant) and isinstance(each.value, str)
                    )


def _attributes(target: ast.expr) -> Iterator[str]:
    """Yield the attributes of any object that an assignment to a target sets."""
    match target:
        case ast.Attribute(attr=attr, value=ast.Name()):
            yield attr
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for each in elements:
                yield from _attributes(each)


def bases_of(node: ast.AST) -> list[str]:
    """List the names of a class's bases, without what they are parametrized by."""
    bases = [each.value if isinstance(each, ast.Subscript) else each for each in getattr(node, "bases", ())]
    return list(filter(None, map(dotted, bases)))


def _names(data: bytes, name: str) -> bool:
    return re.search(rb"\b%s\b" % re.escape(name.encode()), data) is not None


def _has_fields(node: ast.AST) -> bool:
    """Whether a class makes its constructor from its annotated fields."""
    decorators = {dotted(each).rpartition(".")[2] for each in getattr(node, "decorator_list", ())}
    bases = {dotted(each).rpartition(".")[2] for each in getattr(node, "bases", ())}
    return bool(decorators & _FIELDS or bases & _FIELD_BASES)


def _is_field(stmt: ast.AnnAssign) -> bool:
    annotation = stmt.annotation.value if isinstance(stmt.annotation, ast.Subscript) else stmt.annotation
    options = {each.arg: each.value for each in stmt.value.keywords} if isinstance(stmt.value, ast.Call) else {}
    init = options.get("init")
    excluded = isinstance(init, ast.Constant) and init.value is False
    return not (excluded or dotted(annotation).endswith("ClassVar"))


def _has_default(value: ast.expr | None) -> bool:
    """Whether a field has a default: any value, but for `field(...)` without one."""
    if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] in {"field", "Field"}:
        named = {each.arg for each in value.keywords}
        first = value.args[0] if value.args else None
        return bool(named & {"default", "default_factory"}) or not (
            first is None or (isinstance(first, ast.Constant) and first.value is ...)
        )
    return value is not None
