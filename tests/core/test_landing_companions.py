"""What inserted code imports from companions is there, or the overlay is refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from vpatch import AddFile, EnsureImport
from vpatch.core.engine import Engine
from vpatch.core.landing import check
from vpatch.core.overlay import Edit
from vpatch.core.verdict import State
from vpatch.errors import Problem

from tests.snippets import FILE, InsertAfter, applied, make, module, overlay

FIX = "vllm/_vpatch/my_fix.py"
TREE = module("def f():\n    anchor()\n")
FAULT = "(a fault of the overlay, whatever the vLLM)"
NO_SUCH_NAME = f"my_fix.py defines no `order_layer`: did you mean order_layers? {FAULT}"


def refused(*edits: Edit) -> str:
    """Assert that the edits are refused and nothing is changed; return the reasons."""
    changeset = make(TREE, overlay(*edits))
    assert changeset.before[0].state is State.DRIFTED
    assert changeset.files == {}
    return "\n".join(map(str, changeset.problems))


@pytest.mark.parametrize(
    "edit",
    [
        EnsureImport(FILE, "from vllm._vpatch.my_fix import order_layer"),
        EnsureImport(FILE, "from vllm._vpatch.my_fix import order_layer as order"),
        EnsureImport(FILE, "from vllm._vpatch.my_fix import order_layers, order_layer"),
        EnsureImport(FILE, "from vllm._vpatch.my_fix import order_layer", "f"),
        InsertAfter(FILE, "f", "anchor()", "from vllm._vpatch.my_fix import order_layer\nprint(order_layer)"),
        InsertAfter(FILE, "f", "anchor()", "if 1 < f():\n    from ._vpatch.my_fix import order_layer as o\n    o()"),
        AddFile("vllm/_vpatch/other.py", "from vllm._vpatch.my_fix import order_layer\n"),
        AddFile("vllm/_vpatch/other.py", "def g():\n    from .my_fix import order_layer\n"),
    ],
)
def test_a_name_that_the_companion_does_not_define(edit: Edit) -> None:
    reasons = refused(AddFile(FIX, "def order_layers(): ...\n"), edit)

    assert NO_SUCH_NAME in reasons
    assert edit.file in reasons


def test_a_companion_that_defines_nothing() -> None:
    reasons = refused(AddFile(FIX, '"""Soon."""\n'), EnsureImport(FILE, "from vllm._vpatch.my_fix import x"))

    assert "my_fix.py defines no `x`: it defines nothing" in reasons


@pytest.mark.parametrize(
    "statement",
    ["from vllm._vpatch.my_fix import x", "from vllm._vpatch import my_fix", "import vllm._vpatch.my_fix"],
)
def test_a_companion_that_is_not_added(statement: str) -> None:
    message = f"`{statement}`: there is no {FIX}, and the overlay does not add it"
    assert message in refused(EnsureImport(FILE, statement))


@pytest.mark.parametrize(
    "text",
    [
        *("x = 1\n", "import x\n", "from os import path as x\n", "class x: ...\n", "if a():\n    x: int = 1\n"),
        *("from os import *\n", "def __getattr__(name): ...\n", "def set_it():\n    global x\n    x = 1\n"),
        "try:\n    import a\n    x = a\nexcept ImportError:\n    x = None\n",
    ],
)
def test_what_may_be_there_is_imported(text: str) -> None:
    """And what every module has."""
    names = [EnsureImport(FILE, f"from vllm._vpatch{one}") for one in (".my_fix import x", " import my_fix")]
    other = AddFile("vllm/_vpatch/other.py", "from .my_fix import __doc__, __file__\nfrom .my_fix import *\n")

    assert applied(TREE, overlay(AddFile(FIX, text), *names, other))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nprint(f'{x}'\n", "'(' was never closed (my_fix.py, line 2)"),
        ("x = '\0'\n", "source code string cannot contain null bytes"),
        ("import vpatch\n", "`import vpatch`: vpatch is not there when vLLM runs"),
        ("def f():\n    from vpatch.core import cst\n", "`from vpatch.core import cst`: vpatch is not there when"),
    ],
)
def test_a_companion_that_cannot_run(text: str, message: str) -> None:
    reasons = refused(AddFile(FIX, text))

    assert f"{FIX}: {message}" in reasons
    assert FAULT in reasons


def test_an_import_for_types_only_may_name_anything() -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .my_fix import unknown\n"

    assert applied(TREE, overlay(AddFile(FIX, ""), AddFile("vllm/_vpatch/other.py", text)))


TRIED = """
def f():
    try:
        if 1:
            from vllm._vpatch.{} import order_layer
    except {}:
        return None
    return order_layer
"""


@pytest.mark.parametrize("caught", ["ImportError", "ModuleNotFoundError as e", "(KeyError, ImportError)", "Exception"])
def test_a_try_may_import_the_companion_of_an_overlay_that_is_not_applied(caught: str) -> None:
    assert applied(TREE, overlay(AddFile(FIX, TRIED.format("absent", caught))))
    assert "there is no vllm/_vpatch/absent.py" in refused(AddFile(FIX, TRIED.format("absent", "KeyError")))

    there = AddFile(FIX, "def order_layers(): ...\n")
    assert NO_SUCH_NAME in refused(there, AddFile("vllm/_vpatch/other.py", TRIED.format("my_fix", caught)))


def test_a_companion_of_another_overlay_counts_only_together_with_it() -> None:
    """An engine checks equal code once, and yet asks again where another overlay added the companion."""
    adds = overlay(AddFile(FIX, "x = 1\n"), name="adds")
    uses = overlay(EnsureImport(FILE, "from vllm._vpatch.my_fix import x"), name="uses")
    engine = Engine([adds, uses])

    assert [verdict.state for verdict in engine.status(TREE.get)] == [State.PENDING, State.PENDING]
    assert [verdict.state for verdict in engine.status(TREE.get, [uses])] == [State.DRIFTED]


def test_companions_that_code_does_not_import_are_not_checked_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, with an overlay that adds another companion, and without it again."""
    other = overlay(AddFile("vllm/_vpatch/other.py", "x = 1\n"), name="other")
    uses = overlay(EnsureImport(FILE, "from vllm._vpatch.my_fix import x"), AddFile(FIX, "x = 1\n"), name="uses")
    engine, checked = Engine([other, uses]), list[object]()

    def counted(*arguments: Any) -> list[Problem]:
        checked.append(arguments)
        return problems(*arguments)

    problems = check.problems
    monkeypatch.setattr(check, "problems", counted)
    for chosen in ([uses], [other, uses], [uses]):
        assert {verdict.state for verdict in engine.status(TREE.get, chosen)} == {State.PENDING}

    assert len(checked) == 2  # one of each
