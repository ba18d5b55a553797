"""ReplaceExpr, AddKeyword and AddParameter: results, layouts and drift."""

from __future__ import annotations

import pytest
from vpatch import AddKeyword, AddParameter, ReplaceExpr
from vpatch.core.overlay import Edit
from vpatch.core.verdict import State

from tests.snippets import FILE, M, applied, becomes, drifts, module, overlay, verdict

REPLACED = {
    "name": ("x = a\n", "a", "b", f"x = b{M}\n"),
    "in a header": ("if a:\n    pass\n", "a", "b", f"if b:{M}\n    pass\n"),
    "in an elif": ("if a:\n    x\nelif c:\n    y\n", "c", "b", f"if a:\n    x\nelif b:{M}\n    y\n"),
    "in an except": ("try:\n    x\nexcept A:\n    y\n", "A", "B", f"try:\n    x\nexcept B:{M}\n    y\n"),
    "in a match": ("match a:\n    case 1:\n        x\n", "a", "b", f"match b:{M}\n    case 1:\n        x\n"),
    "in a case": ("match z:\n    case 1 if a:\n        x\n", "a", "b", f"match z:\n    case 1 if b:{M}\n        x\n"),
    "in a decorator": ("@a\ndef f(): pass\n", "a", "staticmethod", f"@staticmethod\ndef f(): pass{M}\n"),
    "in a one-line suite": ("if x: y(a)\n", "a", "b", f"if x: y(b){M}\n"),
    "behind a comment": ("x = a  # why\n", "a", "b", f"x = b  # why{M}\n"),
    "new contains old": ("x = f(1)\n", "f(1)", "g(f(1))", f"x = g(f(1)){M}\n"),
    "old contains new": ("x = g(f(1))\n", "g(f(1))", "f(1)", f"x = f(1){M}\n"),
    "over lines": ("x = f(\n    1,  # one\n    2,\n)\n", "f(1, 2)", "g(2)", f"x = g(2){M}\n"),
    "parentheses kept": ("x = (\n    a  # why\n)\n", "a", "b or c", f"x = (\n    b or c  # why\n){M}\n"),
    "parentheses added": ("x = a.y\n", "a", "b or c", f"x = (b or c).y{M}\n"),
    "parentheses not needed": ("x = f(a)\n", "a", "b or c", f"x = f(b or c){M}\n"),
    "a starred argument": ("x = f(*a)\n", "a", "b or c", f"x = f(*(b or c)){M}\n"),
    "an attribute of a number": ("x = a.real\n", "a", "1", f"x = (1).real{M}\n"),
    "own parentheses": ("x = a + 1\n", "a", "(b - c)", f"x = (b - c) + 1{M}\n"),
    "no space before a string": ('def f():\n    return"a"\n', '"a"', "b", f"def f():\n    return(b){M}\n"),
    "implicit concatenation": ('x = f("a" "b")\n', '"ab"', '"c"', f'x = f(("c")){M}\n'),
    "not an attribute": ("x = a\ny.a = f(a=1)\n", "a", "b", f"x = b{M}\ny.a = f(a=1)\n"),
    "not part of a string": ('x = "a" "b"\ny("a")\n', '"a"', "b", f'x = "a" "b"\ny((b)){M}\n'),
    "in an f-string": ('x = f"{a}"\n', "a", "b", 'x = f"{b}"  # vpatch: demo\n'),
}


@pytest.mark.parametrize(("before", "old", "new", "after"), REPLACED.values(), ids=REPLACED)
def test_an_expression_is_replaced(before: str, old: str, new: str, after: str) -> None:
    becomes(before, ReplaceExpr(FILE, "", old=old, new=new), after)


def test_equal_code_of_upstream_elsewhere_stays() -> None:
    item = overlay(ReplaceExpr(FILE, "", old="f(1)", new="g(1)"))

    assert applied(module("x = f(1)\ny = g(1)\n"), item)[FILE] == b"x = g(1)  # vpatch: demo\ny = g(1)\n"
    assert verdict(module("x = g(1)\ny = g(1)\n"), item).state is State.DRIFTED


