"""Inserted code that would be applied and not do what it says is refused, naming what hides or replaces what."""

from __future__ import annotations

from textwrap import dedent

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
from vpatch.model import Catalogued, Edit, Overlay, Part, Shape, State
from vpatch.syntax import fingerprint
from vpatch.workspace import Workspace

from tests.snippets import FILE, applied, make, module, overlay, verdict

HELP = EnsureImport(FILE, "from helpers import help_it")
CALL = InsertAfter(FILE, "A.f", "anchor()", "help_it(size)")
CLASS = """
import os

class A(B):
    def f(self, size):
        anchor()
"""


def says(source: str, *edits: Edit) -> str:
    """Hold that the edits are refused with nothing to write, before and after they were made; return why."""
    files = module(source)
    changeset = make(files, overlay(*edits))
    assert changeset.before[0].state is State.DRIFTED, changeset.before[0].because
    assert changeset.files == {}
    assert changeset.before[0].because.startswith(f"{FILE}: ")
    return "\n".join(problem.cause for problem in changeset.problems)


def test_code_lands_where_its_names_are_bound() -> None:
    assert applied(module(CLASS), overlay(HELP, CALL))


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
    assert f"reads `{name}`, which nothing binds there" in says(CLASS, InsertAfter(FILE, "A.f", "anchor()", new))


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
def test_where_a_name_comes_from(source: str, bound: bool) -> None:  # noqa: FBT001
    edit = InsertAfter(FILE, "f", "anchor()", "print(name)")

    if bound:
        assert applied(module(source), overlay(edit))
    else:
        assert "reads `name`" in says(source, edit)


def test_a_name_that_an_enclosing_function_binds_later() -> None:
    source = "def f():\n    def g():\n        anchor()\n    name = 1\n"

    assert applied(module(source), overlay(InsertAfter(FILE, "f.g", "anchor()", "print(name)")))


def test_code_that_runs_during_import_sees_what_was_bound_before() -> None:
    source = "class A:\n    x = 1\nname = 1\n"
    edit = InsertAfter(FILE, "A", "x = 1", "y = name")

    assert "`y = name` reads `name`" in says(source, edit)
    assert applied(module("name = 1\n" + source), overlay(edit))


def test_annotations_are_evaluated_unless_the_module_defers_them() -> None:
    edit = AddFunction(FILE, "", "def g(x: Unknown) -> Unknown: return x")

    assert "reads `Unknown`" in says("import os\n", edit)
    assert applied(module("from __future__ import annotations\nimport os\n"), overlay(edit))
    assert "reads `Unknown`" in says("def f(a): ...\n", AddParameter(FILE, "f", "n: Unknown", after="a"))


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
def test_every_edit_is_judged(edit: Edit) -> None:
    assert "`unknown`" in says("def f(a):\n    anchor(1)\n", edit)


def test_a_replaced_function_is_judged_as_a_whole() -> None:
    source = "def f(a):\n    return a\n"
    form = fingerprint(Workspace(module(source).get).source(FILE).module.body[0])

    assert "reads `b`" in says(source, ReplaceFunction(FILE, "f", (form,), "def f(a): return b"))
    assert applied(module(source), overlay(ReplaceFunction(FILE, "f", (form,), "@print\ndef f(a): return a + 1")))


def test_of_a_statement_only_the_replaced_expression_is_judged() -> None:
    edit = ReplaceExpr(FILE, "f", "b", "[a, *(x for x in a)]")

    assert applied(module("def f(a, b):\n    return unknown(b)\n"), overlay(edit))
    assert applied(
        module("def f(a):\n    return [g(b) for b in c]\n"), overlay(ReplaceExpr(FILE, "f", "g(b)", "max(b)"))
    )


