"""Judge inserted code where it lands: it can run, every name it reads is bound, and nothing replaces what it changes.

An anchor says what the code around an edit looks like, not what the names in it mean. So the result of all selected
edits is read once more, by Python's scoping rules.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.binding import ACCESSORS, Module, Read, Scope, analyzed, dotted, inner_names, reads
from vpatch.errors import Problem
from vpatch.flow import Definition, Function, blocks, bound_by, statements
from vpatch.model import COMPANIONS, Edit, Finding, Found, Landed
from vpatch.place import chain

if TYPE_CHECKING:
    from vpatch.select import Source
    from vpatch.workspace import Workspace

_KEEPING = frozenset(
    (
        *("classmethod", "staticmethod", "property", "cached_property", "cache", "lru_cache", "wraps"),
        *("abstractmethod", "override", "final", "overload", "deprecated", "contextmanager", "asynccontextmanager"),
        *("inference_mode", "no_grad", "enable_grad", "jit", "autotune", "heuristics", "constexpr_function"),
        "instrument",  # vLLM's tracing
    )
)
_THEIR_MODULES = frozenset({"", "abc", "contextlib", "functools", "typing", "typing_extensions", "torch", "triton"})
_KEEPING_CLASSES = frozenset({"dataclass", "final", "register", "runtime_checkable", "support_torch_compile"})

Findings = Sequence[tuple[Edit, Finding]]
Line = Callable[[int], int]


@dataclass(frozen=True)
class _Place:
    """The statement that holds an edit's code, and the scope that runs it."""

    stmt: ast.stmt
    scope: Scope


def problems(found: Findings, overlay: Findings, files: Workspace) -> list[Problem]:
    """List what is wrong with the code of one part, all edits made, in the files as they are now.

    Args:
        found: what the part's edits find.
        overlay: what the edits of all parts of its overlay find: one may import what another uses.
        files: the tree with the edits made.
    """
    causes: dict[Problem, None] = {}
    imports = [(e.file, name, e.scope) for e, finding in overlay for code in finding.landed for name in code.binds]
    known: set[tuple[str, str]] = set()
    for edit, finding in found:
        if finding.found is not Found.AFTER or edit.file.startswith(COMPANIONS):
            continue
        data = files.read(edit.file) or b""
        if (module := _analyzed(data)) is None:
            continue
        line = _line_before(files.original(edit.file) or b"", data)
        source = files.source(edit.file)
        landed = [(code, _place(code, module, source)) for code in finding.landed]
        names = [edit.scope] if (edit.file, edit.scope) not in known else []
        known.add((edit.file, edit.scope))
        ours = {place.stmt for code, place in landed if code.whole and isinstance(place.stmt, Definition)}
        names += [f"{place.scope.name}.{place.stmt.name}".strip(".") for _, place in landed if place.stmt in ours]
        changed = {place.stmt for _, place in landed} | {place.scope.node for _, place in landed}
        wrong = [cause for name in dict.fromkeys(names) for cause in overrides(name, module, line, changed, ours)]
        imported = {name: scope for file, name, scope in imports if file == edit.file}
        wrong += [cause for code, place in landed for cause in _misplaced(code, place, module, imported, line)]
        causes.update(dict.fromkeys(Problem("drifted", edit.file, cause, edit.scope) for cause in wrong))
    return list(causes)


def _analyzed(data: bytes) -> Module | None:
    """Analyze a module; None where libcst can read it and this Python cannot, which `verify` reports."""
    try:
        return analyzed(data)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _place(landed: Landed, module: Module, source: Source) -> _Place:
    *around, stmt = chain(source.module, module.tree, landed.path)
    scope = module.scope
    for outer in around:
        scope = scope.inner(outer) if isinstance(outer, Definition) else scope
    return _Place(stmt, scope)


def _line_before(old: bytes, new: bytes) -> Line:
    """Translate the lines of a file that is not written yet into those of the file on disk."""

    def line(number: int) -> int:
        import difflib

        blocks = difflib.SequenceMatcher(None, old.split(b"\n"), new.split(b"\n"), autojunk=False).get_matching_blocks()
        last = max((block for block in blocks if block.b < number), key=lambda block: block.b, default=blocks[0])
        return last.a + min(number - last.b, last.size)

    return int if old == new else line


