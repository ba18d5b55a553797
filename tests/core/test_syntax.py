"""Comparing, walking and changing syntax trees."""

from __future__ import annotations

import libcst as cst
import pytest
from vpatch.core.syntax import Spot, along, evaluated, evaluated_steps, fingerprint, matches, same, splice, walk

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


def one(code: str) -> cst.CSTNode:
    return cst.parse_module(code).body[0]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_layout_does_not_count(a: str, b: str) -> None:
    assert same(one(a), one(b))
    assert fingerprint(one(a)) == fingerprint(one(b))


@pytest.mark.parametrize(("a", "b"), OTHER)
def test_all_else_makes_a_difference(a: str, b: str) -> None:
    assert not same(one(a), one(b))
    assert not same(one(b), one(a))
    assert fingerprint(one(a)) != fingerprint(one(b))


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


def test_only_literals_have_a_value() -> None:
    assert evaluated(cst.parse_expression("'a' 'b'")) == "ab"
    assert evaluated(cst.parse_expression("b'a'")) == b"a"
    assert evaluated(cst.parse_expression("a")) is None


def test_a_walk_over_expressions_leaves_out_bound_names() -> None:
    code = "from m import n as o\ndef d(p, q: a = b): c.e(f=g)\nx = 's' 't'\n"
    found = [s.node for s in walk(Spot((), cst.parse_module(code)), evaluated_steps)]

    assert [node.value for node in found if isinstance(node, cst.Name)] == ["a", "b", "c", "g", "x"]
    assert not [node for node in found if isinstance(node, cst.SimpleString)]


def test_statements_come_and_go_in_a_block() -> None:
    module = cst.parse_module("a\nb\nc\n")
    a, b, c = module.body

    assert along(splice(module, (("body", 1),), [c]), (("body", 1),))[-1] is c
    assert splice(module, (("body", 1),), []).code == "a\nc\n"
    assert splice(module, (("body", 2),), [b, a]).code == "a\nb\nb\na\n"
    with pytest.raises(ValueError, match="unpack"):
        splice(cst.parse_module("if a: b\n"), (("body", 0), ("test", -1)), [])
