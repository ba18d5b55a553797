"""No decision of the code rests on the text of a message: texts are for people, `Problem.code` and types for code."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.paths import ROOT

TEXTS = {"what", "cause", "because", "hint", "reason"}
"""Attributes that hold a message's text, of problems, verdicts, tests and findings."""

ASKING = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "index", "find"),
    *("count", "match", "search", "fullmatch", "get", "isin"),
}
"""Methods and functions that answer by what a text is, when it is their object or an argument."""

RECORDED = {"builder/vpatch/matrix/baseline.py"}
"""A baseline has problems of vpatches that wrote no codes: it compares their kinds by their texts."""

SOURCES = sorted((ROOT / "builder").rglob("*.py"))


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in TEXTS


def decisions(source: str) -> Iterator[int]:
    """Yield the lines where a message's text is compared, searched or looked up."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, comparators=others):
                found = any(map(is_text, [left, *others]))
            case ast.Match(subject=subject):
                found = is_text(subject)
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments) if name in ASKING:
                found = any(map(is_text, [value, *arguments]))
            case ast.Subscript(value=value, slice=key) if not is_text(value):
                found = is_text(key)
            case _:
                continue
        if found:
            yield node.lineno


def test_no_decision_rests_on_a_message() -> None:
    asking = '"denied" in p.cause', "_NAMES.get(p.what)", "_WORDS[p.what]", "match p.what:\n    case 'x': pass"
    assert [list(decisions(code)) for code in (*asking, "Problem(p.what, p.where, p.cause)")] == [*[[1]] * 4, []]
    found = {
        f"{name}:{line}"
        for path in SOURCES
        if (name := path.relative_to(ROOT).as_posix()) not in RECORDED
        for line in decisions(path.read_text())
    }

    assert found == set()
