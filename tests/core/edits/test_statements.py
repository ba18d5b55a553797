"""ReplaceStatements, InsertAfter, InsertBefore and DeleteStatements: results and drift."""

from __future__ import annotations

import pytest
from vpatch import Contains, Not
from vpatch.core.overlay import Edit
from vpatch.core.verdict import State
from vpatch.core.workspace import Workspace

from tests.snippets import (
    FILE,
    DeleteStatements,
    InsertAfter,
    InsertBefore,
    M,
    ReplaceStatements,
    applied,
    becomes,
    changes,
    drifts,
    module,
    overlay,
    unmarked,
    verdict,
)

REPLACED = {
    "one": ("-a()|+c()|b()", "a()", "c()"),
    "several": ("-a()|-b()|+c()|d()", "a()\nb()", "c()"),
    "by several": ("-a()|+b()|+c()", "a()", "b()\nc()"),
    "compound": ("-if a:|-    b|+if a:|>    c", "if a:\n    b", "if a:\n    c"),
    "one-line suite": ("-if a: b|+if a: c", "if a:\n    b", "if a: c"),
    "comments above stay": ("# why|-a = 1  # gone|+c()", "a = 1", "c()"),
    "comments of an expression stay": ("# why|-a()  # how|+c()  # how", "a()", "c()"),
    "new contains old": ("-a()|+a()|+b()", "a()", "a()\nb()"),
    "match": ("-a()|+match a:|>    case 1:|>        b()", "a()", "match a:\n    case 1:\n        b()"),
}


@pytest.mark.parametrize(("change", "old", "new"), REPLACED.values(), ids=REPLACED)
def test_statements_are_replaced(change: str, old: str, new: str) -> None:
    changes(change, ReplaceStatements(FILE, "", old, new))


SIX = "a()\nb()\nc()\nd()\ne()\nf()\n"


@pytest.mark.parametrize(
    "edit",
    [
        ReplaceStatements(FILE, "", SIX, "z()"),
        DeleteStatements(FILE, "", old=SIX),
    ],
    ids=["replace", "delete"],
)
def test_regions_are_in_the_order_of_the_code(edit: Edit) -> None:
    """The order of a set of paths, and of the problems found there, differs between two runs of Python."""
    assert edit.state(Workspace({FILE: SIX.encode()}.get), "fix").regions == tuple((("body", n),) for n in range(6))


WITHIN = """
def f():
    if a:
        x()
    elif b:
        x()
    else:
        x()
    try:
        y()
    except (A, B) as e:
        y()
    else:
        y()
    finally:
        y()
    with c(1):
        z()
    for i in j:
        z()
    while k:
        z()
"""


@pytest.mark.parametrize(
    ("within", "old", "line"),
    [
        (("if a",), "x()", 3),
        (("if a", "elif b"), "x()", 5),
        (("if a", "else"), "x()", 7),
        (("try",), "y()", 9),
        (("try", "except (A, B) as e"), "y()", 11),
        (("try", "else"), "y()", 13),
        (("try", "finally"), "y()", 15),
        (("with c(...)",), "z()", 17),
        (("for i in j",), "z()", 19),
        (("while k",), "z()", 21),
    ],
)
def test_headers_lead_to_a_block(within: tuple[str, ...], old: str, line: int) -> None:
    edit = ReplaceStatements(FILE, "f", old, "new()", within=within)
    lines = WITHIN.lstrip("\n").splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(old, f"new(){M}")
    becomes(WITHIN, edit, "".join(lines))


INSERTED = {
    "after": ("a()|+c()|b()", InsertAfter(FILE, "", "a()", "c()")),
    "before": ("x|+c()|# why|a()", InsertBefore(FILE, "", "a()", "c()")),
    "several": ("a()|+c()|+d()|b()", InsertBefore(FILE, "", "b()", "c()\nd()")),
    "a free anchor": ("x, y = f(1, k=2)|+c()", InsertAfter(FILE, "", "x, y = f(...)", "c()")),
    "twice": ("a()|+c()|b()|a()|+c()", InsertAfter(FILE, "", "a()", "c()", count=2)),
    "before, twice": ("+c()|a()|b()|+c()|a()", InsertBefore(FILE, "", "a()", "c()", count=2)),
    "after a run": ("a()|b()|+c()|d()", InsertAfter(FILE, "", "a()\nb()", "c()")),
    "new contains the anchor, after": ("a()|+b()|+a()", InsertAfter(FILE, "", "a()", "b()\na()")),
    "new contains the anchor, before": ("+a()|+b()|a()", InsertBefore(FILE, "", "a()", "a()\nb()")),
    "in a class in a class": (
        "class A:|    class B:|        async def f(self):|            a()|+            c()",
        InsertAfter(FILE, "A.B.f", "a()", "c()"),
    ),
}


@pytest.mark.parametrize(("change", "edit"), INSERTED.values(), ids=INSERTED)
def test_statements_are_inserted(change: str, edit: Edit) -> None:
    changes(change, edit)


