"""Whether the functions that an interpreter imports are the ones in the files."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from vpatch import loaded
from vpatch.verify import changed_functions

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


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    (tmp_path / "made.py").write_text(MODULE)
    spec = importlib.util.spec_from_file_location("made", tmp_path / "made.py")
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_wrappers_are_looked_through(module: ModuleType) -> None:
    assert loaded.replaced(module, ["plain", "cached", "kept", "A.made", "A.static", "A.size"]) == {}


def test_what_is_there_instead_is_named(module: ModuleType) -> None:
    found = loaded.replaced(module, ["dropped", "A.replaced", "A.reset", "A.gone"])

    path, lines = Path(str(module.__file__)), MODULE.splitlines()
    assert found == {
        "dropped": f"{path}:{lines.index('    return lambda *args: None') + 1}",
        "A.replaced": f"{path}:{lines.index('def other(self): return 2') + 1}",
        "A.reset": "int",
        "A.gone": "nothing",
    }


def test_the_script(module: ModuleType) -> None:
    path = Path(str(module.__file__))
    wanted = [("made", ["plain", "dropped"]), ("gone", ["f"])]
    command = [sys.executable, loaded.__file__, json.dumps(wanted)]

    ran = subprocess.run(command, env={"PYTHONPATH": str(path.parent)}, capture_output=True, text=True, check=True)

    answers = json.loads(ran.stdout.splitlines()[-1])
    assert answers["made"]["error"] is None
    assert list(answers["made"]["replaced"]) == ["dropped"]
    assert answers["gone"] == {"error": "ModuleNotFoundError: No module named 'gone'", "replaced": {}}


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

    assert changed_functions(source) == ["A.f", "A.h", "f"]
