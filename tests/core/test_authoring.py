"""The shorthands for authors build the edits and predicates that one would write out, and probes as scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import vpatch as v
from vpatch import Companion, EnsureImport, File, Part, Shape, probe

import tests.snippets as s

PATH = "vllm/a.py"
file = File(PATH)
method = file.function("C.m")
branch = method.within("if x")
USES = ("self.y",)

SAME = [
    (file.ensure_import("import b"), v.EnsureImport(PATH, "import b")),
    (file.ensure_import("import b", typing_only=True), v.EnsureImport(PATH, "import b", typing_only=True)),
    (method.ensure_import("import b"), v.EnsureImport(PATH, "import b", "C.m")),
    (file.defer_annotations(), v.EnsureImport(PATH, "from __future__ import annotations")),
    (file.add_function("def f(): ..."), v.AddFunction(PATH, "", "def f(): ...")),
    (file.class_("C").add_function("def f(self): ...", uses=USES), v.AddFunction(PATH, "C", "def f(self): ...", USES)),
    (branch.replace_expression("a", "b"), s.ReplaceExpr(PATH, "C.m", "a", "b", within=("if x",))),
    (method.replace_statements("a", "b", count=2), s.ReplaceStatements(PATH, "C.m", "a", "b", count=2)),
    (branch.insert_before("a", "b", uses=USES), s.InsertBefore(PATH, "C.m", "a", "b", within=("if x",), uses=USES)),
    (branch.within("else").insert_after("a", "b"), s.InsertAfter(PATH, "C.m", "a", "b", within=("if x", "else"))),
    (branch.delete("a"), s.DeleteStatements(PATH, "C.m", "a", within=("if x",))),
    (method.add_keyword("f(...)", "a=1"), s.AddKeyword(PATH, "C.m", "f(...)", "a=1")),
    (file.contains("a"), v.Contains(PATH, "", "a")),
    (method.contains("a"), v.Contains(PATH, "C.m", "a")),
    (file.defines("C"), v.Defines(PATH, "C")),
    (file.imports("a"), v.Imports(PATH, "a")),
    (method.imports("a"), v.Imports(PATH, "a", "C.m")),
    (file.lists("K", "a*"), v.Lists(PATH, "K", "a*")),
    (file.sets("C", "a", "b"), v.Sets(PATH, "C", ("a", "b"))),
    (method.takes("a"), v.Takes(PATH, "C.m", "a")),
    (method.takes_first("a"), v.Takes(PATH, "C.m", "a", first=True)),
]


@pytest.mark.parametrize(("short", "long"), SAME, ids=[str(long) for _, long in SAME])
def test_each_shorthand_is_an_edit_or_a_predicate(short: object, long: object) -> None:
    assert short == long


def test_an_import_adds_companions_once() -> None:
    companion = Companion("vpatch.errors", along=("testing", "errors"))
    imports = companion.import_into(file, "Problem, Failure", "Problem as P")
    shape = Shape("1", [imports, [companion.files, companion.files]])

    assert shape.edits[:2] == (
        EnsureImport(PATH, "from vllm._vpatch.errors import Problem, Failure"),
        EnsureImport(PATH, "from vllm._vpatch.errors import Problem as P"),
    )
    assert [edit.file for edit in shape.edits[2:]] == ["vllm/_vpatch/testing.py", "vllm/_vpatch/errors.py"]


def test_shapes_by_name_or_in_a_row() -> None:
    edit, when, note = method.delete("a"), method.contains("b"), "note"
    named = Part("p", {"2": Shape(edits=[edit], when=when, note=note), "1": edit})

    assert named == Part("p", (Shape("2", (edit,), when, note), Shape("1", (edit,))))
    assert named.files == (PATH,)


MODULES = {
    "__init__": "",
    "common": "from some_probes.deeper import VALUE\n\nQUOTED = 'it\\'s \"{VALUE}\"\\n'\n",
    "deeper": "VALUE = 3\n",
    "both": """
from __future__ import annotations
from some_probes.common import QUOTED
from some_probes.deeper import VALUE

def main():
    print(repr(QUOTED), VALUE)
    assert VALUE == 4, "not 4"

if __name__ == "__main__":
    main()
""",
}


def test_a_probe_runs_as_main_with_what_it_imports_from_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A traceback names the module."""
    folder = tmp_path / "some_probes"
    folder.mkdir()
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    one = probe("some_probes", "both", gpu=True)

    assert (one.name, one.gpu) == ("both", True)
    assert not probe("some_probes", "deeper").gpu
    command = [sys.executable, "-I", "-c", one.script]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "'it\\'s \"{VALUE}\"\\n' 3\n")
    assert ran.stderr.splitlines()[-1] == "AssertionError: not 4"
    assert '  File "both.py", line 8, in main' in ran.stderr
    with pytest.raises(FileNotFoundError, match="absent"):
        probe("some_probes", "absent")
