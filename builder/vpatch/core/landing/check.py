"""Judge inserted code where it lands: it can run, every name it reads is bound, and nothing replaces what it changes.

An anchor says what the code around an edit looks like, not what the names in it mean. So the result of all selected
edits is read once more, by Python's scoping rules.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING

from vpatch.core.landing.binding import Read, Scope, dotted, imported_as, reads
from vpatch.core.landing.definitions import Module
from vpatch.core.landing.flow import Definition, Function, blocks, bound_by, statements
from vpatch.core.landing.overriding import Line, decorated, headline, overrides
from vpatch.core.landing.position import chain, in_annotation, named_around
from vpatch.core.overlay import COMPANIONS, Edit
from vpatch.core.parse import Lost
from vpatch.core.verdict import Finding, Found, Landed
from vpatch.errors import Problem

if TYPE_CHECKING:
    import difflib

    from vpatch.core.parse import Source
    from vpatch.core.workspace import Workspace

_KEEPING_CLASSES = frozenset({"dataclass", "final", "register", "runtime_checkable", "support_torch_compile"})

Findings = Sequence[tuple[Edit, Finding]]


@dataclass(frozen=True)
class _Place:
    """Where code of an edit stands.

    Attributes:
        code: what the edit says of it.
        stmt: the statement that is the code, or holds it.
        at: where the code reads its names: the statement, or a handler or case of it.
        scope: the scope that runs it.
        around: the definitions that hold it, each with the scope it stands in; the last may be the statement itself.
    """

    code: Landed
    stmt: ast.stmt
    at: ast.AST
    scope: Scope
    around: tuple[tuple[Definition, Scope], ...]


@dataclass(frozen=True)
class _File:
    """A file with the edits made.

    Attributes:
        module: its code.
        source: the same for libcst.
        before: returns its code on disk, None if this Python cannot parse it.
        line: translates its lines into those on disk.
        changed: the definitions that the overlay changes.
        imported: the scopes into which the overlay imports a name, by that name.
    """

    module: Module
    source: Source
    before: Callable[[], Module | None]
    line: Line
    changed: frozenset[ast.AST]
    imported: Mapping[str, set[ast.AST]]


Files = Callable[[str], _File | None]


def opened(overlay: Findings, files: Workspace) -> Files:
    """Make the function that reads a file with the edits made, each once.

    Args:
        overlay: what the edits of all parts of an overlay find: one may import what another uses.
        files: the tree with the edits made.
    """
    return cache(lambda name: _file(name, overlay, files))


def problems(found: Findings, files: Files) -> list[Problem]:
    """List what is wrong with the code of one part, where `found` is what its edits find with all edits made."""
    causes: dict[Problem, None] = {}
    for name in dict.fromkeys(edit.file for edit, _ in found):
        if (file := files(name)) is None:
            continue
        told: set[str] = set()
        places = list(_places(found, name, file.module, file.source))
        for edit, place in places:
            for cause in (*_overridden(place, file), *_misplaced(place, file)):
                if cause not in told:
                    causes[Problem("drifted", name, cause, edit.scope)] = None
                    told.add(cause)
        changed = {_changed(place): edit for edit, place in places if not told}
        for scope, edit in changed.items():
            causes |= dict.fromkeys(Problem("drifted", name, cause, edit.scope) for cause in _lost(scope, file))
    return list(causes)


def notes(found: Findings, files: Files) -> list[str]:
    """List the decorators of classes around the code that may replace its methods; most do not, and none is refused."""
    said: dict[str, None] = {}
    for name in dict.fromkeys(edit.file for edit, _ in found):
        if (file := files(name)) is None:
            continue
        for _, place in _places(found, name, file.module, file.source):
            for definition, _ in place.around:
                for decorator in definition.decorator_list if isinstance(definition, ast.ClassDef) else ():
                    if dotted(decorator).rpartition(".")[2] not in _KEEPING_CLASSES:
                        said[f"{name}: class {definition.name} is decorated by `@{ast.unparse(decorator)}`"] = None
    return list(said)


def _analyzed(name: str, files: Workspace, data: bytes | None = None) -> Module | None:
    """Analyze a module; None where libcst can parse it and this Python cannot (see `verify`)."""
    try:
        return files.analyzed(name, data)
    except (Lost, SyntaxError, ValueError, LookupError, RecursionError):
        return None


def _file(name: str, overlay: Findings, files: Workspace) -> _File | None:
    if name.startswith(COMPANIONS) or (module := _analyzed(name, files)) is None:
        return None
    source = files.source(name)
    changed: set[ast.AST] = set()
    imported: dict[str, set[ast.AST]] = {}
    for _, place in _places(overlay, name, module, source):
        changed.update(definition for definition, _ in place.around)
        for bound in place.code.binds:
            imported.setdefault(bound, set()).add(place.scope.node)
    original = files.original(name) or b""
    line = _line_before(original, files.read(name) or b"")
    before = partial(_analyzed, name, files, original)
    return _File(module, source, before, line, frozenset(changed), imported)


def _places(found: Findings, file: str, module: Module, source: Source) -> Iterator[tuple[Edit, _Place]]:
    for edit, finding in found:
        if edit.file == file and finding.found is Found.AFTER:
            yield from ((edit, _place(code, module, source)) for code in finding.landed)


def _place(code: Landed, module: Module, source: Source) -> _Place:
    holders = chain(source.module, module.tree, code.path)
    stmt = next(holder for holder in reversed(holders) if isinstance(holder, ast.stmt))
    scope, around = module.scope, []
    for holder in holders:
        if isinstance(holder, Definition):
            around.append((holder, scope))
            scope = scope if holder is stmt else scope.inner(holder)
    return _Place(code, stmt, holders[-1], scope, tuple(around))


def _line_before(old: bytes, new: bytes) -> Line:
    """Translate the lines of a file that is not written yet into those of the file on disk."""

    @cache
    def matching() -> list[difflib.Match]:
        import difflib

        lines = difflib.SequenceMatcher(None, old.split(b"\n"), new.split(b"\n"), autojunk=False)
        return [difflib.Match(0, 0, 0), *lines.get_matching_blocks()]

    def line(number: int) -> int:
        last, behind = next(pair for pair in pairwise(matching()) if pair[1].b >= number)
        # A line that took the place of others is one of these; one that was inserted, the line before.
        return min(last.a + number - last.b, max(behind.a, last.a + last.size))

    return int if old == new else line


def _overridden(place: _Place, file: _File) -> Iterator[str]:
    for definition, scope in place.around:
        yield from overrides(definition, scope, file.module, file.line, file.changed)
        if not (place.code.whole and definition is place.stmt):  # whose decorators are ours
            yield from decorated(definition, scope, file.line)
        if definition not in scope.flow.before:
            return


def _misplaced(place: _Place, file: _File) -> Iterator[str]:
    if place.at not in place.scope.flow.before:
        yield f"{headline(place.stmt)} never runs: the code before it ends, or its block is never entered"
        return
    yield from _unset(place, file.module)
    yield from _rebound(place, file.line)
    yield from _unbound(place, file)
    yield from _unread(place, file.module)


def _unset(place: _Place, module: Module) -> Iterator[str]:
    """Find the attributes of `self` that the code relies on, and that its class does not set."""
    owner: Scope | None = place.scope
    while owner and not isinstance(owner.node, ast.ClassDef):
        owner = owner.outer
    if place.code.uses and owner:
        known = set(module.attributes(owner))
        for name in place.code.uses:
            if name.removeprefix("self.") not in known:
                yield f"the new code relies on `{name}`, which {owner.name} does not set"


def _rebound(place: _Place, line: Line) -> Iterator[str]:
    """Find what else binds a name that the overlay imports, in the scope that it imports it into."""
    scope = place.scope
    for name in sorted(place.code.binds):
        for stmt in scope.binders(name):
            if stmt is not place.stmt and imported_as(name, stmt) != imported_as(name, place.stmt):
                yield f"line {line(stmt.lineno)}, {headline(stmt)}, overrides the import of `{name}`"
        if scope.outer is None and name in scope.global_in_functions:
            yield f"a function that declares `global {name}` may override the import of `{name}`"


def _unbound(place: _Place, file: _File) -> Iterator[str]:
    """Find the names that the code reads and nothing binds, and those that do not mean what the overlay imports."""
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


_ReadAt = tuple[Read, ast.AST, ast.stmt, Scope]


def _reads(place: _Place, file: _File) -> Iterator[_ReadAt]:
    code, module = place.code, file.module
    if code.whole:
        yield from _all_reads(place.stmt, place.scope, module)
        return
    evaluated = _evaluated(place.stmt, place.scope, module)
    found = code.reads if code.reads is not None else reads(place.stmt, annotations=evaluated)
    if code.reads is not None and not evaluated and in_annotation(file.source.module, code.path):
        return
    inner = named_around(file.source.module, code.path)
    yield from ((read, place.at, place.stmt, place.scope) for read in sorted(found, key=str) if read.name not in inner)


def _evaluated(stmt: ast.stmt, scope: Scope, module: Module) -> bool:
    """Whether Python evaluates the annotations of a statement when it runs."""
    local = isinstance(stmt, ast.AnnAssign) and isinstance(scope.node, Function)
    return not (module.defers_annotations or local)


def _all_reads(stmt: ast.stmt, scope: Scope, module: Module) -> Iterator[_ReadAt]:
    if stmt not in scope.flow.before:
        return
    evaluated = _evaluated(stmt, scope, module)
    for node in (stmt, *getattr(stmt, "handlers", ()), *getattr(stmt, "cases", ())):
        yield from ((read, node, stmt, scope) for read in reads(node, annotations=evaluated))
    inner = scope.inner(stmt) if isinstance(stmt, Definition) else scope
    for body in blocks(stmt):
        for child in body:
            yield from _all_reads(child, inner, module)


def _unread(place: _Place, module: Module) -> Iterator[str]:
    """Find the local variables that the code sets for the code behind it, and that nothing reads.

    Those with a leading underscore are not meant to be read.
    """
    if not (place.code.whole and isinstance(place.scope.node, Function)) or isinstance(place.stmt, Definition):
        return
    bound = {name for stmt in statements([place.stmt]) for name in bound_by(stmt)} - place.code.binds
    if not bound:
        return
    function = place.scope.node
    read = {read.name for stmt in function.body for read, *_ in _all_reads(stmt, place.scope, module)}
    for name in sorted(name for name in bound & place.scope.own - read if not name.startswith("_")):
        yield f"{headline(place.stmt)} sets `{name}`, which nothing in `{place.scope.name}` reads"


def _lost(scope: Scope, file: _File) -> Iterator[str]:
    """Find the names that upstream's code around ours reads, and that are bound no more."""
    lost = dict(_without(scope, file.module))
    if not lost:
        return
    if (before := file.before()) is None:
        return
    known = {name for old in before.scopes(scope.name) for name, _ in _without(old, before)}
    for name in lost.keys() - known:
        yield f"{headline(lost[name])} reads `{name}`, which nothing binds there any more"


def _changed(place: _Place) -> Scope:
    """Return the scope whose code an edit changed: the function's own if it got a parameter or lost statements."""
    inside = isinstance(place.stmt, Function) and not place.code.whole
    return place.scope.inner(place.stmt) if inside else place.scope  # type: ignore[arg-type]


def _without(scope: Scope, module: Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that a function reads and nothing binds."""
    for child in scope.node.body if isinstance(scope.node, Function) else ():
        for read, at, stmt, inner in _all_reads(child, scope, module):
            if not inner.binds(read.name, at, late=read.late):
                yield read.name, stmt
