"""`verify --python` if a changed module cannot be imported: a problem if the change is to blame, a note otherwise."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from vpatch import AddFile, EnsureImport, InsertAfter, InsertBefore, ReplaceExpr
from vpatch.core.overlay import Edit
from vpatch.tree.locate import Tree
from vpatch.tree.verify import Verified, verify

from tests.snippets import FILE, applied, overlay

HELPER = "vllm/_vpatch/helper.py"
STOCK = """
anchor = 1

def f():
    return anchor

value = f()
"""


def verified(folder: Path, *edits: Edit, stock: str = STOCK, others: Mapping[str, str] | None = None) -> Verified:
    """Apply an overlay to a checkout with the module `vllm.m` and `others`, and verify it."""
    files = {"vllm/__init__.py": "", FILE: stock, **(others or {})}
    (folder / ".git").mkdir()
    for file, data in applied({file: text.encode() for file, text in files.items()}, overlay(*edits)).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(data)
    return verify(Tree(folder.resolve(), None, None), [overlay(*edits)], named={"overlay"}, python=Path(sys.executable))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return tmp_path


def insert(code: str) -> InsertAfter:
    return InsertAfter(FILE, "", "anchor = 1", code)


def insert_import(code: str) -> EnsureImport:
    return EnsureImport(FILE, code)


OTHERS = {
    "vllm/other.py": "import sys\nif sys.platform == 'none':\n    conditional = 1\n",
    "vllm/lazy.py": "def __getattr__(name): raise AttributeError(name)\n",
    "vllm/below.py": "x = not_there\n",
}

FAULTS: dict[str, tuple[tuple[Edit, ...], str, int, str]] = {
    "a name that is not bound": (
        (insert("if not anchor:\n    late = 1\nx = late"),),
        FILE,
        5,
        "NameError: name 'late' is not defined",
    ),
    "in an inserted block": (
        (insert("if anchor:\n    x = 1 / (\n        anchor - 1\n    )"),),
        FILE,
        4,
        "ZeroDivisionError: division by zero",
    ),
    "in a function that runs at import": (
        (ReplaceExpr(FILE, "f", "anchor", "anchor + 'x'"),),
        FILE,
        5,
        "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    ),
    "in a companion": (
        (AddFile(HELPER, "x = {}['gone']\n"), insert_import("from vllm._vpatch.helper import x")),
        HELPER,
        2,
        "KeyError: 'gone'",
    ),
    "a name that another module of vLLM lacks": (
        (insert_import("from vllm.other import gone"),),
        FILE,
        2,
        "ImportError: cannot import name 'gone' from 'vllm.other'",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_the_change_is_to_blame(case: str, folder: Path) -> None:
    edits, file, line, error = FAULTS[case]

    found = verified(folder, *edits, others=OTHERS)

    (problem,) = found.problems
    assert (problem.what, problem.where) == ("cannot be imported", file)
    assert problem.cause.startswith(f"{sys.executable} fails in line {line}, in code that an overlay changed: {error}")
    assert found.notes == ()


LACKS: dict[str, tuple[tuple[Edit, ...], str]] = {
    "a package": ((insert_import("import not_installed"),), "ModuleNotFoundError: No module named 'not_installed'"),
    "a name of a package": ((insert_import("from math import gone"),), "ImportError: cannot import name 'gone'"),
    "an attribute of a package": (
        (insert_import("import math"), insert("x = math.gone")),
        "AttributeError: module 'math' has no attribute 'gone'",
    ),
    "a compiled module of vLLM": ((insert_import("import vllm.compiled"),), "ModuleNotFoundError: No module named"),
    "a compiled module in a package": ((insert_import("from vllm import _C"),), "ImportError: cannot import name '_C'"),
    "what vLLM defines on some platforms": (
        (insert_import("from vllm.other import conditional"),),
        "ImportError: cannot import name 'conditional'",
    ),
    "a name that a module makes up": (
        (insert_import("from vllm.lazy import gone"),),
        "ImportError: cannot import name 'gone' from 'vllm.lazy'",
    ),
    "a library": ((insert_import("import ctypes"), insert("x = ctypes.CDLL('libnone.so')")), "OSError: libnone.so"),
    "a GPU": ((insert("raise RuntimeError('no GPU')"),), "RuntimeError: no GPU"),
    "what None stands for": ((insert("x = None\ny = x.major"),), "AttributeError: 'NoneType' object has no"),
    "what a companion needs": (
        (AddFile(HELPER, "import not_installed as x\n"), insert_import("from vllm._vpatch.helper import x")),
        "ModuleNotFoundError: No module named 'not_installed'",
    ),
}


@pytest.mark.parametrize("case", LACKS)
def test_the_environment_lacks_something(case: str, folder: Path) -> None:
    edits, error = LACKS[case]

    found = verified(folder, *edits, others=OTHERS)

    assert found.problems == ()
    (note,) = found.notes
    assert note.startswith(f"functions not compared: {FILE}: {sys.executable} cannot import it: {error}")


def test_what_many_files_need_is_said_once(folder: Path) -> None:
    files = [FILE, *(f"vllm/{name}.py" for name in "ab")]
    edits = [EnsureImport(file, "import not_installed") for file in files]

    found = verified(folder, *edits, others=dict.fromkeys(files, STOCK))

    error = "ModuleNotFoundError: No module named 'not_installed'"
    assert found.notes == (
        f"functions not compared: {min(files)} and 2 more: {sys.executable} cannot import them: {error}",
    )


@pytest.mark.parametrize("line", ["x = 1 / 0", "import vllm.below"])
def test_unchanged_code_fails(line: str, folder: Path) -> None:
    """Stock vLLM fails in the same way here, whatever kind of error it is."""
    found = verified(folder, insert("y = 1"), stock=f"{STOCK}{line}\n", others=OTHERS)

    assert found.problems == ()
    assert len(found.notes) == 1


def test_changed_modules_that_import_each_other(folder: Path) -> None:
    """Whether that works depends on which module is imported first, and vLLM begins with another one."""
    edits = (insert_import("from vllm.a import late"), InsertBefore("vllm/a.py", "", "late = 1", "early = 1"))

    found = verified(folder, *edits, others={"vllm/a.py": "import vllm.m\nlate = 1\n"})

    assert found.problems == ()
    assert [note.split(": ")[1] for note in found.notes] == ["vllm/a.py"]


@pytest.mark.parametrize(("low", "blamed"), [("x = 1 / 0", True), ("raise ValueError", True), ("x = 1", False)])
def test_causes_are_followed_through_unchanged_code(low: str, blamed: bool, folder: Path) -> None:  # noqa: FBT001
    stock = f"{STOCK}\ntry:\n    import vllm.low\nexcept Exception as error:\n    raise RuntimeError('no') from error\n"
    edits = (insert("y = 1"), InsertAfter("vllm/low.py", "", "start = 1", low))

    found = verified(folder, *edits, stock=stock, others={"vllm/low.py": "start = 1\n"})

    assert [problem.where for problem in found.problems] == (["vllm/low.py"] if blamed else [])
    assert found.notes == ()


def test_the_change_explains_what_it_needs(folder: Path) -> None:
    """The error that it raises counts, not the error that it caught."""
    code = "try:\n    x = anchor.gone\nexcept AttributeError as error:\n    raise RuntimeError('too old') from error"

    found = verified(folder, insert(code))

    assert found.problems == ()
    (note,) = found.notes
    assert note.endswith("cannot import it: RuntimeError: too old")
