"""ReplaceExpr: states, results, and what makes it drift."""

from __future__ import annotations

import pytest
from vpatch import ReplaceExpr
from vpatch.core.verdict import State

from tests.snippets import FILE, applied, becomes, drifts, module, overlay, verdict

CASES = {
    "name": ("x = a\n", "a", "b", "x = b  # vpatch: demo\n"),
    "in a header": ("if a:\n    pass\n", "a", "b", "if b:  # vpatch: demo\n    pass\n"),
    "in an elif": ("if a:\n    x\nelif c:\n    y\n", "c", "b", "if a:\n    x\nelif b:  # vpatch: demo\n    y\n"),
    "in an except": ("try:\n    x\nexcept A:\n    y\n", "A", "B", "try:\n    x\nexcept B:  # vpatch: demo\n    y\n"),
    "in a match": (
        "match a:\n    case 1:\n        x\n",
        "a",
        "b",
        "match b:  # vpatch: demo\n    case 1:\n        x\n",
    ),
    "in a case": (
        "match z:\n    case 1 if a:\n        x\n",
        "a",
        "b",
        "match z:\n    case 1 if b:  # vpatch: demo\n        x\n",
    ),
    "in a decorator": ("@a\ndef f(): pass\n", "a", "staticmethod", "@staticmethod\ndef f(): pass  # vpatch: demo\n"),
    "in a one-line suite": ("if x: y(a)\n", "a", "b", "if x: y(b)  # vpatch: demo\n"),
    "behind a comment": ("x = a  # why\n", "a", "b", "x = b  # why  # vpatch: demo\n"),
    "new contains old": ("x = f(1)\n", "f(1)", "g(f(1))", "x = g(f(1))  # vpatch: demo\n"),
    "old contains new": ("x = g(f(1))\n", "g(f(1))", "f(1)", "x = f(1)  # vpatch: demo\n"),
    "over lines": ("x = f(\n    1,  # one\n    2,\n)\n", "f(1, 2)", "g(2)", "x = g(2)  # vpatch: demo\n"),
    "parentheses kept": ("x = (\n    a  # why\n)\n", "a", "b or c", "x = (\n    b or c  # why\n)  # vpatch: demo\n"),
    "parentheses added": ("x = a.y\n", "a", "b or c", "x = (b or c).y  # vpatch: demo\n"),
    "parentheses not needed": ("x = f(a)\n", "a", "b or c", "x = f(b or c)  # vpatch: demo\n"),
    "a starred argument": ("x = f(*a)\n", "a", "b or c", "x = f(*(b or c))  # vpatch: demo\n"),
    "an attribute of a number": ("x = a.real\n", "a", "1", "x = (1).real  # vpatch: demo\n"),
    "own parentheses": ("x = a + 1\n", "a", "(b - c)", "x = (b - c) + 1  # vpatch: demo\n"),
    "no space before a string": ('def f():\n    return"a"\n', '"a"', "b", "def f():\n    return(b)  # vpatch: demo\n"),
    "implicit concatenation": ('x = f("a" "b")\n', '"ab"', '"c"', 'x = f(("c"))  # vpatch: demo\n'),
    "not an attribute": ("x = a\ny.a = f(a=1)\n", "a", "b", "x = b  # vpatch: demo\ny.a = f(a=1)\n"),
    "not part of a string": ('x = "a" "b"\ny("a")\n', '"a"', "b", 'x = "a" "b"\ny((b))  # vpatch: demo\n'),
    "in an f-string": ('x = f"{a}"\n', "a", "b", 'x = f"{b}"  # vpatch: demo\n'),
}


@pytest.mark.parametrize(("before", "old", "new", "after"), CASES.values(), ids=CASES)
def test_it_replaces_one_expression(before: str, old: str, new: str, after: str) -> None:
    becomes(before, ReplaceExpr(FILE, "", old=old, new=new), after)


def test_it_replaces_exactly_the_declared_number() -> None:
    becomes(
        "def f():\n    a(1)\n    if x:\n        a(1)\n",
        ReplaceExpr(FILE, "f", old="a(1)", new="b(1)", count=2),
        "def f():\n    b(1)  # vpatch: demo\n    if x:\n        b(1)  # vpatch: demo\n",
    )


@pytest.mark.parametrize(
    ("source", "count", "says"),
    [
        ("x = 1\n", 1, "`f(1)` is not there"),
        ("x = f(2)\n", 1, "nearest, line 1: `f(2)`"),
        ("x = f(1)\ny = f(1)\n", 1, "`f(1)` is there 2 times, 1 expected"),
        ("x = f(1)\n", 2, "`f(1)` is there 1 times, 2 expected"),
        ("x = f(1)\ny = f(1)\nz = g(1)\n", 1, "is there 2 times, 1 expected, what replaces it 1 times"),
        ("x = f(1)\ny = g(1)  # vpatch: demo\n", 1, "stand on code that this version does not make"),
    ],
)
def test_it_drifts_where_the_number_is_another(source: str, count: int, says: str) -> None:
    drifts(source, ReplaceExpr(FILE, "", old="f(1)", new="g(1)", count=count), says)


def test_new_code_that_upstream_has_elsewhere_is_left_alone() -> None:
    item = overlay(ReplaceExpr(FILE, "", old="f(1)", new="g(1)"))

    assert applied(module("x = f(1)\ny = g(1)\n"), item)[FILE] == b"x = g(1)  # vpatch: demo\ny = g(1)\n"
    assert verdict(module("x = g(1)\ny = g(1)\n"), item).state is State.DRIFTED