def test_a_variable_that_is_set_for_code_that_no_longer_reads_it() -> None:
    edit = InsertAfter(FILE, "f", "page = 1", "page = 2")
    source = "def f():\n    page = 1\n    return page\n"

    assert applied(module(source), overlay(edit))
    anchored = InsertAfter(FILE, "f", "anchor()", "page = 2")
    assert "`page = 2` sets `page`, which nothing in `f` reads" in says("def f():\n    anchor()\n", anchored)


IN_THE_WAY = {
    "a later definition": ("    def f(self): ...\n", "overrides `A.f` of line 4"),
    "a later definition, sometimes": ("    if os:\n        def f(self): ...\n", "overrides `A.f` of line 4"),
    "an assignment in the class": ("    f = other\n", "line 6, `f = other`, overrides `A.f` of line 4"),
    "a deletion in the class": ("    del f\n", "line 6, `del f`, overrides `A.f`"),
    "an assignment to the class": ("A.f = other\n", "line 6 overrides `A.f` of line 4"),
    "a deletion from the class": ("del A.f\n", "line 6 overrides `A.f` of line 4"),
    "setattr": ("setattr(A, 'f', other)\n", "line 6 overrides `A.f` of line 4"),
    "in a function": ("def g():\n    A.f = other\n", "line 7 overrides `A.f` of line 4"),
    "on the instance": ("    def g(me):\n        me.f = other\n", "line 7 overrides `A.f` of line 4"),
    "another class": ("class A: ...\n", "line 6, `class A:`, overrides `A` of line 3"),
    "an import in a try": ("try:\n    from x import A\nexcept E: ...\n", "line 7, `from x import A`, overrides `A`"),
    "a loop": ("for A in x: ...\n", "line 6, `for A in x:`, overrides `A` of line 3"),
    "a global": ("def g():\n    global A\n    A = 1\n", "a function that declares `global A` may override `A`"),
    "the import": ("help_it = other\n", "'help_it' is already bound by `help_it = other`"),
    "the import, in a try": ("try:\n    import help_it\nexcept E: ...\n", "overrides the import of `help_it`"),
    "the import, by a global": ("def g():\n    global help_it\n    help_it = 1\n", "`global help_it` may override the"),
}


@pytest.mark.parametrize(("behind", "told"), IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_what_replaces_the_patched_code(behind: str, told: str) -> None:
    source = dedent(CLASS).lstrip("\n") + behind

    assert told in says(source, HELP, CALL)


@pytest.mark.parametrize(
    "behind",
    [
        "    def g(self): ...\n",
        "    if TYPE_CHECKING:\n        def f(self): ...\n",
        "    @overload\n    def f(self): ...\n",
        "    def g(self):\n        other.f = 1\n        self.g = 1\n",
        "    @staticmethod\n    def g(a):\n        a.f = 1\n",
        "A.g = other\nsetattr(A, 'g', 1)\nsetattr(B, 'f', 1)\nB.f = 1\n",
        "def g(A):\n    A = 1\n    f = 2\n    help_it = 3\n",
        "if False:\n    A = 1\n",
        "from helpers import help_it\n",
    ],
)
def test_what_does_not_replace_it(behind: str) -> None:
    assert applied(module(dedent(CLASS).lstrip("\n") + behind), overlay(HELP, CALL))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("(self, size, help_it):\n        anchor()", "a parameter of `A.f` hides the import of `help_it`"),
        ("(self, size):\n        help_it = 1\n        anchor()", "`help_it = 1`, hides the import of `help_it`"),
        ("(self, size):\n        for help_it in x: ...\n        anchor()", "hides the import of `help_it`"),
        ("(self, size):\n        anchor()\n        help_it = 1", "reads `help_it`, which nothing binds there"),
        ("(self, size):\n        return\n        anchor()", "`help_it(size)` never runs"),
        ("(self, size):\n        raise x\n        anchor()", "`help_it(size)` never runs"),
        ("(self, size):\n        while True: ...\n        anchor()", "`help_it(size)` never runs"),
    ],
)
def test_what_hides_an_import_or_keeps_the_code_from_running(body: str, told: str) -> None:
    assert told in says(f"class A:\n    def f{body}\n", HELP, CALL)


