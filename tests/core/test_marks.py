"""Marks on statements of every form."""

from __future__ import annotations

import libcst as cst
import pytest
from vpatch.core.marks import carrier, mark, marked_by, marks_in, marks_on, with_mark


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
    assert marked_by(mark("a-b")) == ["a-b"]


def test_only_statements_have_marks() -> None:
    module = cst.parse_module("a\n")

    with pytest.raises(LookupError):
        carrier(module, ())
    with pytest.raises(LookupError, match="Name"):
        marks_on(cst.Name("a"))
