"""Inserted code that would not work is refused; the message names what hides or replaces it."""

from __future__ import annotations

import pytest
from vpatch import AddFunction, EnsureImport
from vpatch.core.overlay import Edit
from vpatch.core.verdict import State

from tests.snippets import (
    FILE,
    AddKeyword,
    InsertAfter,
    InsertBefore,
    ReplaceExpr,
    ReplaceStatements,
    applied,
    header,
    make,
    module,
    overlay,
    verdict,
)

HELP = EnsureImport(FILE, "from helpers import help_it")
CALL = InsertAfter(FILE, "A.f", "anchor()", "help_it(size)")
CLASS = """
import os

class A(B):
    def f(self, size):
        anchor()
"""


ANCHORED = "def f(a):\n    anchor(1)\n"


def refusal(source: str, *edits: Edit) -> str:
    """Assert that the edits are refused, before and after they are made; return the reasons."""
    files = module(source)
    changeset = make(files, overlay(*edits))
    assert changeset.before[0].state is State.DRIFTED, changeset.before[0].because
    assert changeset.files == {}
    assert changeset.before[0].because.startswith(f"{FILE}: ")
    return "\n".join(problem.cause for problem in changeset.problems)


def lands(message: str, source: str, *edits: Edit) -> None:
    """Assert that the edits are refused for this reason, or made if it is empty."""
    if message:
        assert message in refusal(source, *edits)
    else:
        assert applied(module(source), overlay(*edits))


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
    lands(f"reads `{name}`, which nothing binds there", CLASS, InsertAfter(FILE, "A.f", "anchor()", new))


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
    lands("", CLASS, InsertAfter(FILE, "A.f", "anchor()", new))


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
    lands("" if bound else "reads `name`", source, InsertAfter(FILE, "f", "anchor()", "print(name)"))


RUN_BY_IMPORT = "class A:\n    x = 1\nname = 1\n"
UNKNOWN = AddFunction(FILE, "", "def g(x: Unknown) -> Unknown: return x")
INNER = InsertAfter(FILE, "f.g", "anchor()", "print(name)")
IN_CLASS = InsertAfter(FILE, "A", "x = 1", "y = name")
FUNCTION = "def f(a):\n    return a\n"


@pytest.mark.parametrize(
    ("source", "edit", "message"),
    [
        # An enclosing function may bind a name later.
        ("def f():\n    def g():\n        anchor()\n    name = 1\n    g()\n", INNER, ""),
        (
            "def f():\n    def g():\n        nonlocal name\n        anchor()\n        name = 2\n    name = g\n",
            INNER,
            "",
        ),
        # Code that runs during import sees what was bound before.
        (RUN_BY_IMPORT, IN_CLASS, "`y = name` reads `name`"),
        (f"name = 1\n{RUN_BY_IMPORT}", IN_CLASS, ""),
        # Annotations are evaluated, unless the module defers them.
        ("import os\n", UNKNOWN, "reads `Unknown`"),
        ("from __future__ import annotations\nimport os\n", UNKNOWN, ""),
        ("def f(a): ...\n", header(FILE, "", "def f(a)", "def f(a, n: Unknown)"), "reads `Unknown`"),
        # A replaced function is checked as a whole; of a statement, the replaced expression.
        (FUNCTION, ReplaceStatements(FILE, "", FUNCTION, "def f(a): return b"), "reads `b`"),
        (FUNCTION, ReplaceStatements(FILE, "", FUNCTION, "@print\ndef f(a): return a + 1"), ""),
        ("def f(a, b):\n    return unknown(b)\n", ReplaceExpr(FILE, "f", "b", "[a, *(x for x in a)]"), ""),
        ("def f(a):\n    return [g(b) for b in c]\n", ReplaceExpr(FILE, "f", "g(b)", "max(b)"), ""),
        # A new variable is read by something; upstream's may not be.
        ("def f():\n    page = 1\n    return page\n", InsertAfter(FILE, "f", "page = 1", "page = 2"), ""),
        (
            ANCHORED,
            InsertAfter(FILE, "f", "anchor(1)", "page = 2"),
            "`page = 2` sets `page`, which nothing in `f` reads",
        ),
        ("def f():\n    page = 1\n", ReplaceExpr(FILE, "f", "1", "2"), ""),
        # Every kind of edit is checked.
        (ANCHORED, ReplaceExpr(FILE, "f", "1", "unknown"), "`unknown`"),
        (ANCHORED, AddKeyword(FILE, "f", "anchor(...)", "key=unknown"), "`unknown`"),
        (ANCHORED, header(FILE, "", "def f(a)", "def f(a, n=unknown)"), "`unknown`"),
        (ANCHORED, ReplaceStatements(FILE, "f", "anchor(1)", "print(unknown)"), "`unknown`"),
        (ANCHORED, InsertBefore(FILE, "f", "anchor(1)", "print(unknown)"), "`unknown`"),
    ],
)
def test_where_code_lands(source: str, edit: Edit, message: str) -> None:
    lands(message, source, edit)


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

    lands("" if there else f"relies on `self.{name}`, which A does not set", USES, edit)


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