@pytest.mark.parametrize("head", ["if False:", "if TYPE_CHECKING:", "if not True:"])
def test_a_definition_that_never_runs(head: str) -> None:
    source = f"{head}\n    class A:\n        def f(self, size):\n            anchor()\n"

    assert "`A` is defined only where it never runs" in says(source, HELP, CALL)


@pytest.mark.parametrize(
    ("decorator", "kept"),
    [
        *((kept, True) for kept in ("classmethod", "torch.inference_mode()", "functools.wraps(x)", "triton.jit")),
        *((other, False) for other in ("wrapped", "other.property", "torch.compiler.disable", "x[0]")),
    ],
)
def test_decorators(decorator: str, kept: bool) -> None:  # noqa: FBT001
    source = f"class A:\n    @{decorator}\n    def f(self, size):\n        anchor()\n"

    if kept:
        assert applied(module(source), overlay(HELP, CALL))
    else:
        assert f"line 3: `@{decorator}` may replace `A.f` by something else" in says(source, HELP, CALL)


def test_accessors_of_a_property_belong_together() -> None:
    source = """
    class A:
        @property
        def f(self): return 1
        @f.setter
        def f(self, size):
            anchor()
    """

    assert applied(module(source), overlay(HELP, InsertAfter(FILE, "A.f.setter", "anchor()", "help_it(size)")))


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
        assert f"relies on `self.{name}`, which A does not set" in says(USES, edit)


def test_names_are_judged_with_all_overlays_applied() -> None:
    one = overlay(AddFunction(FILE, "", "def made(): return 1"), name="one")
    two = overlay(InsertAfter(FILE, "A.f", "anchor()", "made()"), name="two")

    assert applied(module(CLASS), one, two)
    changeset = make(module(CLASS), two)
    assert changeset.before[0].state is State.DRIFTED


def test_code_that_is_applied_is_judged_too() -> None:
    item = overlay(HELP, CALL)
    (tree,) = [applied(module(CLASS), item)]

    for old, new in ((b"size)", b"length)"), (b"class A", b"A = 1\nclass A")):
        mutated = {FILE: tree[FILE].replace(old, new, 1)}
        assert verdict(mutated, item).state is State.DRIFTED


def test_lines_are_those_of_the_file_as_it_is() -> None:
    source = dedent(CLASS).lstrip("\n") + "A.f = other\n"
    (line,) = [n for n, text in enumerate(source.splitlines(), 1) if text == "A.f = other"]

    assert f"line {line} overrides `A.f` of line 4" in says(source, HELP, CALL)


def test_what_another_part_imports_is_not_to_be_hidden_either() -> None:
    parts = tuple(Part(name, (Shape("1.0", (edit,)),)) for name, edit in (("import", HELP), ("call", CALL)))
    item = Catalogued("demo", Overlay("Demo.", parts), "")
    source = "class A:\n    def f(self, size):\n        help_it = 1\n        anchor()\n"

    (found,) = make(module(source), item).before

    assert [part.state for part in found.parts] == [State.PENDING, State.DRIFTED]
    assert "hides the import of `help_it`" in found.because


def test_a_class_decorator_that_is_not_known_is_noted() -> None:
    source = dedent(CLASS).replace("class A", "@dataclass\n@vp.register('a')\n@changes(x)\nclass A")

    (found,) = make(module(source), overlay(HELP, CALL)).after

    assert found.state is State.APPLIED
    assert found.parts[0].notes == (f"{FILE}: class A is decorated by `@changes(x)`",)


def test_a_variable_of_upstreams_statement_need_not_be_read() -> None:
    edit = ReplaceExpr(FILE, "f", "1", "2")

    assert applied(module("def f():\n    page = 1\n"), overlay(edit))
