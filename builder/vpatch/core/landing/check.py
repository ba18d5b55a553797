"""Check inserted code where it lands: it can run, every name it reads is bound, and nothing overrides it.

An anchor shows what the code around an edit looks like, not what the names in it mean. So vpatch analyzes the result of
all selected edits by Python's scoping rules.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from vpatch.core.landing import companions
from vpatch.core.landing.binding import Scope, dotted, imported_as, inner_names, reads
from vpatch.core.landing.definitions import Line, Module, ReadAt, decorated, headline, line_before, overrides
from vpatch.core.landing.fit import Findings
from vpatch.core.landing.flow import Definition, Function, bound_by, statements
from vpatch.core.landing.nested import unused
from vpatch.core.overlay import COMPANIONS, Edit
from vpatch.core.syntax import along
from vpatch.core.verdict import Found, Landed
from vpatch.errors import Problem

if TYPE_CHECKING:
    from vpatch.core.syntax import Path
    from vpatch.core.workspace import Workspace

_KEEPING_CLASSES = frozenset({"dataclass", "final", "register", "runtime_checkable", "support_torch_compile"})


@dataclass(frozen=True)
class _Place:
    """Where code of an edit stands."""

    code: Landed  # the edit's description of it
    stmt: ast.stmt  # the statement that is or holds the code
    at: ast.AST  # the node that reads the code's names: the statement, or one of its handlers or cases
    scope: Scope  # the scope that runs it
    around: tuple[tuple[Definition, Scope], ...]  # what holds it, each with its scope; the last may be `stmt`


@dataclass(frozen=True)
class _File:
    """A file after the edits."""

    module: Module  # its code
    before: Callable[[], Module | None]  # returns the code on disk, None if this Python cannot parse it
    line: Line  # maps its lines to those on disk
    changed: frozenset[ast.AST]  # the definitions that the overlay changes
    imported: Mapping[str, set[ast.AST]]  # the scopes into which the overlay imports, by the imported name


Files = Callable[[str], _File | None]
_InFile = tuple[str, _File, list[tuple[Edit, _Place]]]
"""A file, by name and analyzed, with the places of the edits in it."""


def opened(overlay: Findings, files: Workspace) -> Files:
    """Return a function that analyzes a file after the edits, each once.

    Args:
        overlay: the findings of all parts of the overlay: one part may use what another imports.
        files: the tree after the edits.
    """
    return cache(lambda name: _file(name, overlay, files))


def _by_file(found: Findings, files: Files) -> Iterator[_InFile]:
    for name in dict.fromkeys(edit.file for edit, _ in found):
        if (file := files(name)) is not None:
            yield name, file, list(_places(found, name, file.module))


def problems(found: Findings, opened: Files, files: Workspace) -> list[Problem]:
    """List what is wrong with the code of one part; `found` are its findings after the edits."""
    causes: dict[Problem, None] = {}
    by_file = list(_by_file(found, opened))
    for edit, finding in found:
        if finding.adds:
            for cause in companions.unusable(edit.file, files):
                causes[Problem("drifted", edit.file, cause)] = None
    for edit, code in _inserted(found, by_file, files):
        for cause in companions.missing(code, edit.file, files):
            causes[Problem("drifted", edit.file, cause, edit.scope)] = None
    for name, file, places in by_file:
        causes |= dict.fromkeys(_where_it_stands(name, file, places))
    return list(causes)


def _where_it_stands(name: str, file: _File, places: Iterable[tuple[Edit, _Place]]) -> Iterator[Problem]:
    """Yield what is wrong with the places of a file's new code; if nothing is, what the changed scopes lack."""
    seen: set[str] = set()
    for edit, place in places:
        causes = [*_overridden(place, file)]
        if place.at in place.scope.flow.before:
            causes += [*_unset(place, file.module), *_rebound(place, file.line)]
            causes += [*_unbound(place, file), *_unread(place, file.module)]
        else:
            causes.append(f"{headline(place.stmt)} never runs: the code before it ends, or its block is never entered")
        yield from (Problem("drifted", name, cause, edit.scope) for cause in dict.fromkeys(causes) if cause not in seen)
        seen.update(causes)
    changed = {_changed(place): edit for edit, place in places if not seen}
    for scope, edit in changed.items():
        yield from (Problem("drifted", name, cause, edit.scope) for cause in _lost(scope, file))


