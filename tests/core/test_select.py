"""Find scopes, statements and expressions."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from unittest.mock import Mock

import libcst as cst
import pytest
from vpatch.core.parse import Lost, Source
from vpatch.core.select import (
    block,
    expression,
    expressions,
    headline,
    nearest,
    runs,
    scopes,
)
from vpatch.core.syntax import Spot

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
    return Source("m.py", cst.parse_module(code))


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


def test_missing_names_parse_a_module_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that upstream changed is asked for by many edits and predicates, in modules that parse in a second."""
    found, parse = source(CODE), Mock(wraps=ast.parse)
    monkeypatch.setattr("vpatch.core.select.ast.parse", parse)

    for scope in ("B.pp", "B.oo", "B.pp"):
        with pytest.raises(Lost, match="no ") as lost:
            scopes(found, scope)
        assert "nearest: 'B." in str(lost.value)
    assert parse.call_count == 1


def test_names_are_alike_in_both_syntax_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    def every_name() -> list[str]:
        found = source(CODE)
        with pytest.raises(Lost) as lost:
            scopes(found, "zzzz")
        str(lost.value)
        return sorted(found.names)

    known = every_name()
    monkeypatch.setattr("vpatch.core.select.ast.parse", Mock(side_effect=SyntaxError))  # as for a newer Python's code

    assert known == every_name()
    assert known == sorted(
        [
            *("f", "f.inner", "f.Local", "f.Local.m", "f", "A", "A", "A.m", "g"),
            *("B", "B.p", "B.p.setter", "B.p.deleter", "B.o", "B.looped"),
        ]
    )


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


def test_a_block_of_code_keeps_the_comments_above_it() -> None:
    first, second = block("\n# one\na\n# two\nb\n")

    assert [cst.Module([]).code_for_node(statement) for statement in (first, second)] == ["# one\na\n", "# two\nb\n"]


def test_runs_are_directly_in_a_block() -> None:
    root = Spot((), source("a\nb\nif x:\n    a\n    b\na; b\na\nb\n").module)

    assert [run[0].path for run in runs(root, block("a\nb"))] == [(("body", 0),), (("body", 4),)]
    assert runs(Spot((), source("if x: a\n").module.body[0]), block("a")) == []


def test_matches_inside_a_match_do_not_count() -> None:
    code = source("f(f(1))\ng(f(1))\n")
    root = Spot((), code.module)

    assert len(expressions(code, root, expression("f(...)"), exactly=False)) == 2
    assert len(expressions(code, root, expression("f(1)"))) == 2


def test_the_nearest_candidate() -> None:
    found = source('"""Doc\n\nstring."""\nx = 1\n\n\ndef f():\n    a = clamp(\n        budget,\n        1)\n')
    root = Spot((), found.module)

    assert nearest(found, [root], expression("clamp(budget, 2)"))() == "; nearest, line 8: `clamp( budget, 1)`"
    assert nearest(found, [root], block("def f(x): pass"))() == "; nearest, line 7: `def f(): ...`"
    assert nearest(found, [root], expression("{1: 2}"))() == ""


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_are_counted_in_every_kind_of_newline(newline: str) -> None:
    code = newline.join(["# one", "", "a", "if b:", "    c", "    # two", "    @d", "    def e(): ...", ""])
    found = source(code)

    assert found.line((("body", 1), ("body", -1), ("body", 0), ("body", 0))) == 5
    assert found.line((("body", 1), ("body", -1), ("body", 1))) == 7


def test_code_is_quoted_on_one_short_line() -> None:
    found = source("f(\n    a,\n    b)\n" + "x" * 90)

    assert found.text(found.module.body[0]) == "f( a, b)"
    assert found.text(found.module.body[1]) == "x" * 77 + "..."
    assert headline("\n  f(\n a)\n") == "f("
