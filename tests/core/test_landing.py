"""Inserted code that would not work is refused; the message names what hides or replaces it."""

from __future__ import annotations

import pytest
from vpatch import (
    AddFunction,
    AddKeyword,
    AddParameter,
    EnsureImport,
    InsertAfter,
    InsertBefore,
    ReplaceExpr,
    ReplaceFunction,
    ReplaceStatements,
)
from vpatch.core.overlay import Edit
from vpatch.core.syntax import fingerprint
from vpatch.core.verdict import State
from vpatch.core.workspace import Workspace

from tests.snippets import FILE, applied, make, module, overlay, verdict

HELP = EnsureImport(FILE, "from helpers import help_it")
CALL = InsertAfter(FILE, "A.f", "anchor()", "help_it(size)")
CLASS = """
import os

class A(B):
    def f(self, size):
        anchor()
"""


def refusal(source: str, *edits: Edit) -> str:
    """Assert that the edits are refused, before and after they are made; return the reasons."""
    files = module(source)
    changeset = make(files, overlay(*edits))
    assert changeset.before[0].state is State.DRIFTED, changeset.before[0].because
    assert changeset.files == {}
    assert changeset.before[0].because.startswith(f"{FILE}: ")
    return "\n".join(problem.cause for problem in changeset.problems)


@pytest.mark.parametrize(
    ("new", "name"),
    [
        ("use(unknown)", "use"),
        ("print(unknown)", "unknown"),
        ("print(unknown.attribute[0])", "unknown"),
        ("size = unknown + size", "unknown"),
        ("later(size)\nlater = print", "later"),
        ("if size:\n    print(unknown)", "unknown"),
        ("for x in unknown: print(x)", "unknown"),
        ("with open(unknown) as x: print(x)", "unknown"),
        ("try:\n    print()\nexcept unknown:\n    raise", "unknown"),
        ("match size:\n    case unknown.x: print()", "unknown"),
        ("print([x for x in unknown])", "unknown"),
        ("print([unknown for x in size])", "unknown"),
        ("print(lambda x: unknown)", "unknown"),
        ("def g(x=unknown): return x\nprint(g)", "unknown"),
        ("def g(x: unknown): return x\nprint(g)", "unknown"),
        ("def g(x): return unknown\nprint(g)", "unknown"),
        ("class C(unknown): x = 1\nprint(C)", "unknown"),
        ("class C:\n    x = unknown\nprint(C)", "unknown"),
        ("class C:\n    x = 1\n    def m(self): return x\nprint(C)", "x"),
        ("unknown += 1\nprint(unknown)", "unknown"),
        ("unknown = print(unknown)\nprint(unknown)", "unknown"),
        ("for unknown in unknown: print(unknown)", "unknown"),
        ("del unknown", "unknown"),
    ],
)
def test_a_name_that_nothing_binds(new: str, name: str) -> None:
    assert f"reads `{name}`, which nothing binds there" in refusal(CLASS, InsertAfter(FILE, "A.f", "anchor()", new))


@pytest.mark.parametrize(
    "new",
    [
        "print(size, os, A, __file__, __class__)",
        "x: unknown = size\nprint(x)",
        "print([x + y for x in size for y in x if (z := y)], z)",
        "print(lambda x, *y, **z: (x, y, z))",
        "def g(x): return g(x - later)\nlater = size\nprint(g, later)",
        "class C:\n    x = size\n    y = x\nprint(C)",
        "try:\n    x = size\nexcept KeyError as e:\n    x = e\nprint(x)",
        "if size:\n    x = 1\nprint(x)",
        "size = size + 1\nprint(size)",
        "with open(size) as x, x as y: print(y)",
        "for _ in range(size): print()",
        "if (x := size) and x: print()",
        "global total\ntotal = size\nprint(total)",
    ],
)
def test_a_name_that_is_bound(new: str) -> None:
    assert applied(module(CLASS), overlay(InsertAfter(FILE, "A.f", "anchor()", new)))


@pytest.mark.parametrize(
    ("source", "bound"),
    [
        ("from x import *\ndef f():\n    anchor()\n", True),
        ("def g():\n    global name\n    name = 1\ndef f():\n    anchor()\n", True),
        ("def f():\n    anchor()\nname = 1\n", True),
        ("if TYPE_CHECKING:\n    import name\ndef f():\n    anchor()\n", False),
        ("if x:\n    import name\ndef f():\n    anchor()\n", True),
        ("try:\n    import name\nexcept ImportError:\n    name = None\ndef f():\n    anchor()\n", True),
        ("import name\ndel name\ndef f():\n    anchor()\n", False),
        ("def f():\n    anchor()\n    name = 1\n", False),
        ("def f(*, name):\n    anchor()\n", True),
        ("def f():\n    if (name := 1): pass\n    anchor()\n", True),
        ("import name\ndef f():\n    anchor()\n    name = 1\n", False),
    ],
)
def test_the_origin_of_a_name(source: str, bound: bool) -> None:  # noqa: FBT001
    edit = InsertAfter(FILE, "f", "anchor()", "print(name)")

    if bound:
        assert applied(module(source), overlay(edit))
    else:
        assert "reads `name`" in refusal(source, edit)


