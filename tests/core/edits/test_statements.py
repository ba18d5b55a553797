"""ReplaceStatements, InsertAfter, InsertBefore and DeleteStatements: results and drift."""

from __future__ import annotations

import pytest
from vpatch import Contains, DeleteStatements, InsertAfter, InsertBefore, Not, ReplaceStatements
from vpatch.core.overlay import Edit
from vpatch.core.verdict import State
from vpatch.core.workspace import Workspace

from tests.snippets import FILE, M, applied, becomes, drifts, module, overlay, unmarked, verdict

REPLACED = {
    "one": ("a()\nb()\n", "a()", "c()", f"c(){M}\nb()\n"),
    "several": ("a()\nb()\nd()\n", "a()\nb()", "c()", f"c(){M}\nd()\n"),
    "by several": ("a()\n", "a()", "b()\nc()", f"b(){M}\nc(){M}\n"),
    "compound": ("if a:\n    b\n", "if a:\n    b", "if a:\n    c", f"if a:{M}\n    c\n"),
    "one-line suite": ("if a: b\n", "if a:\n    b", "if a: c", f"if a: c{M}\n"),
    "comments above stay": ("# why\na()  # gone\n", "a()", "c()", f"# why\nc(){M}\n"),
    "new contains old": ("a()\n", "a()", "a()\nb()", f"a(){M}\nb(){M}\n"),
    "old contains new": ("a()\nb()\n", "a()\nb()", "a()", f"a(){M}\n"),
    "no newline at the end": ("x\na()", "a()", "c()", f"x\nc(){M}"),
    "match": ("a()\n", "a()", "match a:\n    case 1:\n        b()", f"match a:{M}\n    case 1:\n        b()\n"),
}


@pytest.mark.parametrize(("before", "old", "new", "after"), REPLACED.values(), ids=REPLACED)
def test_statements_are_replaced(before: str, old: str, new: str, after: str) -> None:
    becomes(before, ReplaceStatements(FILE, "", old=old, new=new), after)


SIX = "a()\nb()\nc()\nd()\ne()\nf()\n"


