"""The shorthands for authors build the edits and predicates that one would write out, and probes as scripts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch import (
    AddFunction,
    AddKeyword,
    AddParameter,
    Block,
    Companion,
    Contains,
    Defines,
    DeleteStatements,
    EnsureImport,
    File,
    Imports,
    InsertAfter,
    InsertBefore,
    Lists,
    Part,
    Probe,
    ReplaceExpr,
    ReplaceFunction,
    ReplaceStatements,
    Sets,
    Shape,
    Takes,
    probe,
)

PATH = "vllm/a.py"
file = File(PATH)
method = file.function("C.m")
branch = method.within("if x")
USES = ("self.y",)

SAME = [
    (file.ensure_import("import b"), EnsureImport(PATH, "import b")),
    (file.ensure_import("import b", typing_only=True), EnsureImport(PATH, "import b", typing_only=True)),
    (method.ensure_import("import b"), EnsureImport(PATH, "import b", "C.m")),
    (file.defer_annotations(), EnsureImport(PATH, "from __future__ import annotations")),
    (file.add_function("def f(): ..."), AddFunction(PATH, "", "def f(): ...")),
    (file.class_("C").add_function("def f(self): ...", uses=USES), AddFunction(PATH, "C", "def f(self): ...", USES)),
    (method.replace("def m(self): ...", known="f00"), ReplaceFunction(PATH, "C.m", ("f00",), "def m(self): ...")),
    (method.replace("def m(): ...", known=("a", "b")), ReplaceFunction(PATH, "C.m", ("a", "b"), "def m(): ...")),
    (branch.replace_expression("a", "b"), ReplaceExpr(PATH, "C.m", "a", "b", within=("if x",))),
    (method.replace_statements("a", "b", count=2), ReplaceStatements(PATH, "C.m", "a", "b", count=2)),
    (branch.insert_before("a", "b", uses=USES), InsertBefore(PATH, "C.m", "a", "b", within=("if x",), uses=USES)),
    (branch.within("else").insert_after("a", "b"), InsertAfter(PATH, "C.m", "a", "b", within=("if x", "else"))),
    (branch.delete("a"), DeleteStatements(PATH, "C.m", "a", within=("if x",))),
    (method.add_keyword("f(...)", "a=1"), AddKeyword(PATH, "C.m", "f(...)", "a=1")),
    (method.add_parameter("a: int", after="self"), AddParameter(PATH, "C.m", "a: int", "self")),
    (file.contains("a"), Contains(PATH, "", "a")),
    (method.contains("a"), Contains(PATH, "C.m", "a")),
    (file.defines("C"), Defines(PATH, "C")),
    (file.imports("a"), Imports(PATH, "a")),
    (method.imports("a"), Imports(PATH, "a", "C.m")),
    (file.lists("K", "a*"), Lists(PATH, "K", "a*")),
    (file.sets("C", "a", "b"), Sets(PATH, "C", ("a", "b"))),
    (method.takes("a"), Takes(PATH, "C.m", "a")),
    (method.takes_first("a"), Takes(PATH, "C.m", "a", first=True)),
]


@pytest.mark.parametrize(("short", "long"), SAME, ids=[str(long) for _, long in SAME])
def test_each_shorthand_is_an_edit_or_a_predicate(short: object, long: object) -> None:
    assert short == long


def test_an_import_adds_the_companion_once() -> None:
    companion = Companion("vpatch.errors")
    imports = companion.import_into(file, "Problem, Failure", "Problem as P")
    shape = Shape("1", [imports, [companion.files, companion.files]])

    added, imported = [e.file for e in shape.edits if not isinstance(e, EnsureImport)], shape.edits[:2]
    assert added == ["vllm/_vpatch/errors.py"]
    assert imported == (
        EnsureImport(PATH, "from vllm._vpatch.errors import Problem, Failure"),
        EnsureImport(PATH, "from vllm._vpatch.errors import Problem as P"),
    )


def test_companions_that_import_each_other_are_added_together() -> None:
    companion = Companion("vpatch.errors", along=("testing", "errors"))

    assert [edit.file for edit in companion.files] == ["vllm/_vpatch/testing.py", "vllm/_vpatch/errors.py"]


def test_shapes_by_name_or_in_a_row() -> None:
    edit, when, note = method.delete("a"), method.contains("b"), "note"
    named = Part("p", {"2": Shape(edits=[edit], when=when, note=note), "1": edit})

    assert named == Part("p", (Shape("2", (edit,), when, note), Shape("1", (edit,))))
    assert named.files == (PATH,)


def test_a_definition_is_replaced_as_a_whole() -> None:
    with pytest.raises(ValueError, match="within"):
        Block(PATH, "f", ("if x",)).replace("def f(): ...", known="f00")


MODULES = {
    "__init__": "",
    "common": """
from __future__ import annotations
from some_probes.deeper import VALUE

QUOTED = 'it\\'s "{VALUE}"\\n'
""",
    "deeper": "VALUE = 3\n",
    "alone": """
if __name__ == "__main__":
    print("alone")
""",
    "both": """
from __future__ import annotations
from some_probes.common import QUOTED
from some_probes.deeper import VALUE

if __name__ == "__main__":
    print(repr(QUOTED), VALUE)
""",
    "wrong": """
from some_probes.common import VALUE

def main():
    assert VALUE == 4, "not 4"

main()
""",
}

Made = Callable[[str], Probe]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Return a function that makes the probe of a module of a package that only the test has."""
    package = "some_probes"
    (tmp_path / package).mkdir()
    for name, text in MODULES.items():
        (tmp_path / package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)
    return lambda name: probe(package, name, gpu=name == "alone")


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", script]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_probe_runs_as_main(made: Made, tmp_path: Path) -> None:
    one = made("alone")

    assert (one.name, one.gpu) == ("alone", True)
    assert run(one.script, tmp_path / "some_probes").stdout == "alone\n"


def test_a_probe_contains_what_it_imports_from_its_package(made: Made, tmp_path: Path) -> None:
    one = made("both")
    ran = run(one.script, tmp_path / "some_probes")

    assert not one.gpu
    assert (ran.stdout, ran.stderr) == ("'it\\'s \"{VALUE}\"\\n' 3\n", "")


def test_a_traceback_names_the_module(made: Made, tmp_path: Path) -> None:
    ran = run(made("wrong").script, tmp_path / "some_probes")

    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == "AssertionError: not 4"
    assert '  File "wrong.py", line 5, in main' in ran.stderr


def test_a_missing_module(made: Made) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        made("absent")
