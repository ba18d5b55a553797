"""Every predicate has three answers; for a file that is missing or not Python, it is unknown."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest
from vpatch import All, AnyOf, Contains, Defines, Folder, HasFile, HasFolder, Imports, Lists, Not, Sets, Takes, Unclear
from vpatch.core.engine import Engine
from vpatch.core.listing import pack
from vpatch.core.overlay import Predicate
from vpatch.core.parsed import ParsedModules
from vpatch.core.workspace import Workspace

from tests.snippets import FILE, module, overlay

CODE = """
from typing import Literal, TypeAlias
from other import Original as Other

Kind: TypeAlias = Literal["a_1", "b" "c"]
kinds = ["x"]
twice = 1
twice = 2

class Near:
    far: int

class C(Near, Other):
    x = 1
    def __init__(self):
        self.y, self.z = 1, 2
    def m(self, first, /, second, *, third): ...

    def n():
        if a: x = f(1); y
        def inner(cls, p): ...
        from z import imported

def twins(): ...
class Twins: ...
if kinds:
    def twins(): ...
    class Twins: ...
"""

ANSWERS: list[tuple[Predicate, bool | None]] = [
    (Defines(FILE, "C"), True),
    (Defines(FILE, "C.m"), True),
    (Defines(FILE, "C.n.inner"), True),
    (Defines(FILE, "m"), False),
    (Takes(FILE, "C.m", "second"), True),
    (Takes(FILE, "C.m", "third"), True),
    (Takes(FILE, "C.m", "first", first=True), True),
    (Takes(FILE, "C.m", "second", first=True), False),
    (Takes(FILE, "C.n.inner", "p", first=True), True),
    (Takes(FILE, "C.n", "x"), False),
    (Takes(FILE, "C", "x"), None),
    (Takes(FILE, "D", "x"), None),
    (Takes(FILE, "twins", "x"), None),
    (Contains(FILE, "C.n", "f(...)"), True),
    (Contains(FILE, "C.n", "f(2)"), False),
    (Contains(FILE, "C.n", "x = f(1)"), True),
    (Contains(FILE, "C.n", "x = f(1)\ny"), True),
    (Contains(FILE, "C.n", "y\nx = f(1)"), False),
    (Contains(FILE, "C.n", "if a:\n    ..."), True),
    (Contains(FILE, "C.n", "imported"), False),
    (Contains(FILE, "", "kinds = [...]\n...\ntwice = 2"), True),
    (Contains(FILE, "C.q", "x"), None),
    (Imports(FILE, "Literal"), True),
    (Imports(FILE, "imported"), False),
    (Imports(FILE, "imported", "C.n"), True),
    (Imports(FILE, "Literal", "C.n"), False),
    (Imports(FILE, "Other"), False),
    (Imports(FILE, "imported", "C.q"), None),
    (Lists(FILE, "Kind", "a_*"), True),
    (Lists(FILE, "Kind", "z*"), False),
    (Lists(FILE, "kinds", "x"), True),
    (Lists(FILE, "twice", "x"), None),
    (Lists(FILE, "nothing", "x"), None),
    (Sets(FILE, "C", ("x", "y", "z", "far", "__init__")), True),
    (Sets(FILE, "C", ("x", "other")), False),
    (Sets(FILE, "Twins", ("x",)), None),
    (Sets(FILE, "D", ("x",)), None),
]
YES, NO, UNKNOWN = Defines(FILE, "C"), Defines(FILE, "D"), Takes(FILE, "D", "x")
ANSWERS += [
    (YES.means("words"), True),
    (NO.means("words"), False),
    (Not(YES), False),
    (Not(NO), True),
    (Not(UNKNOWN), None),
    (Unclear(YES), None),
    (Unclear(NO), False),
    (Unclear(UNKNOWN), None),
    (All((YES, YES)), True),
    (All((YES, UNKNOWN)), None),
    (All((UNKNOWN, NO)), False),
    (All(()), True),
    (AnyOf((NO, YES)), True),
    (AnyOf((UNKNOWN, YES)), True),
    (AnyOf((NO, UNKNOWN)), None),
    (AnyOf((NO, NO)), False),
    (AnyOf(()), False),
]


def workspace(files: dict[str, bytes], predicate: Predicate) -> Workspace:
    return Workspace(files.get, Engine([overlay(merged=predicate)])._cache)  # of the code that a predicate reads


@pytest.mark.parametrize(("predicate", "holds"), ANSWERS, ids=str)
def test_the_answer(predicate: Predicate, *, holds: bool | None) -> None:
    answer = predicate.ask(workspace(dict(module(CODE)), predicate))

    assert answer.holds is holds
    assert answer.because or isinstance(predicate, All | AnyOf)


def test_operators_combine_predicates() -> None:
    assert All((YES, NO)) == YES & NO
    assert AnyOf((YES, NO)) == YES | NO
    assert Not(YES) == ~YES
    assert AnyOf((Not(All((YES, NO))), NO)) == ~(YES & NO) | NO


@pytest.mark.parametrize("data", [None, b"def (", b"x = '\xff'\n"])
@pytest.mark.parametrize("predicate", [p for p, _ in ANSWERS if getattr(p, "file", "")], ids=str)
def test_a_missing_file_is_unknown(predicate: Predicate, data: bytes | None) -> None:
    files = {} if data is None else {FILE: data}
    answer = predicate.ask(workspace(files, predicate))

    assert answer.holds is None
    assert answer.file == FILE


@pytest.mark.parametrize(
    ("names", "exists", "has", "told"),
    [
        (None, False, None, "d/: no such folder"),
        ((), True, False, "d/ has no sm120_*"),
        (("xsm120_a.cuh", "sm90_a.cuh"), True, False, "d/ has no sm120_*"),
        (("sm90_a.cuh", "sm120_b.cuh"), True, True, "d/ has sm120_b.cuh"),
    ],
)
def test_a_folder(names: tuple[str, ...] | None, exists: bool, has: bool | None, told: str) -> None:  # noqa: FBT001
    folder = Folder("d")
    assert (folder.exists, folder.has("sm120_*")) == (HasFolder("d/"), HasFile("d/", "sm120_*"))
    files = Workspace({"d/": None if names is None else pack(names)}.get)

    listed, found = folder.exists.ask(files), folder.has("sm120_*").ask(files)

    assert listed.holds is exists
    assert listed.because == f"the tree {'has' if exists else 'does not have'} the folder d/"
    assert (found.holds, found.because) == (has, told)


def test_the_engine_reads_the_folders_that_predicates_list() -> None:
    assert "d/" in Engine([overlay(merged=Folder("d").has("x"))]).files


def test_a_module_is_asked_once_for_equal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, cache, predicate = (
        create_autospec(Defines._answer, side_effect=Defines._answer),
        ParsedModules(),
        Defines(FILE, "C"),
    )
    monkeypatch.setattr(Defines, "_answer", asked)
    codes = [CODE, CODE, "", "", CODE]

    found = [predicate.ask(Workspace({FILE: code.encode()}.get, cache)).holds for code in codes]

    assert found == [True, True, False, False, True]
    assert asked.call_count == 2
    changed = Workspace({FILE: CODE.encode()}.get, cache)
    changed.put(FILE, b"")  # as an edit does
    assert predicate.ask(changed).holds is False