@pytest.mark.parametrize(
    "edit",
    [
        ReplaceStatements(FILE, "", old=SIX, new="z()"),
        DeleteStatements(FILE, "", old=SIX),
        InsertAfter(FILE, "", anchor=SIX, new="z()"),
    ],
    ids=["replace", "delete", "insert"],
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
    edit = ReplaceStatements(FILE, "f", old=old, new="new()", within=within)
    lines = WITHIN.lstrip("\n").splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(old, f"new(){M}")
    becomes(WITHIN, edit, "".join(lines))


@pytest.mark.parametrize(
    ("within", "message"),
    [
        (("if aa",), "no block `if aa:` directly in it; nearest, line 2: `if a: ...`"),
        (("if a", "elif c"), "no block `elif c:` directly in it"),
        (("try", "except C"), "no block `except C:` directly in it"),
        (("with c(1)", "else"), "no block `else:` directly in it"),
        (("if a",), "`w()` is not there; nearest"),
    ],
)
def test_a_missing_header_drifts(within: tuple[str, ...], message: str) -> None:
    drifts(WITHIN, ReplaceStatements(FILE, "f", old="w()", new="v()", within=within), message)


INSERTED: dict[str, tuple[str, Edit, str]] = {
    "after": ("a()\nb()\n", InsertAfter(FILE, "", "a()", "c()"), f"a()\nc(){M}\nb()\n"),
    "before": ("x\n# why\na()\n", InsertBefore(FILE, "", "a()", "c()"), f"x\nc(){M}\n# why\na()\n"),
    "several": ("a()\nb()\n", InsertBefore(FILE, "", "b()", "c()\nd()"), f"a()\nc(){M}\nd(){M}\nb()\n"),
    "a free anchor": (
        "x, y = f(1, k=2)\n",
        InsertAfter(FILE, "", "x, y = f(...)", "c()"),
        f"x, y = f(1, k=2)\nc(){M}\n",
    ),
    "twice": ("a()\nb()\na()\n", InsertAfter(FILE, "", "a()", "c()", count=2), f"a()\nc(){M}\nb()\na()\nc(){M}\n"),
    "before, twice": (
        "a()\nb()\na()\n",
        InsertBefore(FILE, "", "a()", "c()", count=2),
        f"c(){M}\na()\nb()\nc(){M}\na()\n",
    ),
    "after a run": ("a()\nb()\nd()\n", InsertAfter(FILE, "", "a()\nb()", "c()"), f"a()\nb()\nc(){M}\nd()\n"),
    "new contains the anchor, after": ("a()\n", InsertAfter(FILE, "", "a()", "b()\na()"), f"a()\nb(){M}\na(){M}\n"),
    "new contains the anchor, before": ("a()\n", InsertBefore(FILE, "", "a()", "a()\nb()"), f"a(){M}\nb(){M}\na()\n"),
    "in a class in a class": (
        "class A:\n    class B:\n        async def f(self):\n            a()\n",
        InsertAfter(FILE, "A.B.f", "a()", "c()"),
        f"class A:\n    class B:\n        async def f(self):\n            a()\n            c(){M}\n",
    ),
}


@pytest.mark.parametrize(("before", "edit", "after"), INSERTED.values(), ids=INSERTED)
def test_statements_are_inserted(before: str, edit: Edit, after: str) -> None:
    becomes(before, edit, after)


@pytest.mark.parametrize(
    ("source", "edit", "message"),
    [
        ("b(1)\n", InsertAfter(FILE, "", "b(2)", "c()"), "`b(2)` is not there; nearest, line 1: `b(1)`"),
        ("a()\na()\n", InsertAfter(FILE, "", "a()", "c()"), "`a()` is there 2 times, 1 expected"),
        ("a()\n", InsertBefore(FILE, "", "a()", "c()", count=2), "`a()` is there 1 times, 2 expected"),
        (
            "a()\nc()\na()\n",
            InsertAfter(FILE, "", "a()", "c()", count=2),
            "`a()` is there 2 times, 2 expected, the new code beside it 1 times",
        ),
        ("a()\nb()\n", ReplaceStatements(FILE, "", "a()\nc()", "d()"), "`a()` is not there"),
        ("if x: a()\n", InsertAfter(FILE, "", "a()", "c()", within=("if x",)), "`a()` is not there"),
        ("def g():\n    a()\n", InsertAfter(FILE, "f", "a()", "c()"), "no 'f' here"),
        ("def frob():\n    a()\n", InsertAfter(FILE, "frob_", "a()", "c()"), "no 'frob_' here; nearest: 'frob'"),
    ],
)
def test_inserting_and_replacing_drift(source: str, edit: Edit, message: str) -> None:
    drifts(source, edit, message)


def test_runs_that_overlap_are_counted_once() -> None:
    item = overlay(ReplaceStatements(FILE, "", old="a()\na()", new="b()"))

    assert applied(module("a()\na()\na()\n"), item)[FILE] == b"b()  # vpatch: demo\na()\n"


def test_marked_code_does_not_complete_the_old_code_again() -> None:
    item = overlay(ReplaceStatements(FILE, "", old="a()\nb()", new="x()\na()"))

    assert applied(module("a()\nb()\nb()\n"), item)[FILE] == b"x()  # vpatch: demo\na()  # vpatch: demo\nb()\n"


def test_a_changed_insertion_drifts() -> None:
    item = overlay(InsertAfter(FILE, "", "a()", "c()"))

    assert verdict(module(f"a()\nc(1){M}\n"), item).state is State.DRIFTED


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


def test_as_many_statements_as_declared_are_deleted() -> None:
    item = overlay(DeleteStatements(FILE, "", "a()", count=3))

    assert applied(module("a()\na()\nb()\na()\n"), item)[FILE] == (
        b"# vpatch: demo\n# vpatch: demo\nb()\npass  # vpatch: demo\n"
    )


def test_two_deletions_in_one_block() -> None:
    item = overlay(DeleteStatements(FILE, "", "a()"), DeleteStatements(FILE, "", "b()"))

    assert applied(module("a()\nx\nb()\ny\n"), item)[FILE] == b"# vpatch: demo\nx\n# vpatch: demo\ny\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a(1)\n", "`a(0)` is not there; nearest, line 1: `a(1)`"),
        ("a(0)\na(0)\n", "`a(0)` is there 2 times, 1 expected"),
        ("b\n", "`a(0)` is not there"),
    ],
)
def test_deleting_drifts(source: str, message: str) -> None:
    drifts(source, DeleteStatements(FILE, "", "a(0)"), message)


def test_only_a_predicate_recognizes_a_deletion_by_upstream() -> None:
    files = module("# vpatch: demo\nb()\n")
    edit = DeleteStatements(FILE, "", "a()")

    assert verdict(unmarked(files), overlay(edit)).state is State.DRIFTED
    assert verdict(unmarked(files), overlay(edit, merged=Not(Contains(FILE, "", "a()")))).state is State.MERGED
    assert verdict(files, overlay(edit)).state is State.APPLIED
