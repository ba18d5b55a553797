"""The names that may be bound before a statement, path by path."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest
from vpatch.core.landing.flow import STAR, Flow, flow, truth


def bound_before(node: ast.AST, found: Flow) -> set[str]:
    return {name for name, bit in found.bits.items() if found.before[node] & bit}


def before(code: str) -> set[str] | None:
    """Return the names that may be bound before `here`, None if it is never reached."""
    body = ast.parse(dedent(code)).body
    marker = next(
        n for n in ast.walk(ast.Module(body, [])) if isinstance(n, ast.Expr) and getattr(n.value, "id", "") == "here"
    )
    found = flow(body)
    return bound_before(marker, found) if marker in found.before else None


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("here\na = 1", ""),
        ("a = b = 1\n(c, *d), e.f, g[0] = x\nhere", "a b c d"),
        ("a: int = 1\nb: int\nhere", "a"),
        ("import a.b, c as d\nfrom e import f, g as h\nhere", "a d f h"),
        ("a = 1\ndel a\nhere", ""),
        ("if x:\n    a = 1\nelse:\n    b = 1\nhere", "a b"),
        ("if x:\n    a = 1\n    raise E\nhere", ""),
        ("if (a := 1):\n    here", "a"),
        ("for a in x:\n    try:\n        break\n    finally:\n        b = 1\nhere", "a b"),
        ("for a in x:\n    here\n    try:\n        continue\n    finally:\n        b = 1\n", "a b"),
        ("x = [b for b in (a := [1])]\nhere", "a x"),
        ("for a in x:\n    if b:\n        c = 1\n        continue\n    here\n    b = 1", "a b c"),
        ("for a in x:\n    pass\nelse:\n    b = 1\nhere", "a b"),
        ("while x:\n    a = 1\n    break\n    b = 1\nhere", "a"),
        ("while True:\n    a = 1\n    if x: break\nhere", "a"),
        ("with a as b, c as (d, e):\n    f = 1\nhere", "b d e f"),
        ("try:\n    a = 1\n    b = 1\nexcept E as e:\n    here\n    c = 1", "a b e"),
        ("try:\n    a = 1\nexcept E as e:\n    c = 1\nelse:\n    d = 1\nhere", "a c d"),
        ("try:\n    a = 1\n    raise E\nfinally:\n    here", "a"),
        ("try:\n    a = 1\nexcept* E:\n    raise\nfinally:\n    b = 1\nhere", "a b"),
        ("match x:\n    case [a, *b]:\n        c = 1\n    case {'k': d, **e} if d:\n        pass\nhere", "a b c d e"),
        ("def a(): b = 1\nclass c: d = 1\nhere", "a c"),
        ("lambda: (a := 1)\nhere", ""),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b\nhere", "b"),
        ("if not typing.TYPE_CHECKING:\n    import a\nhere", "a"),
        ("with suppress(E):\n    a = 1\n    raise E\nhere", "a"),
    ],
)
def test_names_that_some_path_binds(code: str, names: str) -> None:
    assert before(code) == set(names.split())


@pytest.mark.parametrize(
    "code",
    [
        "raise E\nhere",
        "def f(): pass\nif x:\n    raise E\nelse:\n    raise E\nhere",
        "if False:\n    here",
        "if 0 and x:\n    here",
        "if True or x:\n    pass\nelse:\n    here",
        "while True:\n    pass\nhere",
        "while False:\n    here",
        "while x:\n    break\n    here",
        "while x:\n    continue\n    here",
        "try:\n    raise E\nfinally:\n    pass\nhere",
        "try:\n    raise E\nexcept E:\n    raise\nhere",
        "with a:\n    raise E\nhere",
        "match x:\n    case 1:\n        raise E\n    case _:\n        raise E\nhere",
    ],
)
def test_code_that_never_runs(code: str) -> None:
    assert before(code) is None


def test_a_star_import_may_bind_anything() -> None:
    assert before("from a import *\nhere") == {STAR}


@pytest.mark.parametrize("test", ["x", "not x", "1 and x", "0 or x"])
def test_a_condition_that_is_not_constant(test: str) -> None:
    assert truth(ast.parse(test, mode="eval").body) is None
