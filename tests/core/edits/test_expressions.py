"""AddKeyword and AddParameter: layouts, states, and what makes them drift."""

from __future__ import annotations

import pytest
from vpatch import AddKeyword, AddParameter

from tests.snippets import FILE, becomes, drifts

M = "  # vpatch: demo"

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
    "a line each, before **": (
        "f(\n    a,\n    **b,\n)\n",
        f"f(\n    a,\n    k=1, \n    **b,\n){M}\n".replace(", \n", ",\n"),
    ),
    "aligned": ("f(a,\n  b)\n", f"f(a,\n  b, k=1){M}\n"),
    "a generator": ("f(x for x in y)\n", f"f((x for x in y), k=1){M}\n"),
    "another keyword": ("f(j=2)\n", f"f(j=2, k=1){M}\n"),
}


@pytest.mark.parametrize(("before", "after"), CALLS.values(), ids=CALLS)
def test_a_keyword_is_added(before: str, after: str) -> None:
    becomes(before, AddKeyword(FILE, "", call="f(...)", keyword="k=1"), after)


def test_a_call_need_not_be_free() -> None:
    becomes("f(a)\nf(b)\n", AddKeyword(FILE, "", call="f(a)", keyword="k=1"), f"f(a, k=1){M}\nf(b)\n")


def test_several_calls() -> None:
    becomes(
        "def g():\n    with x(f(1)): return f(2)\n",
        AddKeyword(FILE, "g", call="f(...)", keyword="k=1", count=2),
        f"def g():\n    with x(f(1, k=1)): return f(2, k=1){M}\n",
    )


@pytest.mark.parametrize(
    ("source", "count", "says"),
    [
        ("f(1)\nf(2)\n", 1, "`f(...)` is there 2 times, 1 expected, with `k=1` 0 times"),
        ("f(1, k=1)\nf(2)\n", 2, "`f(...)` is there 2 times, 2 expected, with `k=1` 1 times"),
        ("f(k=2)\n", 1, "`f(...)` already has `k=2`, line 1"),
        ("ff(2)\n", 1, "`f(...)` is not there, with `k=1` 0 times; nearest, line 1: `ff(2)`"),
    ],
)
def test_a_keyword_drifts(source: str, count: int, says: str) -> None:
    drifts(source, AddKeyword(FILE, "", call="f(...)", keyword="k=1", count=count), says)


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


def test_a_parameter_of_every_variant() -> None:
    becomes(
        "if x:\n    def f(a): ...\nelse:\n    def f(a): ...\n",
        AddParameter(FILE, "f", "n", after="a", count=2),
        f"if x:\n    def f(a, n): ...{M}\nelse:\n    def f(a, n): ...{M}\n",
    )


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def f(b): ...\n", "no parameter 'a' to put `n: int = 1` behind"),
        ("def f(a, n: str): ...\n", "already has the parameter `n: str`"),
        ("class f: ...\n", "is not a function"),
        ("if x:\n    def f(a): ...\nelse:\n    def f(a): ...\n", "is defined 2 times, 1 expected; 0 have"),
    ],
)
def test_a_parameter_drifts(source: str, says: str) -> None:
    drifts(source, AddParameter(FILE, "f", "n: int = 1", after="a"), says)
