"""AddFunction, AddFile, and definitions that are replaced: results and drift."""

from __future__ import annotations

from textwrap import dedent

import pytest
from vpatch import AddFile, AddFunction, Companion
from vpatch.core.overlay import Edit
from vpatch.core.verdict import State

from tests.snippets import (
    FILE,
    Files,
    ReplaceStatements,
    applied,
    becomes,
    changes,
    drifts,
    in_any_order,
    module,
    overlay,
    verdict,
)

NEW = "def g(self):\n    return 1"

ADDED = {
    "to a module": ("import a|>|>|+def g(self):|>    return 1", "", NEW),
    "to a class": (
        "class A:|    x = 1||>    # Why.|>    @c|+    def g(self):|>        return 1|>|b",
        "A",
        f"# Why.\n@c\n{NEW}",
    ),
    "to a function, tabs": ("def f():|\tif x:|\t\ty|>|+\tasync def g(): return 1", "f", "async def g(): return 1"),
    "a class": ("x|>|>|+class B(A): ...", "", "class B(A): ..."),
    "to a class in `if`": ("if x:|    class A:|        y|>|+        def g(self):|>            return 1", "A", NEW),
}


@pytest.mark.parametrize(("change", "scope", "new"), ADDED.values(), ids=ADDED)
def test_a_function_is_added(change: str, scope: str, new: str) -> None:
    changes(change, AddFunction(FILE, scope, new))


def test_the_order_of_overlays_does_not_matter() -> None:
    items = [overlay(AddFunction(FILE, "A", f"def {name}(self): ..."), name=name) for name in ("one", "two", "three")]

    in_any_order(module("class A:\n    x = 1\n"), *items)


CLASS = """
import typing
from typing import overload
class A:
    # Why.
    @property
    def p(self): return 1

    @p.setter
    def p(self, value):
        self.q = value  # kept?

    @overload
    def o(self, x: int): ...
    @typing.overload
    def o(self, x: str): ...
    def o(self, x):
        return x

    try:
        async def a(self):
            def inner(): return 1
    except E:
        pass
"""


@pytest.mark.parametrize(
    ("scope", "old", "new"),
    [
        ("A", "    @property\n    def p(self): return 1\n", "@property\ndef p(self): return 2"),
        (
            "A",
            "    @p.setter\n    def p(self, value):\n        self.q = value  # kept?\n",
            "@p.setter\ndef p(self, v): self.q = v",
        ),
        ("A", "    def o(self, x):\n        return x\n", "def o(self, x): return y"),
        ("A", "        async def a(self):\n            def inner(): return 1\n", "async def a(self): return 1"),
        ("A.a", "            def inner(): return 1\n", "def inner(): return 2"),
    ],
)
def test_a_definition_is_replaced(scope: str, old: str, new: str) -> None:
    edit = ReplaceStatements(FILE, scope, dedent(old), new)
    indent = " " * (len(old) - len(old.lstrip()))
    made = "".join(f"{indent}{line}\n" for line in f"{new}  # vpatch: demo".splitlines())
    becomes(CLASS, edit, CLASS.replace(old, made))


COMPANION = "vllm/_vpatch/new.py"
ADD = AddFile(COMPANION, "x = 'é'\n")
NEW_FILE = "vllm/mine/policy.py"
POLICY = AddFile(NEW_FILE, '"""Ours."""\nx = f(a=1, b=2)\ndef g():\n    """Why."""\n    return x\n')


def test_a_file_is_added_with_the_mark_first() -> None:
    assert applied({}, overlay(ADD)) == {COMPANION: "# vpatch: demo\nx = 'é'\n".encode()}
    item = overlay(AddFile(COMPANION, "# vpatch: demo\n# vpatch: demo\n"))  # marks that do not count
    assert verdict(applied({}, item), item).state is State.APPLIED


def add(scope: str) -> Edit:
    return AddFunction(FILE, scope, NEW)


