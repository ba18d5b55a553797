"""Syntax trees take most of the memory: when they are freed, and that answers do not depend on it."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator

import pytest
from vpatch import Defines
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, Overlay, Part, Shape
from vpatch.core.verdict import State

from tests.snippets import FILE, InsertAfter, ReplaceExpr, module, names_of_fragments, overlay

__all__ = ["names_of_fragments"]

READ = "vllm/read.py"
FILES = {**module("class A:\n    def f(self):\n        if a:\n            b(1)\n"), READ: b"def g(): pass\n"}
CHANGE = ReplaceExpr(FILE, "A.f", old="b(1)", new="c(1)")
LOST = [
    ReplaceExpr(FILE, "A.f", old="b(2)", new="c(1)"),
    ReplaceExpr(FILE, "A.ff", old="b(1)", new="c(1)"),
    InsertAfter(FILE, "A.f", "b(1)", "c(1)", within=("if aa",)),
]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Leave what is freed to the last reference, as every command does."""
    gc.freeze()  # what other tests left
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def shapes() -> Catalogued:
    """Return an overlay whose first shapes do not match, and whose last one does."""
    some = (*(Shape(str(number), (edit,)) for number, edit in enumerate(LOST)), Shape("last", (CHANGE,)))
    return Catalogued("demo", Overlay("The overlay demo.", (Part("part", some),)), "")


def trees(engine: Engine) -> set[tuple[str, bool]]:
    """Return the files with a syntax tree, each with whether it is that of the new code."""
    known = engine._cache._known.values()
    return {(one.file, b"c(1)" in one.data) for one in known if one._source and "tree" in vars(one._source)}


def functions() -> list[ast.FunctionDef]:
    """Return the functions of all syntax trees that are alive."""
    return [one for one in gc.get_objects() if isinstance(one, ast.FunctionDef)]


@pytest.mark.usefixtures("no_collector")
def test_what_no_answer_needs_is_freed() -> None:
    items = [shapes(), overlay(CHANGE, name="other", merged=Defines(READ, "g"))]
    once, often = Engine(items, once=True), Engine(items)
    expected = often.plan(FILES.get, items[:1])

    assert once.plan(FILES.get, items[:1]) == expected
    assert expected.files
    assert trees(often) == {(FILE, False), (FILE, True)}
    assert trees(once) == {(FILE, False), (FILE, True)}  # the other overlay has to see the old code, too
    assert once.status(FILES.get, items[1:]) == often.status(FILES.get, items[1:])
    assert trees(once) == set()
    assert trees(often) == {(FILE, False), (FILE, True), (READ, False)}
    assert once.plan(FILES.get) == often.plan(FILES.get)


@pytest.mark.usefixtures("no_collector")
def test_no_finding_keeps_a_tree() -> None:
    """Also none of code that is not there, whose message quotes what stands there instead."""
    engine = Engine([shapes()])
    (verdict,) = engine.status(FILES.get)
    assert verdict.state is State.PENDING
    assert len(functions()) == 2

    engine._cache.free(())

    assert functions() == []
    found = engine._cache.module(FILE, FILES[FILE]).findings
    assert [str(found[edit, "demo"].because) for edit in LOST] == [
        "`b(2)` is not there; nearest, line 4: `b(1)`",
        "no 'A.ff' here; nearest: 'A.f'",
        "no block `if aa:` directly in it; nearest, line 3: `if a: ...`",
    ]


@pytest.mark.usefixtures("no_collector")
def test_an_engine_that_forgets_frees() -> None:
    engine = Engine([shapes()])
    engine.plan(FILES.get)
    assert functions()

    engine.forget()

    assert functions() == []
