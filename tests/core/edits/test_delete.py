"""DeleteStatements: states, results, and what makes it drift."""

from __future__ import annotations

import pytest
from vpatch import Contains, DeleteStatements, Not
from vpatch.core.verdict import State

from tests.snippets import FILE, applied, drifts, module, overlay, unmarked, verdict

CASES = {
    "first": ("a()\nb()\n", "a()", "# vpatch: demo\nb()\n"),
    "comments stay": (
        "x\n# about a\na()  # gone\n# about b\nb()\n",
        "a()",
        "x\n# about a\n# vpatch: demo\n# about b\nb()\n",
    ),
    "several": ("a()\nb()\nc()\n", "a()\nb()", "# vpatch: demo\nc()\n"),
    "compound": ("if a:\n    raise B('b' 'c')\nx\n", 'if a:\n    raise B("bc")', "# vpatch: demo\nx\n"),
    "last": ("def f():\n    x\n    a()\n", "a()", "def f():\n    x\n    pass  # vpatch: demo\n"),
    "only": ("def f():\n    a()\n", "a()", "def f():\n    pass  # vpatch: demo\n"),
    "before a definition": ("a()\n@b\ndef f(): ...\n", "a()", "# vpatch: demo\n@b\ndef f(): ...\n"),
}


@pytest.mark.parametrize(("before", "old", "after"), CASES.values(), ids=CASES)
def test_statements_are_deleted(before: str, old: str, after: str) -> None:
    scope = "f" if before.startswith("def") else ""

    assert applied(module(before), overlay(DeleteStatements(FILE, scope, old)))[FILE].decode() == after


def test_all_of_the_declared_number_go() -> None:
    item = overlay(DeleteStatements(FILE, "", "a()", count=3))

    assert applied(module("a()\na()\nb()\na()\n"), item)[FILE] == (
        b"# vpatch: demo\n# vpatch: demo\nb()\npass  # vpatch: demo\n"
    )


def test_two_deletions_in_one_block() -> None:
    item = overlay(DeleteStatements(FILE, "", "a()"), DeleteStatements(FILE, "", "b()"))

    assert applied(module("a()\nx\nb()\ny\n"), item)[FILE] == b"# vpatch: demo\nx\n# vpatch: demo\ny\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("a(1)\n", "`a(0)` is not there; nearest, line 1: `a(1)`"),
        ("a(0)\na(0)\n", "`a(0)` is there 2 times, 1 expected"),
        ("b\n", "`a(0)` is not there"),
    ],
)
def test_it_drifts(source: str, says: str) -> None:
    drifts(source, DeleteStatements(FILE, "", "a(0)"), says)


def test_only_a_predicate_can_tell_a_deletion_of_upstreams_from_a_change() -> None:
    files = module("# vpatch: demo\nb()\n")
    edit = DeleteStatements(FILE, "", "a()")

    assert verdict(unmarked(files), overlay(edit)).state is State.DRIFTED
    assert verdict(unmarked(files), overlay(edit, merged=Not(Contains(FILE, "", "a()")))).state is State.MERGED
    assert verdict(files, overlay(edit)).state is State.APPLIED
