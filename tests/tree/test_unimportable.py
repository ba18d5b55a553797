"""`verify --python` if a changed module cannot be imported: a problem if the change is to blame, a note otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from vpatch import AddFile, EnsureImport
from vpatch.core.overlay import Edit
from vpatch.tree.locate import Tree
from vpatch.tree.verify import Verified, verify

from tests.snippets import FILE, InsertAfter, InsertBefore, ReplaceExpr, applied, overlay

HELPER, NEEDY = "vllm/_vpatch/helper.py", "vllm/_vpatch/needy.py"
STOCK = """
anchor = 1

def f():
    return anchor

value = f()
"""


def verified(folder: Path, *edits: Edit, others: Mapping[str, str], stock: str = STOCK) -> Verified:
    """Apply an overlay to a checkout with the module `vllm.m` and `others`, and verify it."""
    files = {"vllm/__init__.py": "", FILE: stock, **others}
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


Make = Callable[[str], tuple[Edit, ...]]


def insert(code: str, *imports: str) -> Make:
    """Insert imports at the top of a module, and code in it."""
    return lambda file: (
        *(EnsureImport(file, one) for one in imports),
        *([InsertAfter(file, "", "anchor = 1", code)] if code else ()),
    )


OTHERS = {
    "vllm/other.py": "import sys\nif sys.platform == 'none':\n    conditional = 1\n",
    "vllm/lazy.py": "def __getattr__(name): raise AttributeError(name)\n",
}

# What a module gets, the file and line that are to blame, and the error.
FAULTS: dict[str, tuple[Make, str, int, str]] = {
    "unbound": (insert("if not anchor:\n    late = 1\nx = late"), "", 5, "NameError: name 'late' is not defined"),
    "block": (insert("if anchor:\n    x = 1 / (\n        anchor - 1\n    )"), "", 4, "ZeroDivisionError: division by"),
    "function": (lambda file: (ReplaceExpr(file, "f", "anchor", "anchor + 'x'"),), "", 5, "TypeError: unsupported"),
    "companion": (insert("", "from vllm._vpatch.helper import x"), HELPER, 2, "KeyError: 'gone'"),
    "absent": (insert("", "from vllm.other import gone"), "", 2, "ImportError: cannot import name 'gone' from 'vllm.o"),
}

# What a module gets that only lacks something around it, and the error.
LACKS: dict[str, tuple[Make, str]] = {
    "package": (insert("", "import not_installed"), "ModuleNotFoundError: No module named 'not_installed'"),
    "name": (insert("", "from math import gone"), "ImportError: cannot import name 'gone' from 'math'"),
    "attribute": (insert("x = math.gone", "import math"), "AttributeError: module 'math' has no attribute 'gone'"),
    "binary": (insert("", "import vllm.compiled"), "ModuleNotFoundError: No module named 'vllm.compiled'"),
    "extension": (insert("", "from vllm import _C"), "ImportError: cannot import name '_C'"),
    "platform": (insert("", "from vllm.other import conditional"), "ImportError: cannot import name 'conditional'"),
    "made_up": (insert("", "from vllm.lazy import gone"), "ImportError: cannot import name 'gone' from 'vllm.lazy'"),
    "library": (insert("x = ctypes.CDLL('libnone.so')", "import ctypes"), "OSError: libnone.so"),
    "device": (insert("raise RuntimeError('no GPU')"), "RuntimeError: no GPU"),
    "none": (insert("x = None\ny = x.major"), "AttributeError: 'NoneType' object has no"),
    "needy": (insert("", "from vllm._vpatch.needy import x"), "ModuleNotFoundError: No module named 'needed'"),
    # The error that the change raises counts, not the error that it caught.
    "explained": (
        insert("try:\n    x = anchor.gone\nexcept AttributeError as error:\n    raise RuntimeError('old') from error"),
        "RuntimeError: old",
    ),
}


def test_who_is_to_blame(folder: Path) -> None:
    makes = {name: case[0] for name, case in (FAULTS | LACKS).items()}
    edits = [edit for name, make in makes.items() for edit in make(f"vllm/{name}.py")]
    edits += [AddFile(HELPER, "x = {}['gone']\n"), AddFile(NEEDY, "import needed as x\n")]

    found = verified(folder, *edits, others=OTHERS | {f"vllm/{name}.py": STOCK for name in makes})

    problems = {problem.where: problem for problem in found.problems}
    assert len(problems) == len(FAULTS)
    for name, (_, file, line, error) in FAULTS.items():
        problem = problems[file or f"vllm/{name}.py"]
        begin = f"{sys.executable} fails in line {line}, in code that an overlay changed: {error}"
        assert (problem.what, problem.cause[: len(begin)]) == ("cannot be imported", begin)
    notes = {note.split(": ")[1]: note for note in found.notes}
    assert {*notes} == {f"vllm/{name}.py" for name in LACKS}
    for name, (_, error) in LACKS.items():
        begin = f"functions not compared: vllm/{name}.py: {sys.executable} cannot import it: {error}"
        assert notes[f"vllm/{name}.py"].startswith(begin)


def test_what_many_files_need_is_said_once(folder: Path) -> None:
    files = [FILE, *(f"vllm/{name}.py" for name in "ab")]
    edits = [EnsureImport(file, "import not_installed") for file in files]

    found = verified(folder, *edits, others=dict.fromkeys(files, STOCK))

    error = "ModuleNotFoundError: No module named 'not_installed'"
    assert found.notes == (
        f"functions not compared: {min(files)} and 2 more: {sys.executable} cannot import them: {error}",
    )


def test_unchanged_code_fails(folder: Path) -> None:
    """Stock vLLM fails in the same way here, whatever kind of error it is."""
    others = {"vllm/below.py": "x = not_there\n", "vllm/deep.py": f"{STOCK}import vllm.below\n"}
    edits = [edit for file in (FILE, "vllm/deep.py") for edit in insert("y = 1")(file)]

    found = verified(folder, *edits, stock=f"{STOCK}x = 1 / 0\n", others=others)

    assert (found.problems, len(found.notes)) == ((), 2)


def test_changed_modules_that_import_each_other(folder: Path) -> None:
    """Whether that works depends on which module is imported first, and vLLM begins with another one."""
    edits = (EnsureImport(FILE, "from vllm.a import late"), InsertBefore("vllm/a.py", "", "late = 1", "early = 1"))

    found = verified(folder, *edits, others={"vllm/a.py": "import vllm.m\nlate = 1\n"})

    assert found.problems == ()
    assert [note.split(": ")[1] for note in found.notes] == ["vllm/a.py"]


@pytest.mark.parametrize(
    ("raised", "low", "blamed"),
    [
        (" from error", "x = 1 / 0", True),
        (" from error", "raise ValueError", True),
        (" from error", "x = 1", False),
        ("", "raise ValueError", True),  # only of the lower module: unchanged code may expect its error
    ],
)
def test_causes_are_followed_through_unchanged_code(raised: str, low: str, folder: Path, *, blamed: bool) -> None:
    stock = f"{STOCK}\ntry:\n    import vllm.low\nexcept Exception as error:\n    raise RuntimeError('no'){raised}\n"
    edits = (InsertAfter(FILE, "", "anchor = 1", "y = 1"), InsertAfter("vllm/low.py", "", "start = 1", low))

    found = verified(folder, *edits, stock=stock, others={"vllm/low.py": "start = 1\n"})

    assert {problem.where for problem in found.problems} == ({"vllm/low.py"} if blamed else set())
    assert len(found.notes) == (not raised)