def _misplaced(landed: Landed, place: _Place, module: Module, imported: Mapping[str, str], line: Line) -> Iterator[str]:
    if place.stmt not in place.scope.flow.before:
        yield f"{headline(place.stmt)} never runs: the code before it ends, or its block is never entered"
        return
    yield from _unset(landed, place, module)
    yield from _rebound(landed, place, line)
    yield from _unbound(landed, place, module, imported, line)
    yield from _unread(landed, place, module)


def overrides(
    name: str,
    module: Module,
    line: Line = int,
    changed: Collection[ast.AST] = (),
    ours: Collection[ast.AST] = (),
) -> Iterator[str]:
    """Yield what may replace the definition that a qualified name leads to, step by step.

    Args:
        name: the qualified name.
        module: the module that defines it.
        line: translates a line of `module` into the line of the file as it is on disk.
        changed: definitions that the edit changes. Where a name has several, an edit may change each.
        ours: definitions that the overlay brings whole, decorators included.
    """
    scope, steps = module.scope, name.split(".") if name else []
    while steps:
        step, *steps = steps
        role = steps.pop(0) if steps and steps[0] in ACCESSORS else ""
        binders = scope.binders(step)
        definition = next((stmt for stmt in binders if isinstance(stmt, Definition)), None)
        full = f"{scope.name}.{step}".strip(".")
        if definition is None:
            yield f"`{full}` is defined only where it never runs"
            return
        first = definition.lineno
        for stmt in binders:
            if stmt is not definition and stmt not in changed:
                yield f"line {line(stmt.lineno)}, {headline(stmt)}, overrides `{full}` of line {line(first)}"
        if isinstance(scope.node, ast.ClassDef):
            replaced = {at for owner, attr, at in module.replaced if (owner, attr) == (scope.name, step)}
            yield from (f"line {line(at)} overrides `{full}` of line {line(first)}" for at in sorted(replaced))
        if scope.outer is None and step in scope.global_in_functions:
            yield f"a function that declares `global {step}` may override `{full}` of line {line(first)}"
        if role:
            accessors = (s for s in scope.node.body if isinstance(s, Function) and s.name == step)
            definition = next(s for s in accessors if f"{step}.{role}" in map(dotted, s.decorator_list))
        if isinstance(definition, Function) and definition not in ours:
            for decorator in definition.decorator_list:
                if not _keeps(dotted(decorator), step):
                    yield f"line {line(first)}: `@{ast.unparse(decorator)}` may replace `{full}` by something else"
        scope = scope.inner(definition)


def notes(found: Findings, files: Workspace) -> list[str]:
    """List the decorators of classes around the code that may replace its methods; most do not, and none is refused."""
    said: dict[str, None] = {}
    for edit, finding in found:
        if finding.found is not Found.AFTER or not edit.scope or edit.file.startswith(COMPANIONS):
            continue
        if (module := _analyzed(files.read(edit.file) or b"")) is None:
            continue
        scope = module.scope
        for step in edit.scope.split("."):
            definition = next((stmt for stmt in scope.binders(step) if isinstance(stmt, Definition)), None)
            if definition is None:
                break
            for decorator in definition.decorator_list if isinstance(definition, ast.ClassDef) else ():
                if dotted(decorator).rpartition(".")[2] not in _KEEPING_CLASSES:
                    said[f"{edit.file}: class {definition.name} is decorated by `@{ast.unparse(decorator)}`"] = None
            scope = scope.inner(definition)
    return list(said)


def _keeps(decorator: str, name: str) -> bool:
    owner, _, last = decorator.rpartition(".")
    return (last in _KEEPING and owner in _THEIR_MODULES) or (owner == name and last in ACCESSORS)


def headline(stmt: ast.stmt) -> str:
    """Quote the first line of a statement, shortened."""
    text = ast.unparse(stmt).splitlines()[0]
    return f"`{text if len(text) <= 80 else text[:77] + '...'}`"


