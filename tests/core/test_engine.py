"""Whole plans: pure, deterministic, all or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from vpatch import (
    AddFile,
    AddFunction,
    AddKeyword,
    DeleteStatements,
    EnsureImport,
    InsertAfter,
    InsertBefore,
    ReplaceExpr,
    ReplaceFunction,
    ReplaceStatements,
)
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, Edit, Overlay, Part, Reach, Shape
from vpatch.core.syntax import fingerprint
from vpatch.core.verdict import Finding, State
from vpatch.core.workspace import Workspace

from tests.snippets import FILE, applied, in_any_order, make, module, names_of_fragments, overlay

__all__ = ["names_of_fragments"]

SOURCE = "def f():\n    a(b(1), 2)\n    c()\n    d()\n"
FORM = fingerprint(Workspace(module(SOURCE).get).source(FILE).module.body[0])


def two(one: Edit, other: Edit) -> tuple[Catalogued, Catalogued]:
    return overlay(one, name="one"), overlay(other, name="two")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ReplaceExpr(FILE, "f", "b(1)", "x"), ReplaceExpr(FILE, "f", "b(1)", "y")),
        (ReplaceExpr(FILE, "f", "b(1)", "x"), ReplaceExpr(FILE, "f", "a(b(1), 2)", "y")),
        (ReplaceExpr(FILE, "f", "1", "x"), AddKeyword(FILE, "f", "a(...)", "k=1")),
        (InsertAfter(FILE, "f", "c()", "x()"), InsertBefore(FILE, "f", "c()", "y()")),
        (InsertAfter(FILE, "f", "c()\nd()", "x()"), ReplaceExpr(FILE, "f", "d()", "y()")),
        (ReplaceStatements(FILE, "f", "c()\nd()", "x()"), InsertAfter(FILE, "f", "d()", "y()")),
        (ReplaceFunction(FILE, "f", (FORM,), "def f(): ..."), ReplaceExpr(FILE, "f", "2", "y")),
        (AddFile("vllm/_vpatch/x.py", "1"), AddFile("vllm/_vpatch/x.py", "2")),
        (AddFunction(FILE, "", "def g(): 1"), AddFunction(FILE, "", "def g(): 2")),
        (EnsureImport(FILE, "from a import x"), EnsureImport(FILE, "from b import x")),
    ],
)
def test_two_overlays_that_change_the_same_code_are_in_conflict(one: Edit, other: Edit) -> None:
    changeset = make(module(SOURCE), *two(one, other))

    assert [v.state for v in changeset.before] == [State.CONFLICT, State.CONFLICT]
    assert changeset.before == changeset.after
    assert changeset.files == {}
    assert [(p.what, p.cause) for p in changeset.problems] == [
        ("conflict", f"{names} change the same code") for names in ("one and two", "two and one")
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ReplaceExpr(FILE, "f", "b(1)", "x"), ReplaceExpr(FILE, "f", "2", "y")),
        (ReplaceExpr(FILE, "f", "b(1)", "x"), InsertAfter(FILE, "f", "c()", "y()")),
        (InsertAfter(FILE, "f", "c()", "x()"), InsertBefore(FILE, "f", "d()", "y()")),
        (AddFunction(FILE, "f", "def g(): 1"), InsertAfter(FILE, "f", "c()", "h(lambda: g())")),
        (AddFunction(FILE, "", "def g(): 1"), AddFunction(FILE, "f", "def g(): 1")),
    ],
)
def test_two_overlays_change_one_function_in_any_order(one: Edit, other: Edit) -> None:
    in_any_order(module(SOURCE), *two(one, other))


def test_an_edit_in_code_that_another_overlay_made_is_a_conflict() -> None:
    one, other = two(InsertAfter(FILE, "f", "c()", "x(9)"), ReplaceExpr(FILE, "f", "9", "8"))
    tree = applied(module(SOURCE), one)

    assert [v.state for v in make(tree, one, other).before] == [State.CONFLICT, State.CONFLICT]


def test_overlays_that_fail_only_together_are_in_conflict() -> None:
    one, other = two(InsertAfter(FILE, "f", "c()", "x(2)"), ReplaceExpr(FILE, "f", "2", "y"))

    changeset = make(module(SOURCE), one, other)

    assert [v.state for v in changeset.before] == [State.PENDING, State.PENDING]
    assert changeset.files == {}
    assert [(p.what, p.where) for p in changeset.problems] == [("conflict", "two")]
    cause = "part is drifted once the edits are made, not applied: vllm/m.py: `2` is there 2 times"
    assert cause in changeset.problems[0].cause


def test_one_problem_stops_everything_and_all_are_reported() -> None:
    good = overlay(ReplaceExpr(FILE, "f", "2", "3"), name="good")
    bad = overlay(ReplaceExpr(FILE, "f", "9", "3"), ReplaceExpr("gone.py", "", "9", "3"), name="bad")

    changeset = make(module(SOURCE), good, bad)

    assert [(v.id, v.state) for v in changeset.before] == [("bad", State.DRIFTED), ("good", State.PENDING)]
    assert changeset.files == {}
    assert [(p.where, p.cause) for p in changeset.problems] == [(FILE, "`9` is not there"), ("gone.py", "no such file")]


@dataclass(frozen=True)
class Faulty:
    """An edit whose postcondition never holds."""

    edit: ReplaceExpr
    gives: bytes
    file: str = FILE
    scope: str = ""

    @property
    def reach(self) -> Reach:
        return ((FILE, ""),)

    def state(self, files: Workspace, overlay: str) -> Finding:
        return self.edit.state(files, overlay)

    def apply(self, files: Workspace, overlay: str) -> None:
        files.put(FILE, self.gives)


@pytest.mark.parametrize("gives", [b"x = (", b"y = 1\n", b"x = b\n"])
def test_an_edit_without_its_postcondition_is_a_bug(gives: bytes) -> None:
    faulty = overlay(Faulty(ReplaceExpr(FILE, "", "a", "b"), gives), name="faulty")
    good = overlay(AddFile("vllm/_vpatch/x.py", "1"), name="good")

    for items in ([faulty], [faulty, good]):
        with pytest.raises(RuntimeError, match=r"part is .* once the edits are made, not applied"):
            Engine(items).plan(module("x = a\n").get)


def test_two_edits_of_one_overlay_that_exclude_each_other_are_a_bug() -> None:
    with pytest.raises(RuntimeError):
        make(module("x = a\n"), overlay(ReplaceExpr(FILE, "", "a", "b"), ReplaceExpr(FILE, "", "a", "c")))


def test_an_applied_part_does_not_hide_a_pending_one() -> None:
    done = Part("done", (Shape("1.0", (ReplaceExpr(FILE, "f", "2", "3"),)),))
    todo = Part("todo", (Shape("1.0", (ReplaceExpr(FILE, "f", "1", "4"),)),))
    both = Catalogued("demo", Overlay("Two parts.", (done, todo)), "")
    half = applied(module(SOURCE), Catalogued("demo", Overlay("One part.", (done,)), ""))

    # One statement has the only mark, but each part is judged by its own code.
    assert [p.state for p in make(half, both).before[0].parts] == [State.APPLIED, State.PENDING]
    assert applied(half, both)[FILE] == b"def f():\n    a(b(4), 3)  # vpatch: demo\n    c()\n    d()\n"


def test_an_overlay_that_is_not_pending_changes_nothing() -> None:
    item = overlay(ReplaceExpr(FILE, "f", "2", "3"))
    changeset = make(module(SOURCE.replace("2", "3")), item)

    assert changeset.before == changeset.after
    assert changeset.before[0].state is State.MERGED
    assert not changeset.files


LOOKED_AT = {"vllm/config/vllm.py", "vllm/v1/attention/backend.py"}
REAL = {
    *LOOKED_AT,
    "vllm/config/cache.py",
    "vllm/engine/arg_utils.py",
    "vllm/platforms/interface.py",
    "vllm/model_executor/layers/quantization/turboquant/config.py",
    "vllm/v1/attention/backends/turboquant_attn.py",
    "vllm/_vpatch/turboquant_hybrid.py",
    "vllm/_vpatch/turboquant_speculation.py",
}


def test_a_real_plan_reads_only_its_files_and_is_deterministic(pristine: Callable[[str], Path]) -> None:
    root, asked = pristine("0.20.2"), set[str]()

    def read(file: str) -> bytes | None:
        asked.add(file)
        path = root / file
        return path.read_bytes() if path.is_file() else None

    items = list(select(discover(), ("turboquant-hybrid",)))
    first = Engine(items).plan(read)

    assert asked == REAL - {"vllm/config/cache.py"}
    assert set(first.files) == asked - LOOKED_AT
    assert Engine(items).plan(read) == first

    asked.clear()
    drifted = Engine(items).status(lambda file: None if "interface" in file else read(file))
    assert drifted[0].state is State.DRIFTED
    assert "vllm/config/cache.py" in asked


def test_the_order_of_overlays_does_not_matter() -> None:
    items = [overlay(AddFunction(FILE, "", f"def g{n}(): {n}"), name=f"o{n}") for n in range(6)]
    first = make(module(SOURCE), *items)

    for seed in range(5):
        random.Random(seed).shuffle(items)  # noqa: S311 - it is to be repeatable
        assert make(module(SOURCE), *items) == first


def parts(**edits: Edit) -> Catalogued:
    made = tuple(Part(name, (Shape("1.0", (edit,)),)) for name, edit in edits.items())
    return Catalogued("parts", Overlay("Several parts.", made), "")


def test_a_conflict_is_that_of_the_part() -> None:
    item = parts(first=ReplaceExpr(FILE, "f", "2", "3"), second=ReplaceExpr(FILE, "f", "1", "4"))

    mine, _ = make(module(SOURCE), item, overlay(ReplaceExpr(FILE, "f", "2", "5"), name="z")).before

    assert [part.state for part in mine.parts] == [State.CONFLICT, State.PENDING]
    assert mine.because == "parts and z change the same code"


def test_different_reasons_name_their_parts() -> None:
    item = parts(first=ReplaceExpr(FILE, "f", "q1", "3"), second=ReplaceExpr(FILE, "g", "1", "4"))

    (found,) = make(module(SOURCE), item).before

    assert found.because == "first: vllm/m.py: `q1` is not there; second: vllm/m.py: no 'g' here"
    assert len(found.problems) == 2


def test_code_that_is_fine_where_it_was_applied_is_judged_again_where_it_is_not() -> None:
    """The applied code reads a name that nothing binds, as upstream's own may; to apply it would break the function."""
    old = {FILE: b"def f():\n    first = 1\n    second = 2\n    return first, second\n"}
    edit = DeleteStatements(FILE, "f", "first = 1")
    item, files = overlay(edit), Workspace(old.get)
    edit.apply(files, item.id)
    applied = {FILE: files.read(FILE)}
    engine = Engine([item])

    assert engine.status(applied.get)[0].state is State.APPLIED
    assert engine.plan(old.get).before[0].state is State.DRIFTED
    assert engine.status(applied.get)[0].state is State.APPLIED