DELETED = {
    "first": ("a()\nb()\n", "a()", "# vpatch: demo\nb()\n"),
    "comments stay": (
        "x\n# about a\na()  # gone\n# about b\nb()\n",
        "a()",
        "x\n# about a\n# vpatch: demo\n# about b\nb()\n",
    ),
    "several": ("a()\nb()\nc()\n", "a()\nb()", "# vpatch: demo\nc()\n"),
    "compound": ("if a:\n    raise B('b' 'c')\nx\n", 'if a:\n    raise B("bc")', "# vpatch: demo\nx\n"),
    "last": ("def f():\n    x\n    a()\n", "a()", f"def f():\n    x\n    pass{M}\n"),
    "only": ("def f():\n    a()\n", "a()", f"def f():\n    pass{M}\n"),
    "before a definition": ("a()\n@b\ndef f(): ...\n", "a()", "# vpatch: demo\n@b\ndef f(): ...\n"),
}


@pytest.mark.parametrize(("before", "old", "after"), DELETED.values(), ids=DELETED)
def test_statements_are_deleted(before: str, old: str, after: str) -> None:
    scope = "f" if before.startswith("def") else ""

    assert applied(module(before), overlay(DeleteStatements(FILE, scope, old)))[FILE].decode() == after


@pytest.mark.parametrize(
    ("before", "edits", "after"),
    [
        ("x\na()", [ReplaceStatements(FILE, "", "a()", "c()")], "x\nc()  # M"),  # no newline at the end
        ("a()\na()\nb()\na()\n", [DeleteStatements(FILE, "", "a()", count=3)], "# M\n# M\nb()\npass  # M\n"),
        (
            "a()\nx\nb()\ny\n",
            [DeleteStatements(FILE, "", "a()"), DeleteStatements(FILE, "", "b()")],
            "# M\nx\n# M\ny\n",
        ),
        # Runs that overlap count once; marked code does not complete the old code again.
        ("a()\na()\na()\n", [ReplaceStatements(FILE, "", "a()\na()", "b()")], "b()  # M\na()\n"),
        ("a()\nb()\nb()\n", [ReplaceStatements(FILE, "", "a()\nb()", "x()\na()")], "x()  # M\na()  # M\nb()\n"),
    ],
)
def test_code_that_repeats(before: str, edits: list[Edit], after: str) -> None:
    assert applied(module(before), overlay(*edits))[FILE].decode() == after.replace("# M", "# vpatch: demo")


def within(*headers: str) -> Edit:
    return ReplaceStatements(FILE, "f", "w()", "v()", within=headers)


def insert(anchor: str = "a()", scope: str = "", *, count: int = 1) -> Edit:
    return InsertAfter(FILE, scope, anchor, "c()", count=count)


DELETE = DeleteStatements(FILE, "", "a(0)")


@pytest.mark.parametrize(
    ("source", "edit", "message"),
    [
        (WITHIN, within("if aa"), "no block `if aa:` directly in it; nearest, line 2: `if a: ...`"),
        (WITHIN, within("if a", "elif c"), "no block `elif c:` directly in it"),
        (WITHIN, within("try", "except C"), "no block `except C:` directly in it"),
        (WITHIN, within("with c(1)", "else"), "no block `else:` directly in it"),
        (WITHIN, within("if a"), "`w()` is not there; nearest"),
        ("b(1)\n", insert("b(2)"), "`b(2)` is not there; nearest, line 1: `b(1)`"),
        ("a()\na()\n", insert(), "`a()` is there 2 times, 1 expected"),
        ("a()\n", insert(count=2), "`a()` is there 1 times, 2 expected"),
        ("a()\nc()\na()\n", insert(count=2), "is there 1 times, 2 expected (line 3), what replaces it 1 times"),
        (f"a()\nc(1){M}\n", insert(), "in line 2 is not what this version makes"),
        ("a()\nb()\n", ReplaceStatements(FILE, "", "a()\nc()", "d()"), "`c()` is not there; line 2 has `b()`"),
        ("if x: a()\n", InsertAfter(FILE, "", "a()", "c()", within=("if x",)), "`a()` is not there"),
        ("def g():\n    a()\n", insert(scope="f"), "no 'f' here"),
        ("def frob():\n    a()\n", insert(scope="frob_"), "no 'frob_' here; nearest: 'frob'"),
        ("a(1)\n", DELETE, "`a(0)` is not there; nearest, line 1: `a(1)`"),
        ("a(0)\na(0)\n", DELETE, "`a(0)` is there 2 times, 1 expected"),
        ("b\n", DELETE, "`a(0)` is not there"),
    ],
)
def test_it_drifts(source: str, edit: Edit, message: str) -> None:
    drifts(source, edit, message)


def test_only_a_predicate_recognizes_a_deletion_by_upstream() -> None:
    files = module("# vpatch: demo\nb()\n")
    edit = DeleteStatements(FILE, "", "a()")

    assert verdict(unmarked(files), overlay(edit)).state is State.DRIFTED
    assert verdict(unmarked(files), overlay(edit, merged=Not(Contains(FILE, "", "a()")))).state is State.MERGED
    assert verdict(files, overlay(edit)).state is State.APPLIED