@pytest.mark.parametrize("declared", ["", "nonlocal name\n        "])
def test_a_name_that_an_enclosing_function_binds_later(declared: str) -> None:
    after = "\n        name = 2" if declared else ""
    source = f"def f():\n    def g():\n        {declared}anchor(){after}\n    name = 1\n"

    assert applied(module(source), overlay(InsertAfter(FILE, "f.g", "anchor()", "print(name)")))


def test_code_that_runs_during_import_sees_what_was_bound_before() -> None:
    source = "class A:\n    x = 1\nname = 1\n"
    edit = InsertAfter(FILE, "A", "x = 1", "y = name")

    assert "`y = name` reads `name`" in refusal(source, edit)
    assert applied(module("name = 1\n" + source), overlay(edit))


def test_annotations_are_evaluated_unless_the_module_defers_them() -> None:
    edit = AddFunction(FILE, "", "def g(x: Unknown) -> Unknown: return x")

    assert "reads `Unknown`" in refusal("import os\n", edit)
    assert applied(module("from __future__ import annotations\nimport os\n"), overlay(edit))
    assert "reads `Unknown`" in refusal("def f(a): ...\n", AddParameter(FILE, "f", "n: Unknown", after="a"))


@pytest.mark.parametrize(
    "edit",
    [
        ReplaceExpr(FILE, "f", "1", "unknown"),
        AddKeyword(FILE, "f", "anchor(...)", "key=unknown"),
        AddParameter(FILE, "f", "n=unknown", after="a"),
        ReplaceStatements(FILE, "f", "anchor(1)", "print(unknown)"),
        InsertBefore(FILE, "f", "anchor(1)", "print(unknown)"),
    ],
    ids=lambda edit: type(edit).__name__,
)
def test_every_edit_is_checked(edit: Edit) -> None:
    assert "`unknown`" in refusal("def f(a):\n    anchor(1)\n", edit)


def test_a_replaced_function_is_checked_as_a_whole() -> None:
    source = "def f(a):\n    return a\n"
    form = fingerprint(Workspace(module(source).get).source(FILE).module.body[0])

    assert "reads `b`" in refusal(source, ReplaceFunction(FILE, "f", (form,), "def f(a): return b"))
    assert applied(module(source), overlay(ReplaceFunction(FILE, "f", (form,), "@print\ndef f(a): return a + 1")))


def test_only_the_replaced_expression_of_a_statement_is_checked() -> None:
    edit = ReplaceExpr(FILE, "f", "b", "[a, *(x for x in a)]")

    assert applied(module("def f(a, b):\n    return unknown(b)\n"), overlay(edit))
    assert applied(
        module("def f(a):\n    return [g(b) for b in c]\n"), overlay(ReplaceExpr(FILE, "f", "g(b)", "max(b)"))
    )


def test_a_variable_that_nothing_reads() -> None:
    edit = InsertAfter(FILE, "f", "page = 1", "page = 2")
    source = "def f():\n    page = 1\n    return page\n"

    assert applied(module(source), overlay(edit))
    anchored = InsertAfter(FILE, "f", "anchor()", "page = 2")
    assert "`page = 2` sets `page`, which nothing in `f` reads" in refusal("def f():\n    anchor()\n", anchored)


USES = """
class Base(Other):
    base: int
class A(Base[x]):
    known = 1
    def __init__(self):
        self.mine = 1
    def f(self):
        anchor()
"""


@pytest.mark.parametrize(
    ("name", "there"), [("mine", True), ("known", True), ("f", True), ("base", True), ("gone", False)]
)
def test_attributes_that_the_code_relies_on(name: str, there: bool) -> None:  # noqa: FBT001
    edit = InsertAfter(FILE, "A.f", "anchor()", f"print(self.{name})", uses=(f"self.{name}",))

    if there:
        assert applied(module(USES), overlay(edit))
    else:
        assert f"relies on `self.{name}`, which A does not set" in refusal(USES, edit)


def test_names_are_checked_with_all_overlays_applied() -> None:
    one = overlay(AddFunction(FILE, "", "def made(): return 1"), name="one")
    two = overlay(InsertAfter(FILE, "A.f", "anchor()", "made()"), name="two")

    assert applied(module(CLASS), one, two)
    changeset = make(module(CLASS), two)
    assert changeset.before[0].state is State.DRIFTED


def test_applied_code_is_checked_too() -> None:
    item = overlay(HELP, CALL)
    tree = applied(module(CLASS), item)

    for old, new in ((b"size)", b"length)"), (b"class A", b"A = 1\nclass A")):
        mutated = {FILE: tree[FILE].replace(old, new, 1)}
        assert verdict(mutated, item).state is State.DRIFTED


def test_a_variable_of_upstream_may_be_unread() -> None:
    edit = ReplaceExpr(FILE, "f", "1", "2")

    assert applied(module("def f():\n    page = 1\n"), overlay(edit))
