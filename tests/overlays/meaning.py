"""Bindings of the names in inserted code, by Python's own `symtable`: an independent check of the engine."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache

from tests.overlays.mutants import blocks, lines_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
Key = tuple[str, str]


def meanings(before: str, after: str) -> Mapping[Key, str]:
    """Classify the binding of every name in code that only `after` has.

    Returns:
        By function and name: "parameter", "local" (bound by code of `before`), "own" (bound by the new code alone),
        "closure", "module", "builtin", "unbound", or, for a name that only the new code sets, "unread"; for an
        attribute that it reads, as `self.x`, "set" (by any class of the module) or "inherited".
    """
    old, new = ast.parse(before), ast.parse(after)
    old_functions, new_functions = list(_functions(old.body, "", before)), list(_functions(new.body, "", after))
    alike = {(name, text) for name, text, _ in old_functions} & {(name, text) for name, text, _ in new_functions}
    changed = [function for name, text, function in old_functions if (name, text) not in alike]
    known = Counter(_rendered(stmt) for function in changed for stmt in _statements(function.body))
    table = symtable.symtable(after, "module", "exec")
    module = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    tables = {(t.get_name(), t.get_lineno()): t for t in _tables(table)}
    known_attributes = cache(lambda: attributes(after))
    found: dict[Key, str] = {}
    for name, text, function in new_functions:
        if (name, text) in alike:
            continue
        ours: list[ast.stmt] = []
        theirs: list[ast.stmt] = []
        for stmt in _statements(function.body):
            mine = known[_rendered(stmt)] <= 0
            known[_rendered(stmt)] -= 1
            (ours if mine else theirs).append(stmt)
        symbols = tables.get((function.name, function.lineno)) or tables[(function.name, lines_of(function)[0] + 1)]
        stored = {n.id for s in theirs for n in _names(s) if not isinstance(n.ctx, ast.Load)}
        read = {n.id for s in theirs for n in _names(s) if isinstance(n.ctx, ast.Load)}
        written = {n.id for s in ours for n in _names(s) if not isinstance(n.ctx, ast.Load)}
        used = {n.id for s in ours for n in _names(s) if isinstance(n.ctx, ast.Load)}
        for name_used in written | used:
            try:
                symbol = symbols.lookup(name_used)
            except KeyError:  # a name in a comprehension or lambda
                continue
            if symbol.is_parameter():
                kind = "parameter"
            elif symbol.is_local():
                kind = "local" if name_used in stored else "own"
                kind = "unread" if kind == "own" and name_used in written and name_used not in read | used else kind
            elif symbol.is_free():
                kind = "closure"
            else:
                kind = "module" if name_used in module else "builtin" if hasattr(builtins, name_used) else "unbound"
            found[name, name_used] = kind
        for attribute in {n.attr for s in ours for n in _own(s) if isinstance(n.ctx, ast.Load)}:
            found[name, f"self.{attribute}"] = "set" if attribute in known_attributes() else "inherited"
    return found


def worse(made: Mapping[Key, str], now: Mapping[Key, str]) -> list[str]:
    """List the names whose binding differs from that in the patched pristine file, and the unbound or unread ones."""
    changed = [
        f"{name} in {where}: {kind}, not {made[where, name]}"
        for (where, name), kind in now.items()
        if (where, name) in made and made[where, name] != kind
    ]
    return changed + [
        f"{name} in {where}: {kind}" for (where, name), kind in now.items() if kind in {"unbound", "unread"}
    ]


def _rendered(stmt: ast.stmt) -> str:
    """Render a statement's syntax; for a compound statement, only its header."""
    below = {"body", "orelse", "finalbody", "handlers", "cases"}
    return ast.dump(type(stmt)(**{name: value for name, value in ast.iter_fields(stmt) if name not in below}))


def _methods(tree: ast.Module) -> Iterator[tuple[Function, str]]:
    """Yield the methods of all classes, each with the name of its first parameter."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for method in (stmt for stmt in _statements(owner.body) if isinstance(stmt, Function)):
            for first in [*method.args.posonlyargs, *method.args.args][:1]:
                yield method, first.arg


def _own(node: ast.AST, instance: str = "self") -> Iterator[ast.Attribute]:
    """Yield the accesses to attributes of the instance in a piece of code."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == instance:
            yield inner


def _names(stmt: ast.stmt) -> Iterator[ast.Name]:
    """Yield the names in a statement, except those in its blocks."""
    inner = {id(n) for block in blocks(stmt) for each in block for n in ast.walk(each)}
    yield from (n for n in ast.walk(stmt) if isinstance(n, ast.Name) and id(n) not in inner)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for stmt in body:
        yield stmt
        if not isinstance(stmt, Function | ast.ClassDef):
            for block in blocks(stmt):
                yield from _statements(block)


def _functions(block: list[ast.stmt], around: str, text: str) -> Iterator[tuple[str, str, Function]]:
    """Yield the functions in a block, each with its qualified name and its text."""
    lines = text.split("\n")
    todo = [(stmt, around) for stmt in reversed(block)]
    while todo:
        stmt, around = todo.pop()
        name = f"{around}.{stmt.name}".strip(".") if isinstance(stmt, Function | ast.ClassDef) else around
        if isinstance(stmt, Function):
            yield name, "\n".join(lines[stmt.lineno - 1 : stmt.end_lineno]), stmt
        todo += [(inner, name) for each in reversed(blocks(stmt)) for inner in reversed(each)]


def attributes(text: str) -> set[str]:
    """Collect the attributes that classes of a module have, or that their methods set."""
    tree, table = ast.parse(text), symtable.symtable(text, "module", "exec")
    return {n.attr for f, me in _methods(tree) for n in _own(f, me) if not isinstance(n.ctx, ast.Load)} | {
        s.get_name() for t in _tables(table) if t.get_type() == "class" for s in t.get_symbols() if s.is_assigned()
    }


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _tables(child)
