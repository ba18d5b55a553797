"""A parsed module: where statements begin and end, and which lines have marks."""

from __future__ import annotations

import ast

import pytest
from vpatch.core.parse import Lost, Source
from vpatch.core.syntax import Spot
from vpatch.core.workspace import Workspace

from tests.snippets import FILE


def source(code: str) -> Source:
    return Workspace({FILE: code.encode()}.get).source(FILE)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"def f(:\n    return 1\n", r"not valid Python: .* \(line 1\)"),
        (b"def f():\n    return '\x00'\n", "not valid Python: source code string cannot contain null bytes"),
        (b"def f():\n    return '\xff'\n", "not readable as text: "),
        (b"# coding: nonsense\nx = 1\n", "not readable as text: unknown encoding"),
        (b"def f():\r    return 1\r", "has a carriage return without a line feed"),
        (b"x\n\x0cy\n", "has whitespace, such as a form feed"),
        (b"\\\nx\n", "has whitespace"),
    ],
)
def test_what_is_no_module_that_an_edit_could_change(data: bytes, says: str) -> None:
    with pytest.raises(Lost, match=f"^{says}"):
        Workspace({FILE: data}.get).source(FILE)


BLOCKS = """\
@a
@b(
    1)
def f(
    x,  # why
):  # noqa
    # above
    y = 1

    # below

    if z: w
    # at the end
# of the module
"""


def test_where_things_stand() -> None:
    found = source(BLOCKS)
    function = found.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    spot = Spot((("body", 0),), function)

    assert found.line(spot.path) == 1
    assert found.head(function) == (1, 7)  # lines of the header, and of comments below it
    assert found.opening(spot) == 6
    assert found.extent(function) == 13
    assert found.extent(function.body[0]) == 8
    assert (found.indent, found.indent_of(function.body[0])) == ("    ", "    ")
    assert found.block(Spot((*spot.path, ("body", 1)), function.body[1])) == []
    assert [found.quoted(one) for one in (function, *function.body)] == ["def f(x): ...", "y = 1", "if z: ..."]


MARKED = """\
a = f(
    1)  # vpatch: one  # vpatch: two
if a:  # vpatch: two
    # vpatch: one
    b
    # vpatch: one
match a:  # vpatch: one
    case 1:  # vpatch: two
        c
if (a and  # vpatch: one
    b): c  # vpatch: two
"""


def test_marks() -> None:
    found = source(MARKED)
    a, b, c, d = found.tree.body
    assert isinstance(b, ast.If)
    assert isinstance(c, ast.Match)

    marks = [found.marks_on(node) for node in (a, b, b.body[0], c, c.cases[0], d)]
    assert marks == [["one", "two"], ["two"], [], ["one"], ["two"], ["one", "two"]]
    assert found.mark_of((("body", 0), ("value", -1)), "two") == {2}
    assert found.mark_of((("body", 2), ("cases", 0), ("pattern", -1)), "two") == {8}
    assert found.mark_of((("body", 0),), "three") == frozenset()
    assert dict(found.traces) == {4: ["one"], 6: ["one"]}
    with pytest.raises(LookupError):
        found.carrier(())


@pytest.mark.parametrize(
    ("code", "fills"),
    [
        ("a\n", [True]),
        ("a;  # why\n", [True]),
        ("a; b\n", [False, False]),
        ("a; 'b#c'\n", [False, False]),
        ("é = 'ü'; b\n", [False, False]),
        ("if a:\n    b\n", [True]),
    ],
)
def test_statements_that_share_a_line(code: str, fills: list[bool]) -> None:
    found = source(code)
    assert [found.fills_lines(node, node) for node in found.tree.body] == fills
    assert found.fills_lines(found.tree.body[0], found.tree.body[-1])


def test_an_elif_is_no_else() -> None:
    (one,) = source("if a:\n    b\nelif c:\n    d\n").tree.body
    (other,) = source("if a:\n    b\nelse:\n    if c:\n        d\n").tree.body
    assert isinstance(one, ast.If)
    assert isinstance(other, ast.If)

    assert source("if a:\n    b\nelif c:\n    d\n").is_elif(one.orelse[0])
    assert not source("if a:\n    b\nelse:\n    if c:\n        d\n").is_elif(other.orelse[0])


def test_code_is_quoted_on_one_short_line() -> None:
    found = source("f(\n    a,\n    b)\n" + "x" * 90 + "\nü = é('ö')\n")

    assert [found.quoted(node) for node in found.tree.body] == ["f( a, b)", "x" * 77 + "...", "ü = é('ö')"]
