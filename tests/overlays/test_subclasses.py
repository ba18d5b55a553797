"""Classes that inherit from those that overlays edit, in the whole of vLLM: they work, and get what they need.

A subclass may have an `__init__` that does not call its parent's. Then inserted code in a method that it inherits must
not count on an attribute that only the parent sets. And a subclass may have its own copy of a method that an overlay
corrects. The engine reads only the files that overlays name, so the tests look through all files of each release.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from vpatch import AddFile
from vpatch.core.catalogue import discover
from vpatch.core.marks import lines_marked
from vpatch.core.overlay import Catalogued, Edit
from vpatch.core.verdict import Changeset
from vpatch.tree.locate import locate

from tests.engines import engine_of
from tests.releases import RELEASES, tree_of
from tests.tiers import sampled

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


def codes(edit: Edit) -> Iterator[str]:
    for field in ("new", "keyword"):
        if code := getattr(edit, field, ""):
            yield f"f({code})" if field == "keyword" else code


OWN_COPIES: Mapping[str, str] = {
    "DraftModelProposer._maybe_share_lm_head": "it shares no head",
    "Gemma4Proposer._maybe_share_lm_head": "it shares no head",
    "KimiK3KDAMetadataBuilder.build": "its own, with the same defect, which the overlay says that it leaves",
    "MMEncoderModelRunner.execute_model": "it runs encoders, which have no decodes",
    "Step3p5MTPProposer._maybe_share_lm_head": "it shares no head",
    "UltraQuantAttentionImpl._decode_attention": "its format and its kernels are its own",
}
"""Methods that replace one that an overlay edits, and that the overlay need not edit, with the reason."""

PASSED_OVER: Mapping[str, str] = {
    "turboquant-tiles": "`rehearse` returns at once: test_ultraquant_cpu.py",
}
"""Overlays with code in an inherited method that reads what `__init__` sets, and why it does not come to that."""

UNSET: Mapping[str, frozenset[str]] = {"ct-fp8-lm-head": frozenset({"has_bias"})}
"""By overlay, attributes that it sets in `__init__` for vLLM's own code, as upstream does."""


@pytest.mark.parametrize("item", discover(), ids=lambda item: item.id)
def test_what_an_edit_sets_in_init_is_read_with_a_default(item: Catalogued) -> None:
    """By `getattr` or `hasattr`: an object of a subclass may lack it."""
    edits = [edit for part in item.overlay.parts for shape in part.shapes for edit in shape.edits]
    added = [(edit.scope, ast.parse(code.strip())) for edit in edits for code in codes(edit)]

    def attributes(context: type[ast.expr_context], *trees: ast.AST) -> set[str]:
        nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        return {node.attr for node in nodes if isinstance(node.ctx, context)}

    in_init = attributes(ast.Store, *(tree for scope, tree in added if scope.endswith(".__init__")))
    read = attributes(ast.Load, *(tree for _, tree in added), *companions(item).values())
    assert in_init & read <= UNSET.get(item.id, frozenset())


@dataclass(frozen=True)
class Class:
    """A class of a release: its bases by their last names, and its own methods."""

    name: str
    bases: frozenset[str]
    methods: Mapping[str, ast.AST]

    def passes_on(self, method: str) -> bool:
        """Whether a method of its own calls the one that it overrides."""
        called = rf"(super\([^)]*\)|\b({'|'.join(self.bases)}))\.{method}\("
        return bool(re.search(called, ast.unparse(self.methods[method])))


def classes_of(text: str) -> Iterator[Class]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
            names = frozenset(ast.unparse(base).rpartition(".")[2] for base in bases)
            methods = {child.name: child for child in node.body if isinstance(child, Function)}
            yield Class(node.name, names, methods)