CALLS = {
    "no arguments": ("f()\n", f"f(k=1){M}\n"),
    "one line": ("f(a, *b)\n", f"f(a, *b, k=1){M}\n"),
    "one line, trailing comma": ("f(a,)\n", f"f(a, k=1,){M}\n"),
    "before **": ("f(a, **b)\n", f"f(a, k=1, **b){M}\n"),
    "only **": ("f(**b)\n", f"f(k=1, **b){M}\n"),
    "a line each": ("f(\n    a,\n    b,\n)\n", f"f(\n    a,\n    b,\n    k=1,\n){M}\n"),
    "a line each, no trailing comma": ("f(\n    a,\n    b\n)\n", f"f(\n    a,\n    b,\n    k=1\n){M}\n"),
    "comments": (
        "f(  # zero\n    a,  # one\n    # two\n    b,  # three\n)\n",
        f"f(  # zero\n    a,  # one\n    # two\n    b,  # three\n    k=1,\n){M}\n",
    ),
    "a comment, no trailing comma": ("f(\n    a  # one\n)\n", f"f(\n    a,  # one\n    k=1\n){M}\n"),
    "a line each, before **": ("f(\n    a,\n    **b,\n)\n", f"f(\n    a,\n    k=1,\n    **b,\n){M}\n"),
    "aligned": ("f(a,\n  b)\n", f"f(a,\n  b, k=1){M}\n"),
    "a generator": ("f(x for x in y)\n", f"f((x for x in y), k=1){M}\n"),
    "another keyword": ("f(j=2)\n", f"f(j=2, k=1){M}\n"),
}


@pytest.mark.parametrize(("before", "after"), CALLS.values(), ids=CALLS)
def test_a_keyword_is_added(before: str, after: str) -> None:
    becomes(before, AddKeyword(FILE, "", call="f(...)", keyword="k=1"), after)


PARAMETERS = {
    "last": ("def f(a): ...\n", "a", f"def f(a, n: int = 1): ...{M}\n"),
    "in the middle": ("def f(a, b=2):\n    x\n", "a", f"def f(a, n: int = 1, b=2):{M}\n    x\n"),
    "before *": ("def f(a, *, b): ...\n", "a", f"def f(a, n: int = 1, *, b): ...{M}\n"),
    "before *args": ("def f(a, *b, **c): ...\n", "a", f"def f(a, n: int = 1, *b, **c): ...{M}\n"),
    "keyword-only": ("def f(a, *, b): ...\n", "b", f"def f(a, *, b, n: int = 1): ...{M}\n"),
    "keyword-only, before **": ("def f(*, b, **c): ...\n", "b", f"def f(*, b, n: int = 1, **c): ...{M}\n"),
    "positional-only": ("def f(a, /): ...\n", "a", f"def f(a, n: int = 1, /): ...{M}\n"),
    "behind /": ("def f(a, /, b): ...\n", "b", f"def f(a, /, b, n: int = 1): ...{M}\n"),
    "a line each": (
        "@staticmethod\nasync def f(\n    a: int,  # one\n) -> None:\n    x\n",
        "a",
        f"@staticmethod\nasync def f(\n    a: int,  # one\n    n: int = 1,\n) -> None:{M}\n    x\n",
    ),
    "a line each, in the middle": (
        "def f(\n    a,  # one\n    b=2\n): ...\n",
        "a",
        f"def f(\n    a,  # one\n    n: int = 1,\n    b=2\n): ...{M}\n",
    ),
    "a line each, no trailing comma": (
        "def f(\n    a,\n    b  # two\n): ...\n",
        "b",
        f"def f(\n    a,\n    b,  # two\n    n: int = 1\n): ...{M}\n",
    ),
    "header line": (
        "def f(a,\n      b,\n      ): ...\n",
        "b",
        f"def f(a,\n      b,\n      n: int = 1,\n      ): ...{M}\n",
    ),
}