def _unset(landed: Landed, place: _Place, module: Module) -> Iterator[str]:
    """Find the attributes of `self` that the code relies on, and that its class does not set."""
    owner: Scope | None = place.scope
    while owner and not isinstance(owner.node, ast.ClassDef):
        owner = owner.outer
    if landed.uses and owner:
        known = set(module.attributes(owner))
        for name in landed.uses:
            if name.removeprefix("self.") not in known:
                yield f"the new code relies on `{name}`, which {owner.name} does not set"


def _rebound(landed: Landed, place: _Place, line: Line) -> Iterator[str]:
    """Find what else binds a name that the overlay imports, in the scope that it imports it into."""
    for name in landed.binds:
        for stmt in place.scope.binders(name):
            if stmt is not place.stmt and _import_of(name, stmt) != _import_of(name, place.stmt):
                yield f"line {line(stmt.lineno)}, {headline(stmt)}, overrides the import of `{name}`"
        if place.scope.outer is None and name in place.scope.global_in_functions:
            yield f"a function that declares `global {name}` may override the import of `{name}`"


def _import_of(name: str, stmt: ast.stmt) -> tuple[str, str] | ast.stmt:
    """Identify an import of `name` by module and name; any other statement is like itself only."""
    if isinstance(stmt, ast.Import | ast.ImportFrom):
        for alias in stmt.names:
            if (alias.asname or alias.name) == name:
                return (getattr(stmt, "module", None) or "", alias.name)
    return stmt


def _unbound(landed: Landed, place: _Place, module: Module, imported: Mapping[str, str], line: Line) -> Iterator[str]:
    """Find the names that the code reads and nothing binds, and those that do not mean what the overlay imports."""
    for read, stmt, scope in _reads(landed, place, module):
        if not scope.binds(read.name, stmt, late=read.late):
            yield f"{headline(stmt)} reads `{read.name}`, which nothing binds there"
            continue
        home = scope.home(read.name)
        if read.name not in imported or home is None or home.name == imported[read.name]:
            continue
        if read.name in home.parameters:
            yield f"a parameter of `{home.name}` hides the import of `{read.name}`"
        else:
            (first, *_) = [*home.binders(read.name), stmt]
            yield f"line {line(first.lineno)}, {headline(first)}, hides the import of `{read.name}`"


def _reads(landed: Landed, place: _Place, module: Module) -> Iterator[tuple[Read, ast.stmt, Scope]]:
    if landed.reads is not None:
        inner = {name for node in ast.walk(place.stmt) for name in inner_names(node)}
        yield from ((Read(name), place.stmt, place.scope) for name in sorted(landed.reads - inner))
    elif landed.whole:
        yield from _all_reads(place.stmt, place.scope, module)
    else:
        evaluated = not module.defers_annotations
        yield from ((read, place.stmt, place.scope) for read in reads(place.stmt, annotations=evaluated))


def _all_reads(stmt: ast.stmt, scope: Scope, module: Module) -> Iterator[tuple[Read, ast.stmt, Scope]]:
    if stmt not in scope.flow.before:
        return
    local = isinstance(stmt, ast.AnnAssign) and isinstance(scope.node, Function)
    evaluated = not (module.defers_annotations or local)
    for node in (stmt, *getattr(stmt, "handlers", ()), *getattr(stmt, "cases", ())):
        yield from ((read, stmt, scope) for read in reads(node, annotations=evaluated))
    inner = scope.inner(stmt) if isinstance(stmt, Definition) else scope
    for body in blocks(stmt):
        for child in body:
            yield from _all_reads(child, inner, module)


def _unread(landed: Landed, place: _Place, module: Module) -> Iterator[str]:
    """Find the local variables that the code sets for the code behind it, and that nothing reads.

    Those with a leading underscore are not meant to be read.
    """
    if not (landed.whole and isinstance(place.scope.node, Function)) or isinstance(place.stmt, Definition):
        return
    bound = {name for stmt in statements([place.stmt]) for name in bound_by(stmt)} - landed.binds
    if not bound:
        return
    function = place.scope.node
    read = {read.name for stmt in function.body for read, _, _ in _all_reads(stmt, place.scope, module)}
    for name in sorted(name for name in bound & place.scope.own - read if not name.startswith("_")):
        yield f"{headline(place.stmt)} sets `{name}`, which nothing in `{place.scope.name}` reads"
