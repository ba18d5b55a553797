"""Whole plans: pure, deterministic, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import vpatch as v
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, Edit, Overlay, Part, Shape
from vpatch.core.verdict import EditFinding, State
from vpatch.core.workspace import Workspace

import tests.snippets as s
from tests.snippets import FILE, applied, in_any_order, make, module, names_of_fragments, overlay

__all__ = ["names_of_fragments"]

SOURCE = "def f():\n    a(b(1), 2)\n    c()\n    d()\n"


def two(one: Edit, other: Edit) -> tuple[Catalogued, Catalogued]:
    return overlay(one, name="one"), overlay(other, name="two")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (s.ReplaceExpr(FILE, "f", "b(1)", "x"), s.ReplaceExpr(FILE, "f", "b(1)", "y")),
        (s.ReplaceExpr(FILE, "f", "b(1)", "x"), s.ReplaceExpr(FILE, "f", "a(b(1), 2)", "y")),
        (s.ReplaceExpr(FILE, "f", "1", "x"), s.AddKeyword(FILE, "f", "a(...)", "k=1")),
        (s.InsertAfter(FILE, "f", "c()\nd()", "x()"), s.ReplaceExpr(FILE, "f", "d()", "y()")),
        (s.InsertAfter(FILE, "f", "c()", "x()"), s.InsertBefore(FILE, "f", "d()", "y()")),  # in the same place
        (s.InsertAfter(FILE, "f", "c()", "x()"), s.InsertAfter(FILE, "f", "c()", "y()")),
        (s.InsertBefore(FILE, "f", "a(...)", "x()"), s.InsertBefore(FILE, "f", "a(...)", "y()")),
        (s.InsertAfter(FILE, "f", "a(...)", "x()"), s.AddKeyword(FILE, "f", "a(...)", "k=1")),  # `...` is another then
        (s.InsertAfter(FILE, "f", "c()", "x()"), s.ReplaceStatements(FILE, "f", "c()", "y()")),
        (s.header(FILE, "", "def f()", "def f(x=1)"), s.header(FILE, "", "def f()", "def f(y=1)")),
        (s.ReplaceStatements(FILE, "f", "c()\nd()", "x()"), s.InsertAfter(FILE, "f", "d()", "y()")),
        (s.ReplaceStatements(FILE, "", "def f():\n    ...", "def g(): pass"), s.ReplaceExpr(FILE, "f", "2", "y")),
        (v.AddFile("vllm/_vpatch/x.py", "1"), v.AddFile("vllm/_vpatch/x.py", "2")),
        (v.AddFunction(FILE, "", "def g(): 1"), v.AddFunction(FILE, "", "def g(): 2")),
        (v.EnsureImport(FILE, "from a import x"), v.EnsureImport(FILE, "from b import x")),
    ],
)
def test_two_overlays_that_change_the_same_code_are_in_conflict(one: Edit, other: Edit) -> None:
    """Once one is applied, the other is refused, too: which of them is applied first decides nothing."""
    changeset = make(module(SOURCE), *two(one, other))
    in_turn = [make(applied(module(SOURCE), first), *two(one, other)) for first in two(one, other)]

    assert all(made.problems and not made.files for made in in_turn)

    assert [one.state for one in changeset.before] == [State.CONFLICT, State.CONFLICT]
    assert changeset.before == changeset.after
    assert changeset.files == {}
    assert [(p.what, p.cause) for p in changeset.problems] == [
        ("conflict", f"{names} change the same code") for names in ("one and two", "two and one")
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (s.ReplaceExpr(FILE, "f", "b(1)", "x"), s.ReplaceExpr(FILE, "f", "2", "y")),
        (s.ReplaceExpr(FILE, "f", "b(1)", "x"), s.InsertAfter(FILE, "f", "c()", "y()")),
        (s.InsertAfter(FILE, "f", "c()", "x()"), s.InsertBefore(FILE, "f", "c()", "y()")),
        (s.ReplaceStatements(FILE, "f", "c()", "x()"), s.InsertBefore(FILE, "f", "d()", "y()")),
        (v.AddFunction(FILE, "f", "def g(): 1"), s.InsertAfter(FILE, "f", "c()", "h(lambda: g())")),
        (v.AddFunction(FILE, "", "def g(): 1"), v.AddFunction(FILE, "f", "def g(): 1")),
    ],
)
def test_two_overlays_change_one_function_in_any_order(one: Edit, other: Edit) -> None:
    in_any_order(module(SOURCE), *two(one, other))


def test_an_edit_in_code_that_another_overlay_made_is_a_conflict() -> None:
    one, other = two(s.InsertAfter(FILE, "f", "c()", "x(9)"), s.ReplaceExpr(FILE, "f", "9", "8"))
    tree = applied(module(SOURCE), one)

    assert [one.state for one in make(tree, one, other).before] == [State.CONFLICT, State.CONFLICT]


def test_overlays_that_fail_only_together_are_in_conflict() -> None:
    one, other = two(s.InsertAfter(FILE, "f", "c()", "x(2)"), s.ReplaceExpr(FILE, "f", "2", "y"))

    changeset = make(module(SOURCE), one, other)

    assert [one.state for one in changeset.before] == [State.PENDING, State.PENDING]
    assert changeset.files == {}
    assert [(p.what, p.where) for p in changeset.problems] == [("conflict", "two")]
    cause = "part is drifted once the edits are made, not applied: the code that has the mark `# vpatch: two` in line 2"
    assert cause in changeset.problems[0].cause


def test_one_problem_stops_everything_and_all_are_reported() -> None:
    good = overlay(s.ReplaceExpr(FILE, "f", "2", "3"), name="good")
    bad = overlay(s.ReplaceExpr(FILE, "f", "9", "3"), s.ReplaceExpr("gone.py", "", "9", "3"), name="bad")

    changeset = make(module(SOURCE), good, bad)

    assert [(one.id, one.state) for one in changeset.before] == [("bad", State.DRIFTED), ("good", State.PENDING)]
    assert changeset.files == {}
    assert [(p.where, p.cause) for p in changeset.problems] == [(FILE, "`9` is not there"), ("gone.py", "no such file")]


@dataclass(frozen=True)
class Faulty:
    """An edit whose postcondition never holds."""

    edit: Edit
    gives: bytes
    file: str = FILE
    scope: str = ""

    def state(self, files: Workspace, overlay: str) -> EditFinding:
        return self.edit.state(files, overlay)

    def apply(self, files: Workspace, overlay: str) -> None:
        files.put(FILE, self.gives)


@pytest.mark.parametrize("gives", [b"x = (", b"y = 1\n", b"x = b\n"])
def test_an_edit_without_its_postcondition_is_a_bug(gives: bytes) -> None:
    faulty = overlay(Faulty(s.ReplaceExpr(FILE, "", "a", "b"), gives), name="faulty")
    good = overlay(v.AddFile("vllm/_vpatch/x.py", "1"), name="good")

    for items in ([faulty], [faulty, good]):
        with pytest.raises(RuntimeError, match=r"part is .* once the edits are made, not applied"):
            Engine(items).plan(module("x = a\n").get)
    with pytest.raises(RuntimeError):  # two edits that exclude each other
        make(module("x = a\n"), overlay(s.ReplaceExpr(FILE, "", "a", "b"), s.ReplaceExpr(FILE, "", "a", "c")))


def parts(**edits: Edit) -> Catalogued:
    made = tuple(Part(name, (Shape("1.0", (edit,)),)) for name, edit in edits.items())
    return Catalogued("parts", Overlay("Several parts.", made), "")


def test_an_applied_part_does_not_hide_a_pending_one() -> None:
    done, todo = s.ReplaceExpr(FILE, "f", "2", "3"), s.ReplaceExpr(FILE, "f", "1", "4")
    both, half = parts(done=done, todo=todo), applied(module(SOURCE), parts(done=done))

    # One statement has the only mark, but each part is judged by its own code.
    assert [p.state for p in make(half, both).before[0].parts] == [State.APPLIED, State.PENDING]
    assert applied(half, both)[FILE] == b"def f():\n    a(b(4), 3)  # vpatch: parts\n    c()\n    d()\n"


STOCK, MARK = "a(b(1), 2)", "  # vpatch: parts"
ALONE = [(STOCK, f"a(b(1), 3){MARK}"), (STOCK, f"a(b(4), 2){MARK}")]


@pytest.mark.parametrize(
    ("there", "known", "states", "lines"),
    [
        ((), False, "pending pending", ALONE),
        (("one", "other"), True, "applied applied", ALONE),
        (("one", "other"), False, "applied applied", [None, None]),  # the code before is not known
        (("one",), True, "applied pending", [ALONE[0], (f"a(b(1), 3){MARK}", f"a(b(4), 3){MARK}")]),
    ],
)
def test_what_each_part_changes_of_one_statement(
    there: tuple[str, ...], states: str, lines: list[tuple[str, str] | None], *, known: bool
) -> None:
    edits = {"one": s.ReplaceExpr(FILE, "f", "2", "3"), "other": s.ReplaceExpr(FILE, "f", "1", "4")}
    old, item = module(SOURCE), parts(**edits)
    tree = applied(old, parts(**{name: edits[name] for name in there})) if there else old

    found = Engine([item]).parts(tree.get, item, old if known else None)

    assert [one.verdict.state for one in found] == states.split()
    assert [one.files for one in found] == [
        {FILE: tuple(SOURCE.replace(STOCK, text).encode() for text in pair)} if pair else {} for pair in lines
    ]


def test_a_real_plan_reads_only_its_files_and_is_deterministic(pristine: Callable[[str], Path]) -> None:
    root, asked = pristine("0.20.2"), set[str]()

    def read(file: str) -> bytes | None:
        asked.add(file)
        path = root / file
        return path.read_bytes() if path.is_file() else None

    engine = Engine(select(discover(), ("turboquant-hybrid",)))
    first = engine.plan(read)

    read_files = {file for file in asked if (root / file).is_file()}
    called = {*engine.overlays[0].calls.files} if engine.overlays[0].calls else set()
    assert read_files | first.files.keys() == {*engine.files}
    assert read_files - called - first.files.keys() == {"vllm/config/vllm.py"} - called
    assert Engine(engine.overlays).plan(read) == first

    asked.clear()
    drifted = engine.status(lambda file: None if "interface" in file else read(file))
    assert drifted[0].state is State.DRIFTED
    assert "vllm/config/cache.py" in asked


def test_a_conflict_is_that_of_the_part() -> None:
    item = parts(first=s.ReplaceExpr(FILE, "f", "2", "3"), second=s.ReplaceExpr(FILE, "f", "1", "4"))

    mine, _ = make(module(SOURCE), item, overlay(s.ReplaceExpr(FILE, "f", "2", "5"), name="z")).before

    assert [part.state for part in mine.parts] == [State.CONFLICT, State.PENDING]
    assert mine.because == "parts and z change the same code"


def test_different_reasons_name_their_parts() -> None:
    item = parts(first=s.ReplaceExpr(FILE, "f", "q1", "3"), second=s.ReplaceExpr(FILE, "g", "1", "4"))

    (found,) = make(module(SOURCE), item).before

    assert found.because == "first: vllm/m.py: `q1` is not there; second: vllm/m.py: no 'g' here"
    assert len(found.problems) == 2


def test_code_that_is_fine_where_it_was_applied_is_judged_again_where_it_is_not() -> None:
    """The applied code reads a name that nothing binds, as upstream's own may; to apply it would break the function."""
    old = {FILE: b"def f():\n    first = 1\n    second = 2\n    return first, second\n"}
    edit = s.DeleteStatements(FILE, "f", "first = 1")
    item, files = overlay(edit), Workspace(old.get)
    edit.apply(files, item.id)
    applied = {FILE: files.read(FILE)}
    engine = Engine([item])

    assert engine.status(applied.get)[0].state is State.APPLIED
    assert engine.plan(old.get).before[0].state is State.DRIFTED
    assert engine.status(applied.get)[0].state is State.APPLIED