@pytest.mark.parametrize(("before", "behind", "after"), PARAMETERS.values(), ids=PARAMETERS)
def test_a_parameter_is_added(before: str, behind: str, after: str) -> None:
    becomes(before, AddParameter(FILE, "f", "n: int = 1", after=behind), after)


MORE = {
    "as many expressions as declared": (
        "def f():\n    a(1)\n    if x:\n        a(1)\n",
        ReplaceExpr(FILE, "f", old="a(1)", new="b(1)", count=2),
        f"def f():\n    b(1){M}\n    if x:\n        b(1){M}\n",
    ),
    "a call without a hole": ("f(a)\nf(b)\n", AddKeyword(FILE, "", "f(a)", "k=1"), f"f(a, k=1){M}\nf(b)\n"),
    "several calls": (
        "def g():\n    with x(f(1)): return f(2)\n",
        AddKeyword(FILE, "g", call="f(...)", keyword="k=1", count=2),
        f"def g():\n    with x(f(1, k=1)): return f(2, k=1){M}\n",
    ),
    "every variant of a function": (
        "if x:\n    def f(a): ...\nelse:\n    def f(a): ...\n",
        AddParameter(FILE, "f", "n", after="a", count=2),
        f"if x:\n    def f(a, n): ...{M}\nelse:\n    def f(a, n): ...{M}\n",
    ),
}


@pytest.mark.parametrize(("before", "edit", "after"), MORE.values(), ids=MORE)
def test_several_places(before: str, edit: Edit, after: str) -> None:
    becomes(before, edit, after)


def expression(count: int = 1) -> Edit:
    return ReplaceExpr(FILE, "", old="f(1)", new="g(1)", count=count)


def keyword(count: int = 1) -> Edit:
    return AddKeyword(FILE, "", call="f(...)", keyword="k=1", count=count)


PARAMETER = AddParameter(FILE, "f", "n: int = 1", after="a")


@pytest.mark.parametrize(
    ("source", "edit", "message"),
    [
        ("x = 1\n", expression(), "`f(1)` is not there"),
        ("x = f(2)\n", expression(), "nearest, line 1: `f(2)`"),
        ("x = f(1)\ny = f(1)\n", expression(), "`f(1)` is there 2 times, 1 expected"),
        ("x = f(1)\n", expression(2), "`f(1)` is there 1 times, 2 expected"),
        ("x = f(1)\ny = f(1)\nz = g(1)\n", expression(), "is there 2 times, 1 expected, what replaces it 1 times"),
        (f"x = f(1)\ny = g(1){M}\n", expression(), "`# vpatch: demo` in line 2 is not what this version makes"),
        ("f(1)\nf(2)\n", keyword(), "`f(...)` is there 2 times, 1 expected, with `k=1` 0 times"),
        ("f(1, k=1)\nf(2)\n", keyword(2), "`f(...)` is there 2 times, 2 expected, with `k=1` 1 times"),
        ("f(k=2)\n", keyword(), "`f(...)` already has `k=2`, line 1"),
        ("ff(2)\n", keyword(), "`f(...)` is not there, with `k=1` 0 times; nearest, line 1: `ff(2)`"),
        ("def f(b): ...\n", PARAMETER, "no parameter 'a' to put `n: int = 1` behind"),
        ("def f(a, n: str): ...\n", PARAMETER, "already has the parameter `n: str`"),
        ("class f: ...\n", PARAMETER, "is not a function"),
        ("if x:\n    def f(a): ...\nelse:\n    def f(a): ...\n", PARAMETER, "is defined 2 times, 1 expected; 0 have"),
    ],
)
def test_it_drifts(source: str, edit: Edit, message: str) -> None:
    drifts(source, edit, message)
