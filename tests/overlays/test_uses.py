"""Overlays declare every attribute of `self` that their code and companions read, so that the engine checks it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from vpatch import AddFile, All, Sets
from vpatch.core.catalogue import discover
from vpatch.core.overlay import Catalogued, Edit, Predicate

OF_TORCH = {"_parameters"}  # set by `torch.nn.Module`

Function = ast.FunctionDef | ast.AsyncFunctionDef


def companions(item: Catalogued) -> dict[str, Function]:
    """Map the functions of an overlay's companion modules by name."""
    texts = {e.text for part in item.overlay.parts for s in part.shapes for e in s.edits if isinstance(e, AddFile)}
    trees = [ast.parse(text) for text in texts]
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, Function)}


def read_from(name: str, node: ast.AST, known: dict[str, Function], seen: frozenset[str]) -> Iterator[str]:
    """Yield the attributes that code reads from the object `name`, also in functions that receive the object."""
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id=owner), attr=attr, ctx=ast.Load()) if owner == name:
                yield attr
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=args) if called in known:
                function = known[called]
                parameters = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
                if parameters[:1] == ["cls"]:
                    parameters = parameters[1:]
                for parameter, arg in zip(parameters, args, strict=False):
                    if isinstance(arg, ast.Name) and arg.id == name and called not in seen:
                        yield from read_from(parameter, function, known, seen | {called})


def written(node: ast.AST) -> set[str]:
    """Collect the attributes of `self` that code sets itself, or defines."""
    stores = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    return stores | {n.name for n in ast.walk(node) if isinstance(n, Function)}


def codes(edit: Edit) -> Iterator[str]:
    for field in ("new", "keyword"):
        if code := getattr(edit, field, ""):
            yield f"f({code})" if field == "keyword" else code


def _inherited(predicate: Predicate | None) -> Iterator[str]:
    if isinstance(predicate, Sets):
        yield from predicate.attributes
    for inner in predicate.predicates if isinstance(predicate, All) else ():
        yield from _inherited(inner)


@pytest.mark.parametrize("item", discover(), ids=lambda item: item.id)
def test_every_attribute_of_self_is_declared(item: Catalogued) -> None:
    known = companions(item)
    companions_own = {name for function in known.values() for name in written(function)} | OF_TORCH
    for shape in (shape for part in item.overlay.parts for shape in part.shapes):
        trees = [(edit, ast.parse(code.strip())) for edit in shape.edits for code in codes(edit)]
        own = {name for _, tree in trees for name in written(tree)}
        inherited = {f"self.{name}" for name in _inherited(shape.when)}
        for edit, tree in trees:
            read = set(read_from("self", tree, {}, frozenset()))
            read |= set(read_from("self", tree, known, frozenset())) - companions_own
            wanted = {f"self.{name}" for name in read - own}
            declared = set(getattr(edit, "uses", ()))
            assert wanted <= declared | inherited, f"{shape.name} {edit.scope}: uses={tuple(sorted(wanted))}"
            assert declared <= wanted
