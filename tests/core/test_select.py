"""Find scopes, statements and expressions."""

from __future__ import annotations

import ast
from contextlib import nullcontext

import pytest
from vpatch.core.parse import Lost, Source
from vpatch.core.select import (
    block,
    expression,
    expressions,
    headline,
    most_alike,
    runs,
    scopes,
)
from vpatch.core.syntax import Spot
from vpatch.core.workspace import Workspace

from tests.snippets import FILE

CODE = """
import a

if x:
    def f():
        def inner(): ...
        class Local:
            def m(self): ...
else:
    def f(): ...

try:
    class A: ...
except E:
    with w:
        class A:
            def m(self): ...
finally:
    match z:
        case 1:
            async def g(): ...

class B:
    @property
    def p(self): ...
    @p.setter
    def p(self, v): ...
    @p.deleter
    def p(self): ...
    @overload
    def o(self, a): ...
    @typing.overload
    def o(self, b): ...
    def o(self, c): ...
    lam = lambda: (yield)
    for i in j:
        while k:
            def looped(self): ...
"""


def source(code: str) -> Source:
    return Workspace({FILE: code.encode()}.get).source(FILE)


@pytest.mark.parametrize(
    ("scope", "lines"),
    [
        ("", [0]),
        ("f", [5, 10]),
        ("f.inner", [6]),
        ("f.Local.m", [8]),
        ("A", [13, 16]),
        ("A.m", [17]),
        ("g", [21]),
        ("B.p", [24]),
        ("B.p.setter", [26]),
        ("B.p.deleter", [28]),
        ("B.o", [34]),
        ("B.looped", [38]),
    ],
)
def test_a_qualified_name_leads_to_every_definition(scope: str, lines: list[int]) -> None:
    found = source(CODE)
    assert [found.line(spot.path) if spot.path else 0 for spot in scopes(found, scope)] == lines


@pytest.mark.parametrize(
    ("scope", "message"),
    [("B.pp", "no 'B.pp' here; nearest: 'B.p'"), ("zzzz", "no 'zzzz' here"), ("B.o.x", "no 'B.o.x' here")],
)
def test_a_missing_name(scope: str, message: str) -> None:
    with pytest.raises(Lost) as lost:
        scopes(source(CODE), scope)
    assert str(lost.value).startswith(message)


@pytest.mark.parametrize(
    ("within", "count"),
    [
        (["if g(...) and x"], 1),
        (["if ... and x", "elif h(...)"], 1),
        (["for a in b"], 2),
        (["for a in b", "else"], 1),
        (["if h(3)"], 0),
    ],
)
def test_headers(within: list[str], count: int) -> None:
    code = "if g(1, 2) and x:\n    a\nelif h(3):\n    b\nfor a in b:\n    x\nelse:\n    y\nfor a in b:\n    z\n"

    with nullcontext() if count else pytest.raises(Lost):
        assert len(scopes(source(code), "", within)) == count


def test_runs_are_directly_in_a_block() -> None:
    code = source("a\nb\nif x:\n    a\n    b\na; b\na\nb\n")
    root = Spot((), code.tree)

    assert [run[0].path for run in runs(code, root, block("a\nb"))] == [(("body", 0),), (("body", 3),), (("body", 5),)]
    suite = source("if x: a\n")
    assert runs(suite, Spot((("body", 0),), suite.tree.body[0]), block("a")) == []


def test_matches_inside_a_match_do_not_count() -> None:
    code = source("f(f(1))\ng(f(1))\n")
    root = Spot((), code.tree)

    assert len(expressions(code, root, expression("f(...)"), exactly=False)) == 2
    assert len(expressions(code, root, expression("f(1)"))) == 2


def test_the_nearest_candidate() -> None:
    found = source('"""Doc\n\nstring."""\nx = 1\n\n\ndef f():\n    a = clamp(\n        budget,\n        1)\n')
    root = Spot((), found.tree)

    def near(wanted: ast.AST, text: str) -> str | None:
        spot = most_alike(found, [root], wanted, text)
        return spot and found.quoted(spot.node)

    assert near(expression("f()"), "clamp(budget, 2)") == "clamp( budget, 1)"
    assert near(block("def g(): 1")[0], "def f(x): ...") == "def f(): ..."
    assert near(expression("{1: 2}"), "{1: 2}") is None
    assert headline("\n  f(\n a)\n") == "f("
