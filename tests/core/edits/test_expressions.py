"""ReplaceExpr, AddKeyword and AddParameter: results, layouts and drift."""

from __future__ import annotations

import pytest
from vpatch.core.overlay import Edit
from vpatch.core.verdict import State

from tests.snippets import (
    FILE,
    AddKeyword,
    M,
    ReplaceExpr,
    applied,
    changes,
    drifts,
    header,
    module,
    overlay,
    verdict,
)

REPLACED = {
    "name": ("-x = a|+x = b", "a", "b"),
    "in a header": ("-if a:|+if b:|    pass", "a", "b"),
    "in an elif": ("if a:|    x|-elif c:|+elif b:|    y", "c", "b"),
    "in an except": ("try:|    x|-except A:|+except B:|    y", "A", "B"),
    "in an else": ("if b:|    c|else:|-    a|+    z", "a", "z"),
    "in an else of a loop": ("while b:|    c|else:|-    a|+    z", "a", "z"),
    "in a finally": ("try:|    b|finally:|-    a|+    z", "a", "z"),
    "in a one-line with": ("-with a: b|+with z: b", "a", "z"),
    "in a default": ("-def f(x=a):|+def f(x=z):|    b", "a", "z"),
    "in the pattern of a case": ("match b:|-    case a.y:|+    case z.y:|        x", "a.y", "z.y"),
    "in a block of a case": ("match b:|    case 1:|-        if c: a|+        if c: z", "a", "z"),
    "in a match": ("-match a:|+match b:|    case 1:|        x", "a", "b"),
    "in a case": ("match z:|-    case 1 if a:|+    case 1 if b:|        x", "a", "b"),
    "in a decorator": ("-@a|-def f(): pass|>@staticmethod|+def f(): pass", "a", "staticmethod"),
    "in a one-line suite": ("-if x: y(a)|+if x: y(b)", "a", "b"),
    "behind a comment": ("-x = a  # why|+x = b  # why", "a", "b"),
    "new contains old": ("-x = f(1)|+x = g(f(1))", "f(1)", "g(f(1))"),
    "old contains new": ("-x = g(f(1))|+x = f(1)", "g(f(1))", "f(1)"),
    "over lines": ("-x = f(|-    1,  # one|-    2,|-)|+x = g(2)", "f(1, 2)", "g(2)"),
    "parentheses kept": ("x = (|-    a  # why|-)|>    b or c  # why|+)", "a", "b or c"),
    "parentheses added": ("-x = a.y|+x = (b or c).y", "a", "b or c"),
    "parentheses not needed": ("-x = f(a)|+x = f(b or c)", "a", "b or c"),
    "a starred argument": ("-x = f(*a)|+x = f(*(b or c))", "a", "b or c"),
    "an attribute of a number": ("-x = a.real|+x = (1).real", "a", "1"),
    "own parentheses": ("-x = a + 1|+x = (b - c) + 1", "a", "(b - c)"),
    "no space before a string": ('def f():|-    return"a"|+    return(b)', '"a"', "b"),
    "a string for a string": ('def f():|-    return"a"|+    return"b"', '"a"', '"b"'),
    "one with a prefix": ('def f():|-    return"a"|+    return(b"b")', '"a"', 'b"b"'),
    "implicit concatenation": ('-x = f("a" "b")|+x = f("c")', '"ab"', '"c"'),
    "not an attribute": ("-x = a|+x = b|y.a = f(a=1)", "a", "b"),
    "not part of a string": ('x = "a" "b"|-y("a")|+y((b))', '"a"', "b"),
    "in an f-string": ('-x = f"{a}"|+x = f"{b}"', "a", "b"),
}


@pytest.mark.parametrize(("change", "old", "new"), REPLACED.values(), ids=REPLACED)
def test_an_expression_is_replaced(change: str, old: str, new: str) -> None:
    changes(change, ReplaceExpr(FILE, "", old=old, new=new))


def test_equal_code_of_upstream_elsewhere_stays() -> None:
    item = overlay(ReplaceExpr(FILE, "", old="f(1)", new="g(1)"))

    assert applied(module("x = f(1)\ny = g(1)\n"), item)[FILE] == b"x = g(1)  # vpatch: demo\ny = g(1)\n"
    assert verdict(module("x = g(1)\ny = g(1)\n"), item).state is State.DRIFTED


CALLS = {
    "no arguments": "-f()|+f(k=1)",
    "one line": "-f(a, *b)|+f(a, *b, k=1)",
    "one line, trailing comma": "-f(a,)|+f(a, k=1,)",
    "before **": "-f(a, **b)|+f(a, k=1, **b)",
    "only **": "-f(**b)|+f(k=1, **b)",
    "a line each": "f(|    a,|    b,|-)|>    k=1,|+)",
    "a line each, no trailing comma": "f(|    a,|-    b|-)|>    b,|>    k=1|+)",
    "comments": "f(  # zero|    a,  # one|    # two|    b,  # three|-)|>    k=1,|+)",
    "a comment, no trailing comma": "f(|-    a  # one|-)|>    a,  # one|>    k=1|+)",
    "a line each, before **": "f(|    a,|>    k=1,|    **b,|-)|+)",
    "aligned": "f(a,|-  b)|+  b, k=1)",
    "a generator": "-f(x for x in y)|+f((x for x in y), k=1)",
    "another keyword": "-f(j=2)|+f(j=2, k=1)",
}


@pytest.mark.parametrize("change", CALLS.values(), ids=CALLS)
def test_a_keyword_is_added(change: str) -> None:
    changes(change, AddKeyword(FILE, "", call="f(...)", keyword="k=1"))