def notes(found: Findings, files: Files) -> list[str]:
    """List the decorators of classes around the code that may replace its methods. Most do not, so these are notes."""
    noted: dict[str, None] = {}
    for name, _, places in _by_file(found, files):
        for definition in (definition for _, place in places for definition, _ in place.around):
            for decorator in definition.decorator_list if isinstance(definition, ast.ClassDef) else ():
                if dotted(decorator).rpartition(".")[2] not in _KEEPING_CLASSES:
                    noted[f"{name}: class {definition.name} is decorated by `@{ast.unparse(decorator)}`"] = None
    return list(noted)


def _inserted(
    found: Findings, by_file: Iterable[_InFile], files: Workspace
) -> Iterator[tuple[Edit, Iterator[ast.stmt]]]:
    """Yield the statements that edits insert, and those of modules that they add, as far as they can run."""
    for _, file, places in by_file:
        for edit, place in places:
            if place.code.whole or place.code.binds:
                yield edit, file.module.reachable(place.stmt, place.scope)
    for edit, finding in found:
        if finding.adds and (new := files.understood(edit.file)):
            yield edit, (stmt for child in new.tree.body for stmt in new.reachable(child, new.scope))


def _file(name: str, overlay: Findings, files: Workspace) -> _File | None:
    code = name.endswith(".py") and not name.startswith(COMPANIONS)
    if not code or (module := files.understood(name)) is None:
        return None
    changed: set[ast.AST] = set()
    imported: dict[str, set[ast.AST]] = {}
    for _, place in _places(overlay, name, module):
        changed.update(definition for definition, _ in place.around)
        for bound in place.code.binds:
            imported.setdefault(bound, set()).add(place.scope.node)
    original = files.original(name) or b""
    line = line_before(original, files.read(name) or b"")
    before = partial(files.understood, name, original)
    return _File(module, before, line, frozenset(changed), imported)


def _places(found: Findings, file: str, module: Module) -> Iterator[tuple[Edit, _Place]]:
    for edit, finding in found:
        if edit.file == file and finding.found is Found.AFTER:
            yield from ((edit, _place(code, module)) for code in finding.landed)


def _place(code: Landed, module: Module) -> _Place:
    nodes = along(module.tree, code.path)
    holders = [node for node in nodes if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case)]
    stmt = next(holder for holder in reversed(holders) if isinstance(holder, ast.stmt))
    scope, around = module.scope, []
    for holder in holders:
        if isinstance(holder, Definition):
            around.append((holder, scope))
            scope = scope if holder is stmt else scope.inner(holder)
    return _Place(code, stmt, holders[-1], scope, tuple(around))


def _overridden(place: _Place, file: _File) -> Iterator[str]:
    for definition, scope in place.around:
        yield from overrides(definition, scope, file.module, file.line, file.changed)
        if not (place.code.whole and definition is place.stmt):  # whose decorators are ours
            yield from decorated(definition, scope, file.line)
            yield from unused(definition, scope, file.module, file.line)
        if definition not in scope.flow.before:
            return


def _unset(place: _Place, module: Module) -> Iterator[str]:
    """Find attributes of `self` that the code relies on and its class does not set."""
    owner: Scope | None = place.scope
    while owner and not isinstance(owner.node, ast.ClassDef):
        owner = owner.outer
    if place.code.uses and owner:
        known = set(module.attributes(owner))
        for name in place.code.uses:
            if name.removeprefix("self.") not in known:
                yield f"the new code relies on `{name}`, which {owner.name} does not set"


def _rebound(place: _Place, line: Line) -> Iterator[str]:
    """Find what else binds an imported name in the scope of the import."""
    scope = place.scope
    for name in sorted(place.code.binds):
        for stmt in scope.binders(name):
            if stmt is not place.stmt and imported_as(name, stmt) != imported_as(name, place.stmt):
                yield f"line {line(stmt.lineno)}, {headline(stmt)}, overrides the import of `{name}`"
        if scope.outer is None and name in scope.global_in_functions:
            yield f"a function that declares `global {name}` may override the import of `{name}`"


