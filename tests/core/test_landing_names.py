"""Names in inserted code follow Python's scoping rules, and names in the code around it stay bound."""

from __future__ import annotations

import pytest
from vpatch import EnsureImport
from vpatch.core.overlay import Edit

from tests.core.test_landing import lands, refusal
from tests.snippets import FILE, DeleteStatements, InsertAfter, ReplaceExpr, ReplaceStatements


@pytest.mark.parametrize(
    ("source", "edit", "name"),
    [
        ("def f(a):\n    anchor()\n", InsertAfter(FILE, "f", "anchor()", "print([x for x in x])"), "x"),
        ("def f(a):\n    anchor()\n", InsertAfter(FILE, "f", "anchor()", "print(lambda x=x: x)"), "x"),
        ("def f(a):\n    print(1, [x for x in a])\n", ReplaceExpr(FILE, "f", "1", "max(x)"), "x"),
        ("def f(a):\n    print([x for x in 1])\n", ReplaceExpr(FILE, "f", "1", "max(x)"), "x"),
        ("def f(a=lambda: (x := 1)):\n    anchor()\n", InsertAfter(FILE, "f", "anchor()", "print(x)"), "x"),
        ("def f(a=lambda x: 1):\n    anchor()\n", InsertAfter(FILE, "f", "anchor()", "print(x)"), "x"),
        ("def f(a):\n    size: int\n    anchor()\n", InsertAfter(FILE, "f", "anchor()", "print(size)"), "size"),
        ("def f(a):\n    anchor()\n    del os\n", InsertAfter(FILE, "f", "anchor()", "print(os)"), "os"),
        ("class f:\n    anchor()\n", InsertAfter(FILE, "f", "anchor()", "x: Unknown = 1"), "Unknown"),
    ],
)
def test_names_of_inner_scopes_bind_nothing_around_them(source: str, edit: Edit, name: str) -> None:
    lands(f"reads `{name}`, which nothing binds there", f"import os\n{source}", edit)


@pytest.mark.parametrize(
    ("source", "edit"),
    [
        ("print([1 for x in a])", ReplaceExpr(FILE, "f", "1", "max(x)")),
        ("print([y for x in a for y in 1])", ReplaceExpr(FILE, "f", "1", "max(x)")),
        ("print(lambda x, *y: 1)", ReplaceExpr(FILE, "f", "1", "max(x, y)")),
        ("print(1)\n    later = 1", ReplaceExpr(FILE, "f", "print(1)", "print(lambda: later)")),
        ("x: 1 = a\n    print(x)", ReplaceExpr(FILE, "f", "1", "Unknown")),
        ("match a:\n        case [x] if 1: ...", ReplaceExpr(FILE, "f", "1", "max(x)")),
        ("try:\n        import foo\n    except 1: ...", ReplaceExpr(FILE, "f", "1", "foo.Error")),
        ("print()", InsertAfter(FILE, "f", "print()", "print(lambda: b if (b := a) else None)")),
        ("print()", InsertAfter(FILE, "f", "print()", "print(lambda: [b for _ in a if (b := 1)])")),
        ("print()", InsertAfter(FILE, "f", "print()", "match a:\n    case [x] if x: print(x)")),
        ("print()", InsertAfter(FILE, "f", "print()", "try:\n    import foo\nexcept foo.Error as e: print(e)")),
    ],
)
def test_names_are_read_where_python_reads_them(source: str, edit: Edit) -> None:
    lands("", f"def f(a):\n    {source}\n", edit)


@pytest.mark.parametrize(("source", "message"), [("THINK = 1\n", ""), ("", "reads `THINK`, which nothing binds there")])
def test_what_the_body_of_a_class_has_not_bound_yet_is_the_module_s(source: str, message: str) -> None:
    edit = InsertAfter(FILE, "C", "anchor()", "THINK = THINK")

    lands(message, f"{source}class C:\n    anchor()\n    THINK = 2\n", edit)


def test_two_functions_import_the_same_name() -> None:
    edits: list[Edit] = [EnsureImport(FILE, "from helpers import help_it", scope) for scope in ("f", "g")]
    edits += [InsertAfter(FILE, scope, "anchor()", "help_it()") for scope in ("f", "g")]

    lands("", "def f():\n    anchor()\ndef g():\n    anchor()\n", *edits)


@pytest.mark.parametrize(
    ("source", "statement", "message"),
    [
        ("try:\n    from .helpers import a\nexcept E: ...\n", "from helpers import a", "overrides the import of `a`"),
        ("try:\n    from . import a\nexcept E: ...\n", "import a", "overrides the import of `a`"),
        ("os = 3\n", "import os.path", "overrides the import of `os`"),
        ("def f(os):\n    anchor()\n", "import os.path", "a parameter of `f` hides the import of `os`"),
    ],
)
def test_an_import_that_means_something_else(source: str, statement: str, message: str) -> None:
    uses = [InsertAfter(FILE, "f", "anchor()", "print(os)")] if "anchor" in source else []

    lands(message, source, EnsureImport(FILE, statement), *uses)


@pytest.mark.parametrize(
    ("body", "edit", "name"),
    [
        ("page = 1\n    return page", ReplaceStatements(FILE, "f", "page = 1", "print()"), "page"),
        ("print(os)\n    anchor()\n    return os", InsertAfter(FILE, "f", "anchor()", "os = 1"), "os"),
        ("def g():\n        return page\n    page = 1\n    return g", DeleteStatements(FILE, "f", "page = 1"), "page"),
    ],
)
def test_names_that_upstream_reads_stay_bound(body: str, edit: Edit, name: str) -> None:
    message = refusal(f"import os\ndef f():\n    unknown()\n    {body}\n", edit)

    assert f"reads `{name}`, which nothing binds there any more" in message
    assert "unknown" not in message


@pytest.mark.parametrize(
    "classes",
    ["class Foo: ...\nclass Foo(Foo): ...\nclass Foo(Foo): ...\nclass A(Foo):", "class B(A): ...\nclass A(B):"],
)
def test_classes_whose_bases_lead_in_a_circle(classes: str) -> None:
    source = f"from x import A\n{classes}\n    def f(self):\n        anchor()\n"
    edit = InsertAfter(FILE, "A.f", "anchor()", "print(self.q)", uses=("self.q",))

    lands("the new code relies on `self.q`, which A does not set", source, edit)
