"""Check that an interpreter imports the functions that are in the files."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from vpatch import guest
from vpatch.guest import loaded
from vpatch.tree.verify import changed_functions

MODULE = """
import contextlib
import functools

def keep(function):
    def wrapper(*args):
        return function(*args)
    return wrapper

def drop(function):
    return lambda *args: None

def plain(): return 1

@functools.cache
def cached(): return 2

@keep
@contextlib.contextmanager
def kept(): yield

@drop
def dropped(): return 3

class A:
    @classmethod
    @keep
    def made(cls): return cls()

    @staticmethod
    def static(): return 1

    @property
    def size(self): return 1

    @size.setter
    def size(self, value):
        def check(): return value
        check()

    def replaced(self): return 1

    def reset(self): return 1

def other(self): return 2

A.replaced = other
A.reset = 1
del other
"""


def imported(folder: Path, source: str) -> ModuleType:
    (folder / "made.py").write_text(source)
    spec = importlib.util.spec_from_file_location("made", folder / "made.py")
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    return imported(tmp_path, MODULE)


def wanted(*names: str) -> list[loaded.Changed]:
    """List functions of MODULE as if each line with a `def` had a mark."""
    source = "\n".join(f"{line}  # vpatch: demo" if "def " in line else line for line in MODULE.splitlines())
    known = {changed[0]: changed for changed in changed_functions(source.encode()) if not changed[1]}
    return [known.get(name, (name, "", [1])) for name in names]


def test_wrappers_are_looked_through_and_what_is_there_instead_is_named(module: ModuleType) -> None:
    assert loaded.compared(module, wanted("plain", "cached", "kept", "A.made", "A.static", "A.size")) == ({}, {})
    found, _ = loaded.compared(module, wanted("dropped", "A.replaced", "A.reset", "A.gone"))

    path, lines = Path(str(module.__file__)), MODULE.splitlines()
    assert found == {
        "dropped": f"{path}:{lines.index('    return lambda *args: None') + 1}",
        "A.replaced": f"{path}:{lines.index('def other(self): return 2') + 1}",
        "A.reset": "int",
        "A.gone": "nothing",
    }


def test_the_script(module: ModuleType) -> None:
    path = Path(str(module.__file__))
    modules = [("made", wanted("plain", "dropped")), ("gone", [("f", "", [1])])]
    command = [sys.executable, "-c", guest.script("answer_functions", "loaded"), json.dumps(modules)]

    ran = subprocess.run(command, env={"PYTHONPATH": str(path.parent)}, capture_output=True, text=True, check=True)

    answers = json.loads(ran.stdout.splitlines()[-1])
    assert answers["made"]["errors"] == []
    assert list(answers["made"]["replaced"]) == ["dropped"]
    assert (answers["gone"]["replaced"], answers["gone"]["failed"]) == ({}, {})
    (error,) = answers["gone"]["errors"]
    assert error["summary"] == "ModuleNotFoundError: No module named 'gone'"
    assert "ImportError" in error["kinds"]


def test_the_functions_with_marks() -> None:
    source = b"""
import x  # vpatch: demo
class A:
    def f(self):
        def inner():
            return 1  # vpatch: demo
    def g(self): ...
    if x:
        async def h(self):  # vpatch: demo
            return 2
def f():
    # vpatch: demo
    return 3
"""

    assert changed_functions(source) == [("A.f", "", [4]), ("A.h", "", [9]), ("f", "", [11])]


# Each case: its name, the functions that are something else when the module runs, and the module; `#!` is a mark.
LIVE = """
# the other branch: f
if True:
    def f(): return 0
else:
    def f(): return 1  #!
# this branch:
if True:
    def f(): return 0  #!
else:
    def f(): return 1
# both branches are changed:
if True:
    def f(): return 0  #!
else:
    def f(): return 1  #!
# defined again: f
def f(): return 1  #!
def f(): return 0
# defined again with the same body: f
def f(): return 1  #!
def f(): return 1
# a class defined again: A.f
class A:
    def f(self): return 1  #!
class A:
    def f(self): return 0
# a decorator over several lines:
import functools
@functools.lru_cache(
    maxsize=1,
)
@functools.cache
def f(): return 1  #!
# a stub that is replaced:
import typing
@typing.overload
def f(a: int) -> int: ...  #!
@typing.overload
def f(a: str) -> str: ...
def f(a): return a
# every accessor:
class A:
    @property
    def size(self): return 1  #!
    @size.setter
    def size(self, value): print(value)  #!
    @size.deleter
    def size(self): print(self)  #!
# a setter that is replaced: A.size.setter
class A:
    @property
    def size(self): return 1  #!
    @size.setter
    def size(self, value): print(value)  #!
    size = size.setter(lambda self, value: None)
# a getter that is replaced: A.size
class A:
    @property
    def size(self): return 1  #!
    @size.setter
    def size(self, value): print(value)  #!
    size = size.getter(lambda self: 2)
# private:
class A:
    def __f(self): return 1  #!
    def __g__(self): return 1  #!
    class __B:
        def __f(self): return 1  #!
class __C:
    def __f(self): return 1  #!
class __:
    def __f(self): return 1  #!
def __f(): return 1  #!
# private and replaced: A.__f
class A:
    def __f(self): return 1  #!
    __f = len
"""


@pytest.mark.parametrize(("name", "wrong", "source"), re.findall(r"# (.*): ?(.*)\n((?:(?!# ).*\n)+)", LIVE))
def test_the_changed_definition_is_the_one_that_runs(name: str, wrong: str, source: str, tmp_path: Path) -> None:
    source = source.replace("#!", "# vpatch: demo")

    found, failed = loaded.compared(imported(tmp_path, source), changed_functions(source.encode()))

    assert ({*found}, failed) == ({*wrong.split()}, {})


ODD = """
class Lazy:
    def __getattr__(self, name): raise RuntimeError("called too early")

class Context:
    @property
    def __class__(self): raise RuntimeError("no context")
    @property
    def __wrapped__(self): raise RuntimeError("no context")

class Anything:
    asked = []
    def __getattr__(self, name):
        self.asked.append(name)
        return Anything()

def odd(function):
    held = [Lazy(), Context(), Anything()]
    first, second, third = held
    def wrapper(): return first, second, third, function
    return wrapper

@odd
def f(): return 1  # vpatch: demo

@odd
def g(): return 1  # vpatch: demo

g = odd(None)
"""


def test_odd_objects_around_a_function_are_not_asked(tmp_path: Path) -> None:
    made = imported(tmp_path, ODD)
    line = next(n for n, text in enumerate(ODD.splitlines(), 1) if "def wrapper" in text)

    assert loaded.compared(made, changed_functions(ODD.encode())) == ({"g": f"{tmp_path}/made.py:{line}"}, {})
    assert made.Anything.asked == []


def test_a_function_that_cannot_be_compared(module: ModuleType) -> None:
    """It hides neither the other functions nor that the module can be imported."""
    Path(str(module.__file__)).write_text("def plain(:")

    found, failed = loaded.compared(module, wanted("plain", "A.gone"))

    assert found == {"A.gone": "nothing"}
    assert failed == {"plain": "SyntaxError: invalid syntax (made.py, line 1)"}
