"""An overlay is refused if something replaces, hides or cuts off the code that it changes."""

from __future__ import annotations

from textwrap import dedent

import pytest
from vpatch.core.overlay import Catalogued, Overlay, Part, Shape
from vpatch.core.verdict import State

from tests.core.test_landing import CALL, CLASS, HELP, lands
from tests.snippets import FILE, DeleteStatements, InsertAfter, ReplaceExpr, make, module, overlay

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
    "on the type": ("    def g(me):\n        type(me).f = other\n", "line 7 overrides `A.f` of line 4"),
    "on the class": ("    def g(me):\n        me.__class__.f = other\n", "line 7 overrides `A.f` of line 4"),
    "past setattr": ("    def g(me):\n        object.__setattr__(me, 'f', 1)\n", "line 7 overrides `A.f` of line 4"),
    "anything": ("try:\n    from fast import *\nexcept E: ...\n", "`from fast import *`, may override `A` of line 3"),
    "a stub of another kind": ("    @other.overload\n    def f(self): ...\n", "overrides `A.f` of line 4"),
    "another class": ("class A: ...\n", "line 6, `class A:`, overrides `A` of line 3"),
    "an import in a try": ("try:\n    from x import A\nexcept E: ...\n", "line 7, `from x import A`, overrides `A`"),
    "a loop": ("for A in x: ...\n", "line 6, `for A in x:`, overrides `A` of line 3"),
    "a global": ("def g():\n    global A\n    A = 1\n", "a function that declares `global A` may override `A`"),
    "the import": ("help_it = other\n", "'help_it' is already bound by `help_it = other`"),
    "the import, in a try": ("try:\n    import help_it\nexcept E: ...\n", "overrides the import of `help_it`"),
    "the import, by a global": ("def g():\n    global help_it\n    help_it = 1\n", "`global help_it` may override the"),
}


@pytest.mark.parametrize(("behind", "message"), IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_code_that_replaces_the_patched_code(behind: str, message: str) -> None:
    lands(message, dedent(CLASS).lstrip("\n") + behind, HELP, CALL)


@pytest.mark.parametrize(
    "behind",
    [
        "    def g(self): ...\n",
        "    if TYPE_CHECKING:\n        def f(self): ...\n",
        "    import typing\n    @typing.overload\n    def f(self): ...\n",
        "    def g(self):\n        other.f = 1\n        self.g = 1\n",
        "    def g(self):\n        self.f: int\n",
        "def g(A):\n    A.f = 1\n",
        "A().f = 1\n",
        "def g():\n    class A:\n        def h(self): self.f = 1\n",
        "    @staticmethod\n    def g(a):\n        a.f = 1\n",
        "A.g = other\nsetattr(A, 'g', 1)\nsetattr(B, 'f', 1)\nB.f = 1\n",
        "def g(A):\n    A = 1\n    f = 2\n    help_it = 3\n",
        "if False:\n    A = 1\n",
        "from helpers import help_it\n",
    ],
)
def test_definitions_that_replace_nothing(behind: str) -> None:
    lands("", dedent(CLASS).lstrip("\n") + behind, HELP, CALL)


@pytest.mark.parametrize(
    ("body", "message"),
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
def test_hidden_imports_and_code_that_never_runs(body: str, message: str) -> None:
    lands(message, f"class A:\n    def f{body}\n", HELP, CALL)


@pytest.mark.parametrize("head", ["if False:", "if TYPE_CHECKING:", "if not True:"])
def test_a_definition_that_never_runs(head: str) -> None:
    source = f"{head}\n    class A:\n        def f(self, size):\n            anchor()\n"

    lands("`A` is defined only where it never runs", source, HELP, CALL)


@pytest.mark.parametrize(
    ("decorator", "kept"),
    [
        *((name, True) for name in ("classmethod", "torch.inference_mode()", "ft.wraps(x)", "triton.jit", "cache")),
        *((name, False) for name in ("wrapped", "ft.property", "torch.compiler.disable", "x[0]", "jit")),
        ("staticmethod", False),
    ],
)
def test_decorators(decorator: str, kept: bool) -> None:  # noqa: FBT001
    source = "import torch, functools as ft; from functools import cache; from numba import jit; from triton import x\n"
    source += f"import triton\ndef staticmethod(f): ...\nclass A:\n    @{decorator}\n    def f(self, size):\n"
    source += "        anchor()\n"

    lands("" if kept else f"line 6: `@{decorator}` may replace `A.f` by something else", source, HELP, CALL)


@pytest.mark.parametrize("head", ["@property\n    def f(self): return 1\n", "f = property(print)\n"])
@pytest.mark.parametrize(
    ("behind", "message"),
    [
        ("@f.deleter\n    def f(self): ...\n", ""),
        ("@f.setter\n    def f(self, size): ...\n", "`@f.setter`, overrides `A.f`"),
        ("f = property(print)\n", "`f = property(print)`, overrides `A.f`"),
    ],
)
def test_accessors_of_a_property_belong_together(head: str, behind: str, message: str) -> None:
    source = f"class A:\n    {head}    @f.setter\n    def f(self, size):\n        anchor()\n    {behind}"
    lands(message, source, HELP, InsertAfter(FILE, "A.f.setter", "anchor()", "help_it(size)"))


def test_a_getter_replaces_the_property_and_a_method_may_be_called_setter() -> None:
    source = "class A:\n    @property\n    def f(self):\n        anchor()\n    @f.getter\n    def f(self): ...\n"
    lands("`@f.getter`, overrides `A.f` of line 3", source, InsertAfter(FILE, "A.f", "anchor()", "print()"))

    source = "class A:\n    def setter(self):\n        anchor()\n"
    lands("", source, InsertAfter(FILE, "A.setter", "anchor()", "print()"))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("def g(self): self.f = 1", ""),  # the setter gets it
        ("@classmethod\n    def g(cls): cls.f = 1", "overrides `A.f`"),
        ("def __init_subclass__(cls): cls.f = 1", "overrides `A.f`"),
        ("def g(self): A.f = 1", "overrides `A.f`"),
        ("def g(self): type(self).f = 1", "overrides `A.f`"),
    ],
)
def test_an_assignment_to_a_property_is_its_setters(method: str, message: str) -> None:
    source = f"class A:\n    @property\n    def f(self):\n        anchor()\n    {method}\n"

    lands(message, source, InsertAfter(FILE, "A.f", "anchor()", "print()"))


