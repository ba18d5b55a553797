"""The words of authors build exactly the edits and predicates that one would write out."""

from __future__ import annotations

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
    EnsureFutureAnnotations,
    EnsureImport,
    File,
    Imports,
    InsertAfter,
    InsertBefore,
    Lists,
    Part,
    ReplaceExpr,
    ReplaceFunction,
    ReplaceStatements,
    Sets,
    Shape,
    Takes,
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
    (file.defer_annotations(), EnsureFutureAnnotations(PATH)),
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
def test_each_word_is_an_edit_or_a_predicate(short: object, long: object) -> None:
    assert short == long


def test_a_companion_comes_with_its_import_and_once() -> None:
    companion = Companion("vpatch.errors")
    shape = Shape(
        "1", [companion.import_into(file, "Problem, Failure", "Problem as P"), [companion.files, companion.files]]
    )

    added, imported = [e.file for e in shape.edits if not isinstance(e, EnsureImport)], shape.edits[:2]
    assert added == ["vllm/_vpatch/errors.py"]
    assert imported == (
        EnsureImport(PATH, "from vllm._vpatch.errors import Problem, Failure"),
        EnsureImport(PATH, "from vllm._vpatch.errors import Problem as P"),
    )


def test_companions_that_import_each_other_come_together() -> None:
    companion = Companion("vpatch.errors", along=("testing", "errors"))

    assert [edit.file for edit in companion.files] == ["vllm/_vpatch/testing.py", "vllm/_vpatch/errors.py"]


def test_shapes_by_name_or_in_a_row() -> None:
    edit, when, note = method.delete("a"), method.contains("b"), "note"
    named = Part("p", {"2": Shape(edits=[edit], when=when, note=note), "1": edit})

    assert named == Part("p", (Shape("2", (edit,), when, note), Shape("1", (edit,))))
    assert named.files == (PATH,)


def test_a_definition_is_replaced_whole() -> None:
    with pytest.raises(ValueError, match="within"):
        Block(PATH, "f", ("if x",)).replace("def f(): ...", known="f00")