def inheriting(name: str, texts: Mapping[str, str]) -> Iterator[tuple[Class, ...]]:
    """Yield the classes of a release that inherit from one, each with those between, from the top down."""
    found: set[str] = set()
    todo: list[tuple[Class, ...]] = [()]
    while todo:
        above = todo.pop()
        parent = above[-1].name if above else name
        if parent in found:
            continue
        found.add(parent)
        head = re.compile(rf"^\s*class \w+\([^)]*\b{parent}\b", re.MULTILINE)
        for text in filter(head.search, texts.values()):
            below = [(*above, each) for each in classes_of(text) if parent in each.bases]
            yield from below
            todo += below


def edited(changeset: Changeset, overlay: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each class that an overlay edits, with its edited methods."""
    for file, content in changeset.files.items():
        if file.startswith("vllm/_vpatch/"):
            continue
        lines = lines_marked(content, overlay)
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.ClassDef):
                spans = {n.name: range(n.lineno, (n.end_lineno or 0) + 1) for n in node.body if isinstance(n, Function)}
                if methods := {name for name, span in spans.items() if any(line in span for line in lines)}:
                    yield node.name, frozenset(methods)


def relied_on(item: Catalogued, owner: str, methods: frozenset[str]) -> frozenset[str]:
    """Return the attributes that an overlay's code in these methods of a class reads, as it declares and by itself."""
    found: set[str] = set()
    for part in item.overlay.parts:
        for edit in (edit for shape in part.shapes for edit in shape.edits):
            if edit.scope in {f"{owner}.{method}" for method in methods}:
                found |= {use.removeprefix("self.") for use in getattr(edit, "uses", ())}
                for code in codes(edit):
                    found |= set(read_from("self", ast.parse(code.strip()), {}, frozenset()))
    return frozenset(found)


def set_by(chain: tuple[Class, ...]) -> set[str]:
    """Collect what classes define, or set on `self`."""
    nodes = [node for each in chain for method in each.methods.values() for node in ast.walk(method)]
    stored = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return stored | {name for each in chain for name in each.methods}


def wrong(item: Catalogued, tree: Path, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield what an overlay does to a class that inherits from one that it edits."""
    changeset = engine_of([item]).plan(locate(tree).read)
    classes = dict(edited(changeset, item.id))
    for owner, methods in classes.items():
        top = next(
            each
            for text in texts.values()
            if f"class {owner}" in text
            for each in classes_of(text)
            if each.name == owner
        )
        for chain in inheriting(owner, texts):
            last = chain[-1]
            for method in sorted(methods & last.methods.keys() - {"__init__"}):
                name = f"{last.name}.{method}"
                if not (last.passes_on(method) or method in classes.get(last.name, ()) or name in OWN_COPIES):
                    yield f"{item.id}: {name} replaces what the overlay edits in {owner}"
            skips = any("__init__" in each.methods and not each.passes_on("__init__") for each in chain)
            if skips and item.id not in PASSED_OVER:
                inherited = frozenset(methods - {name for each in chain for name in each.methods})
                elsewhere = set_by(chain) | {*top.methods}
                for name in sorted(relied_on(item, owner, inherited) - elsewhere):
                    yield f"{item.id}: {last.name} does not set {name}, on which code in {owner} relies"


@pytest.mark.deep
@pytest.mark.parametrize("release", sampled(RELEASES[::-1], 3))
def test_no_class_that_inherits_is_broken_or_left_out(release: str) -> None:
    tree = tree_of(release)
    files = (tree / "vllm").rglob("*.py")
    texts = {str(file.relative_to(tree)): file.read_text("utf-8") for file in files}

    assert [one for item in discover() for one in wrong(item, tree, texts)] == []


def test_a_class_that_inherits_is_found() -> None:
    texts = {"top.py": "class Top:\n    pass\n", "a.py": "class A(Top[int], m.Other):\n    pass\nclass B(a.A): ...\n"}

    assert [[each.name for each in chain] for chain in inheriting("Top", texts)] == [["A"], ["A", "B"]]