EITHER = """
if x:
    def f():
        {}
        print()
else:
    def f():
        {}
        print()
"""
LOG = InsertAfter(FILE, "f", "print()", "print(1)", count=2)


@pytest.mark.parametrize(("first", "second"), [("anchor()", "..."), ("...", "anchor()")])
def test_a_definition_beside_the_one_that_is_changed(first: str, second: str) -> None:
    source = EITHER.format(first, second)
    one = InsertAfter(FILE, "f", "anchor()", "print(2)")

    lands("`def f():`, overrides `f` of line", source, one)
    lands("", source, one, LOG)
    lands("", EITHER.format("anchor()", "anchor()"), DeleteStatements(FILE, "f", "anchor()", count=2))


@pytest.mark.parametrize(
    ("scope", "source", "message"),
    [
        ("A", "class A:\n    @drop\n    def g(self): return 1\n", "`@drop` may replace `A.g`"),
        ("A", "class A:\n    def g(self): return 1\nA.g = other\n", "line 3 overrides `A.g` of line 2"),
        ("", "def g(): return 1\ng = other\n", "`g = other`, overrides `g`"),
        ("", "if False:\n    def g(): return 1\n", "`g` is defined only where it never runs"),
        ("f", "def f():\n    def g(): return 1\n    g = other\n", "`g = other`, overrides `f.g`"),
        ("make.A.g", "def make():\n    class A:\n        def g(self): return 1\n    A.g = 2\n", "overrides `make.A.g`"),
        ("f", "@drop\ndef f(): ...\ndef f(): return 1\n", "`@drop`, overrides `f`"),
        ("f", "def f(): ...\n@drop\ndef f(): return 1\n", "`@drop` may replace `f`"),
    ],
)
def test_definitions_below_the_scope_of_an_edit(scope: str, source: str, message: str) -> None:
    lands(message, source, ReplaceExpr(FILE, scope, "1", "11"))


INSTALLED = """\
def make(cls, other, flag):
    def run(self):
        anchor()
    {}
    return cls
"""


@pytest.mark.parametrize(
    ("handed_on", "message"),
    [
        ("cls.run = run", ""),
        ("cls.run = cls.go = run", ""),
        ("cls.run = run\n    cls.go = other", ""),
        ("cls.run = run\n    cls.run = wrapped(cls.run)", ""),
        ("cls.run = run\n    cls.run = wrapped(run)", ""),
        ("if flag:\n        cls.run = run\n    else:\n        cls.run = other", ""),
        ("cls.run = run\n    def go(other): other.run = 1", ""),
        ("cls.run = run\n    other()\n    cls.run = other", ""),
        ("old = cls.run\n    cls.run = run\n    try: yield\n    finally: cls.run = old", ""),
        ("def go(): return run()\n    cls.run = go", ""),
        ("register(cls, **locals())", ""),
        ("return run", ""),
        ("cls.run = other", "nothing in `make` reads `run` of line 2: it never runs"),
        ("def go(run): return run()", "nothing in `make` reads `run` of line 2: it never runs"),
        ("if False:\n        cls.run = run", "nothing in `make` reads `run` of line 2: it never runs"),
        ("cls.run = run\n    cls.run = other", "line 5 overrides `cls.run`, which was `make.run`"),
        ("cls.run = run\n    if flag: cls.run = other", "line 5 overrides `cls.run`, which was `make.run`"),
        ("cls.run = run\n    setattr(cls, 'run', other)", "line 5 overrides `cls.run`, which was `make.run`"),
        ("cls.run = run\n    del cls.run", "line 5 overrides `cls.run`, which was `make.run`"),
        ("cls.run = run\n    run = other", "`run = other`, overrides `make.run` of line 2"),
    ],
)
def test_a_function_within_another_one_that_is_not_handed_on(handed_on: str, message: str) -> None:
    lands(message, INSTALLED.format(handed_on), InsertAfter(FILE, "make.run", "anchor()", "print()"))


def test_an_import_of_another_part_must_not_be_hidden() -> None:
    parts = tuple(Part(name, (Shape("1.0", (edit,)),)) for name, edit in (("import", HELP), ("call", CALL)))
    item = Catalogued("demo", Overlay("Demo.", parts), "")
    source = "class A:\n    def f(self, size):\n        help_it = 1\n        anchor()\n"

    (found,) = make(module(source), item).before

    assert [part.state for part in found.parts] == [State.PENDING, State.DRIFTED]
    assert "hides the import of `help_it`" in found.because


KEEPING = "@dataclass\n@final\n@vp.register('a')\n@runtime_checkable\n@support_torch_compile"


def test_an_unknown_class_decorator_is_noted() -> None:
    source = dedent(CLASS).replace("class A", f"{KEEPING}\n@changes(x)\nclass A")

    (found,) = make(module(source), overlay(HELP, CALL)).after

    assert found.state is State.APPLIED
    assert found.parts[0].notes[0] == f"{FILE}: class A is decorated by `@changes(x)`"
