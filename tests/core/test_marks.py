"""Marks in text, and on statements of every form."""

from __future__ import annotations

import ast

import pytest
from vpatch.core.changes import Amendment
from vpatch.core.marks import mark, marked_by, marks_in, with_marks, without_marks
from vpatch.core.rewrite import rewritten
from vpatch.core.workspace import Workspace

from tests.snippets import FILE


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
    for given in (code, after):
        source = Workspace({FILE: given.encode()}.get).source(FILE)
        assert rewritten(source, [Amendment((("body", 0),), "demo")]).decode() == after
    assert "demo" in Workspace({FILE: after.encode()}.get).source(FILE).marks_on(ast.parse(after).body[0])


def test_marks_stand_behind_a_comment_and_are_sorted() -> None:
    assert with_marks("# why  # vpatch: b", ["c", "a", "b"]) == "# why  # vpatch: a  # vpatch: b  # vpatch: c"


def test_without_marks() -> None:
    code = b"a  # why  # vpatch: b\nb  # vpatch: b  # vpatch: b-2\r\n# vpatch: c\n\xff"

    assert without_marks(code) == b"a  # why\nb\r\n\n\xff"


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
