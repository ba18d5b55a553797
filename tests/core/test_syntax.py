"""Comparing and walking syntax trees."""

from __future__ import annotations

import ast

import pytest
from vpatch.core.matching import matches, same
from vpatch.core.syntax import Spot, along, evaluated, walk

SAME = [
    ("f(a,b)", "f(\n  a,  # one\n  b,\n)"),
    ("(a)", "a"),
    ("a, b", "(a, b,)"),
    ('"ab"', "'a' \"b\""),
    ("if a: b", "if a:\n    b"),
    ("if a: b; c", "if a:\n    b\n    c"),
    ("class A(): pass", "class A: pass"),
    ("from a import (b)", "from a import b"),
    ("def f(a, *, b=1) -> c: ...", "def f(\n    a,\n    *,\n    b = 1,\n) -> c:\n    ..."),
    ("@a\n\n@b\ndef f(): ...", "@a\n@b\ndef f(): ..."),
    ("x = 1  # one", "x=1;"),
]
OTHER = [
    ("f('a' f'{b}')", "f('c' f'{b}')"),
    ("a", "b"),
    ("f(a)", "f(*a)"),
    ("f(a)", "f(k=a)"),
    ('"a"', 'b"a"'),
    ('"a"', 'f"a"'),
    ('f"{a}" "b"', '"ab"'),
    ("a + b", "a - b"),
    ("[a]", "(a,)"),
    ("x = 1", "x = 1.0"),
    ("def f(): ...", "async def f(): ..."),
    ("def f(a, b): ...", "def f(a, *, b): ..."),
    ("def f(a, b): ...", "def f(a, /, b): ..."),
    ("from a import b", "from .a import b"),
    ("if a:\n    b\nelse:\n    c", "if a:\n    b\nelif c:\n    c"),
    ("a and b and c", "a and (b and c)"),
]


def one(code: str) -> ast.stmt:
    return ast.parse(code).body[0]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_layout_does_not_count(a: str, b: str) -> None:
    assert same(one(a), one(b))


@pytest.mark.parametrize(("a", "b"), OTHER)
def test_all_else_makes_a_difference(a: str, b: str) -> None:
    assert not same(one(a), one(b))
    assert not same(one(b), one(a))


@pytest.mark.parametrize(
    ("pattern", "found", "holds"),
    [
        ("f(...)", "f()", True),
        ("f(...)", "f(a, *b, k=1)", True),
        ("f(..., k=1)", "f(a, b, k=1)", True),
        ("f(..., k=1)", "f(a, b, k=2)", False),
        ("f(a, ..., b, ...)", "f(a, b, a, b, c)", True),
        ("f(a, ..., b)", "f(a)", False),
        ("f(k=...)", "f(k=a + b)", True),
        ("[..., a]", "[b, c, a]", True),
        ("x[...]", "x[a.b]", True),
        ("... + a", "f(1) + a", True),
        ("if a:\n    ...\n    raise B(...)", "if a: c; raise B", False),
        ("if a:\n    ...\n    raise B(...)", "if a: c; d; raise B(1)", True),
        ("if a:\n    raise B(...)", "if a:\n    c\n    raise B(1)", False),
        ("f(a)", "f(...)", False),
        ("if a:\n    ...", "if a:\n" + "    b\n" * 3000, True),  # without a deep recursion
        ("...", "...", True),
    ],
)
def test_a_hole_matches_any_run(pattern: str, found: str, *, holds: bool) -> None:
    assert matches(one(pattern), one(found)) is holds
    assert same(one(pattern), one(found)) is (pattern == found)


def test_keywords_match_in_any_order() -> None:
    assert same(one("f(a, b=1, c=2)"), one("f(a, c=2, b=1)"))
    assert not same(one("f(b=1, c=2)"), one("f(c=1, b=2)"))
    assert not matches(one("f(b=1)"), one("f(b=1, c=2)"))
    assert matches(one("f(..., b=1)"), one("f(b=1, c=2)"))


def test_a_walk_over_expressions_leaves_out_the_text_of_f_strings() -> None:
    root = Spot((), ast.parse("x = f'a{b}c'\n"))

    assert [s.node.value for s in evaluated(root) if isinstance(s.node, ast.Constant)] == []
    assert [s.node.value for s in walk(root) if isinstance(s.node, ast.Constant)] == ["a", "c"]
    assert [s.node.id for s in evaluated(root) if isinstance(s.node, ast.Name)] == ["x", "b"]
    assert all(along(root.node, spot.path)[-1] is spot.node for spot in evaluated(root))