def _unbound(place: _Place, file: _File) -> Iterator[str]:
    """Find names that the code reads and nothing binds, or that something binds instead of the overlay's import."""
    for read, at, stmt, scope in _reads(place, file):
        if not scope.binds(read.name, at, late=read.late):
            yield f"{headline(stmt)} reads `{read.name}`, which nothing binds there"
            continue
        home = scope.home(read.name)
        if read.name not in file.imported or home is None or home.node in file.imported[read.name]:
            continue
        if read.name in home.parameters:
            yield f"a parameter of `{home.name}` hides the import of `{read.name}`"
        else:
            (first, *_) = [*home.binders(read.name), stmt]
            yield f"line {file.line(first.lineno)}, {headline(first)}, hides the import of `{read.name}`"


def _reads(place: _Place, file: _File) -> Iterator[ReadAt]:
    code, module = place.code, file.module
    if code.whole:
        yield from module.reads(place.stmt, place.scope)
        return
    evaluated = module.evaluates_annotations(place.stmt, place.scope)
    found = code.reads if code.reads is not None else reads(place.stmt, annotations=evaluated)
    if code.reads is not None and not evaluated and any(name in {"annotation", "returns"} for name, _ in code.path):
        return
    inner = named_around(module.tree, code.path)
    yield from ((read, place.at, place.stmt, place.scope) for read in sorted(found, key=str) if read.name not in inner)


def _unread(place: _Place, module: Module) -> Iterator[str]:
    """Find local variables that the code sets and nothing reads, except those with a leading underscore."""
    if not (place.code.whole and isinstance(place.scope.node, Function)) or isinstance(place.stmt, Definition):
        return
    bound = {name for stmt in statements([place.stmt]) for name in bound_by(stmt)} - place.code.binds
    if not bound:
        return
    function = place.scope.node
    read = {read.name for stmt in function.body for read, *_ in module.reads(stmt, place.scope)}
    for name in sorted(name for name in bound & place.scope.own - read if not name.startswith("_")):
        yield f"{headline(place.stmt)} sets `{name}`, which nothing in `{place.scope.name}` reads"


def _lost(scope: Scope, file: _File) -> Iterator[str]:
    """Find names that upstream's code around the edits reads and that lost their binding."""
    lost = dict(_unbound_reads(scope, file.module))
    if not lost or (before := file.before()) is None:
        return
    known = {name for old in before.scopes(scope.name) for name, _ in _unbound_reads(old, before)}
    for name in lost.keys() - known:
        yield f"{headline(lost[name])} reads `{name}`, which nothing binds there any more"


def _changed(place: _Place) -> Scope:
    """Return the scope whose code an edit changed; a function's own if it got a parameter or lost statements."""
    inside = isinstance(place.stmt, Function) and not place.code.whole
    return place.scope.inner(place.stmt) if inside else place.scope  # type: ignore[arg-type]


def _unbound_reads(scope: Scope, module: Module) -> Iterator[tuple[str, ast.stmt]]:
    for child in scope.node.body if isinstance(scope.node, Function) else ():
        for read, at, stmt, inner in module.reads(child, scope):
            if not inner.binds(read.name, at, late=read.late):
                yield read.name, stmt


def named_around(tree: ast.Module, path: Path) -> frozenset[str]:
    """Collect the names that comprehensions and lambdas around the expression at `path` bind."""
    names: set[str] = set()
    for depth, node in enumerate(along(tree, path)[:-1]):
        fields = [field for field, _ in path[depth : depth + 2]]
        if isinstance(node, ast.Lambda) and fields[0] == "args":
            continue  # defaults are evaluated outside,
        if path[depth : depth + 2] == (("generators", 0), ("iter", -1)):
            continue  # and so is the first iterable
        names |= inner_names(node) if isinstance(node, ast.expr) else set()
    return frozenset(names)
