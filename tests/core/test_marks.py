"""Marks on statements of every form."""

from __future__ import annotations

import libcst as cst
import pytest
from vpatch.core.marks import carrier, mark, marked_by, marks_in, marks_on, with_mark
from vpatch.core.syntax import along


@pytest.mark.parametrize(
    ("code", "after"),
    [
        ("a\n", "a  # vpatch: demo\n"),
        ("a; b\n", "a; b  # vpatch: demo\n"),
        ("a    # why\n", "a    # why  # vpatch: demo\n"),
        ("f(\n  a)\n", "f(\n  a)  # vpatch: demo\n"),
        ("if a:\n    b\n", "if a:  # vpatch: demo\n    b\n"),
        ("if a: b\n", "if a: b  # vpatch: demo\n"),
        ("@x\ndef f(): # noqa\n    b\n", "@x\ndef f(): # noqa  # vpatch: demo\n    b\n"),
        ("match a:\n    case 1: b\n", "match a:  # vpatch: demo\n    case 1: b\n"),
        ("a  # vpatch: zzz\n", "a  # vpatch: demo  # vpatch: zzz\n"),
        ("a  # vpatch: aaa  # noqa\n", "a  # noqa  # vpatch: aaa  # vpatch: demo\n"),
    ],
)
def test_a_statement_is_marked_once(code: str, after: str) -> None:
    module = cst.parse_module(code)

    marked = with_mark(module.body[0], "demo")

    assert module.with_changes(body=[marked]).code == after
    assert "demo" in marks_on(marked)
    assert "demo" not in marks_on(module.body[0])
    assert module.with_changes(body=[with_mark(marked, "demo")]).code == after


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a  # vpatch: x-1\nb #vpatch:y  # vpatch: x-1\n", ["x-1", "y", "x-1"]),
        ("# vpatch: turboquant-hybrid", ["turboquant-hybrid"]),
        ("# vpatch: ", []),
        ("vpatch: x", []),
    ],
)
def test_marks_are_found_in_text(text: str, found: list[str]) -> None:
    assert marked_by(text) == found
    assert marks_in(text.encode() + b"\xff") == found


def test_a_mark_names_its_overlay() -> None:
    assert marked_by(mark("a-b")) == ["a-b"]


@pytest.mark.parametrize(
    ("code", "name", "carries"),
    [
        ("a = x\n", "x", "a = x"),
        ("if x: a\n", "x", "if x: a"),
        ("if b: x\n", "x", "x"),
        ("if b:\n    c\nelif x:\n    d\n", "x", "if x:"),
        ("if b:\n    c\nelse:\n    x\n", "x", "x"),
        ("while b:\n    c\nelse:\n    x\n", "x", "x"),
        ("try:\n    a\nexcept x:\n    b\n", "x", "except x:"),
        ("try:\n    a\nfinally:\n    x\n", "x", "x"),
        ("with x: a\n", "x", "with x: a"),
        ("def f(a=x):\n    b\n", "x", "def f"),
        ("@x\nclass A:\n    b\n", "x", "@x"),
        ("match x:\n    case 1:\n        b\n", "x", "match x:"),
        ("match a:\n    case x.y:\n        b\n", "x", "case x.y:"),
        ("match a:\n    case 1:\n        if b: x\n", "x", "x"),
    ],
)
def test_the_nearest_statement_carries_the_mark(code: str, name: str, carries: str) -> None:
    from vpatch.core.syntax import Spot, walk

    module = cst.parse_module(code)
    (path,) = [s.path for s in walk(Spot((), module)) if isinstance(s.node, cst.Name) and s.node.value == name]

    node = along(module, carrier(module, path))[-1]

    assert module.code_for_node(node).strip().startswith(carries)
    assert marks_on(with_mark(node, "demo")) == ["demo"]


def test_only_statements_have_marks() -> None:
    module = cst.parse_module("a\n")

    with pytest.raises(LookupError):
        carrier(module, ())
    with pytest.raises(LookupError, match="Name"):
        marks_on(cst.Name("a"))