REPLACE = ReplaceStatements(FILE, "", "def f(): return 3", "def f(): return 1")
OTHER = "in line 1 is not what this version makes; if you edited it, undo the edit"


@pytest.mark.parametrize(
    ("source", "edit", "message"),
    [
        ("class A:\n    def g(self): ...\n", add("A"), "'g' is defined already, and is another one"),
        ("class A: ...\n", add("A"), "its block is on the line of its header"),
        ("class A:\n    x\nclass A:\n    y\n", add("A"), "is defined 2 times, 1 expected"),
        ("class B:\n    x\n", add("A"), "no 'A' here"),
        ("x\ndef f(): return 2\n", REPLACE, "`return 3` is not there; line 2 has `return 2`"),
        ("class f:\n    def f2(): ...\n", REPLACE, "`def f(): ...` is not there"),
        ({NEW_FILE: b"x = 1\n"}, POLICY, "exists already, and is another program: upstream's, or your own"),
        ({"vllm/mine/policy/__init__.py": b""}, POLICY, "the module exists already, as vllm/mine/policy/__init__.py"),
        ({"vllm/mine.py": b""}, AddFile("vllm/mine/__init__.py", ""), "the module exists already, as vllm/mine.py"),
        ({COMPANION: ADD.text.encode()}, ADD, "exists already, with other contents"),
        ({COMPANION: b"x = 1\n"}, ADD, "exists already, with other contents"),
        ({COMPANION: b""}, ADD, "exists already, with other contents"),
        ({COMPANION: b"# vpatch: demo\nx = 2\n"}, ADD, OTHER),
        ({COMPANION: "# vpatch: demo\r\nx = 'é'\r\n".encode()}, ADD, OTHER),
    ],
)
def test_it_drifts(source: str | Files, edit: Edit, message: str) -> None:
    drifts(source, edit, message)


@pytest.mark.parametrize("file", ["/vllm/_vpatch/x.py", "../vllm/_vpatch/x.py", "vllm/../x.py", "os.py", "vllm/x.json"])
def test_only_modules_of_vllm_are_added(file: str) -> None:
    with pytest.raises(ValueError, match="is no Python module below vllm/"):
        AddFile(file, "")


STATES: dict[str, tuple[bytes | None, State]] = {
    "missing": (None, State.PENDING),
    "ours": (f"# vpatch: demo\n{POLICY.text}".encode(), State.APPLIED),
    "upstream's": (POLICY.text.encode(), State.MERGED),
    "the same program": (b"# SPDX\nx = f(b=2, a=1)  # why\n\ndef g(): return x\n", State.MERGED),
    "another overlay's": (f"# vpatch: other\n{POLICY.text}".encode(), State.MERGED),
    "another program": (POLICY.text.replace("b=2", "b=3").encode(), State.DRIFTED),
    "ours, edited": (f"# vpatch: demo\n{POLICY.text}y = 1\n".encode(), State.DRIFTED),
    "empty": (b"", State.DRIFTED),
    "no Python": (b"x =", State.DRIFTED),
}


@pytest.mark.parametrize("name", STATES)
def test_a_new_module_of_vllm(name: str) -> None:
    data, state = STATES[name]

    assert verdict({} if data is None else {NEW_FILE: data}, overlay(POLICY)).state is state


def test_an_empty_new_module() -> None:
    item = overlay(AddFile("vllm/mine/__init__.py", "\n"))

    assert verdict({"vllm/mine/__init__.py": b""}, item).state is State.MERGED
    assert verdict(applied({}, item), item).state is State.APPLIED


def test_a_companion_adds_a_module_of_a_package() -> None:
    (edit,) = Companion("vpatch.errors").files

    assert edit.file == "vllm/_vpatch/errors.py"
    assert edit.text.startswith('"""What can go wrong')
    assert list(applied({}, overlay(edit))) == [edit.file]