PARAMETERS = {
    "last": ("-def f(a): ...|+def f(a, n: int = 1): ...", "a", "a, {}"),
    "in the middle": ("-def f(a, b=2):|+def f(a, n: int = 1, b=2):|    x", "a", "a, {}"),
    "before *": ("-def f(a, *, b): ...|+def f(a, n: int = 1, *, b): ...", "a", "a, {}"),
    "before *args": ("-def f(a, *b, **c): ...|+def f(a, n: int = 1, *b, **c): ...", "a", "a, {}"),
    "keyword-only": ("-def f(a, *, b): ...|+def f(a, *, b, n: int = 1): ...", "*, b", "*, b, {}"),
    "keyword-only, before **": ("-def f(*, b, **c): ...|+def f(*, b, n: int = 1, **c): ...", "*, b", "*, b, {}"),
    "positional-only": ("-def f(a, /): ...|+def f(a, n: int = 1, /): ...", "a, /", "a, {}, /"),
    "behind /": ("-def f(a, /, b): ...|+def f(a, /, b, n: int = 1): ...", "b", "b, {}"),
    "several": ("-def f(a, b): ...|+def f(a, n: int = 1, m=2, b): ...".replace("b)", "b=0)"), "a", "a, {}, m=2"),
    "a line each": (
        "@staticmethod|async def f(|    a: int,  # one|-) -> None:|>    n: int = 1,|+) -> None:|    x",
        "a",
        "a, {}",
    ),
    "a line each, in the middle": ("def f(|    a,  # one|>    n: int = 1,|    b=2|-): ...|+): ...", "a", "a, {}"),
    "a line each, no trailing comma": (
        "def f(|    a,|-    b  # two|-): ...|>    b,  # two|>    n: int = 1|+): ...",
        "b",
        "b, {}",
    ),
    "header line": ("def f(a,|      b,|-      ): ...|>      n: int = 1,|+      ): ...", "b", "b, {}"),
    "another default": ("-def f(a, b=2): ...|+def f(a, b=3): ...", "b=2", "b=3"),
}


@pytest.mark.parametrize(("change", "old", "new"), PARAMETERS.values(), ids=PARAMETERS)
def test_a_header_changes(change: str, old: str, new: str) -> None:
    word = "async def" if "async" in change else "def"
    changes(change, header(FILE, "", f"{word} f({old})", f"{word} f({new.format('n: int = 1')})"))


MORE = {
    "as many expressions as declared": (
        "def f():|-    a(1)|+    b(1)|    if x:|-        a(1)|+        b(1)",
        ReplaceExpr(FILE, "f", old="a(1)", new="b(1)", count=2),
    ),
    "a call without a hole": ("-f(a)|+f(a, k=1)|f(b)", AddKeyword(FILE, "", "f(a)", "k=1")),
    "several calls": (
        "def g():|-    with x(f(1)): return f(2)|+    with x(f(1, k=1)): return f(2, k=1)",
        AddKeyword(FILE, "g", call="f(...)", keyword="k=1", count=2),
    ),
    "every variant of a function": (
        "if x:|-    def f(a): ...|+    def f(a, n): ...|else:|-    def f(a): ...|+    def f(a, n): ...",
        header(FILE, "", "def f(a)", "def f(a, n)", count=2),
    ),
}


@pytest.mark.parametrize(("change", "edit"), MORE.values(), ids=MORE)
def test_several_places(change: str, edit: Edit) -> None:
    changes(change, edit)


def expression(count: int = 1) -> Edit:
    return ReplaceExpr(FILE, "", old="f(1)", new="g(1)", count=count)


def keyword(count: int = 1) -> Edit:
    return AddKeyword(FILE, "", call="f(...)", keyword="k=1", count=count)


PARAMETER = header(FILE, "", "def f(a)", "def f(a, n: int = 1)")


@pytest.mark.parametrize(
    ("source", "edit", "message"),
    [
        ("x = 1\n", expression(), "`f(1)` is not there"),
        ("x = f(2)\n", expression(), "nearest, line 1: `f(2)`"),
        ("x = f(1)\ny = f(1)\n", expression(), "`f(1)` is there 2 times, 1 expected"),
        ("x = f(1)\n", expression(2), "`f(1)` is there 1 times, 2 expected"),
        (
            "x = f(1)\ny = f(1)\nz = g(1)\n",
            expression(),
            "is there 2 times, 1 expected (lines 1, 2), what replaces it 1 times",
        ),
        (f"x = f(1)\ny = g(1){M}\n", expression(), "`# vpatch: demo` in line 2 is not what this version makes"),
        ("f(1)\nf(2)\n", keyword(), "`f(...)` is there 2 times, 1 expected"),
        ("f(1, k=1)\nf(2)\n", keyword(2), "`f(...)` is there 1 times, 2 expected (line 2), what replaces it 1 times"),
        ("f(k=2)\n", keyword(), "`f(...)` already has `k=2`, line 1"),
        ("ff(2)\n", keyword(), "`f(...)` is not there; nearest, line 1: `ff(2)`"),
        ("def f(b): ...\n", PARAMETER, "no parameter 'a' to put 'n' behind"),
        (
            "def f(a, n: str): ...\n",
            PARAMETER,
            "`def f(a): ...` is not there; nearest, line 1: `def f(a, n: str): ...`",
        ),
        ("class f: ...\n", PARAMETER, "`def f(a): ...` is not there"),
        (
            "if x:\n    def f(a): ...\nelse:\n    def f(a): ...\n",
            PARAMETER,
            "`def f(a): ...` is there 2 times, 1 expected",
        ),
    ],
)
def test_it_drifts(source: str, edit: Edit, message: str) -> None:
    drifts(source, edit, message)
