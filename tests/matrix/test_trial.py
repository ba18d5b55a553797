"""One cell: what is told of an overlay that keeps its word on a vLLM, and of one that does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from vpatch import AddFile, InsertAfter, ReplaceExpr
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, Reach
from vpatch.core.verdict import Finding, Found, State
from vpatch.core.workspace import Workspace
from vpatch.matrix import worker
from vpatch.matrix.verdicts import Cell
from vpatch.matrix.worker import Together, try_one, try_together
from vpatch.tree import Writes

from tests.snippets import FILE, Files, module, names_of_fragments, overlay

__all__ = ["names_of_fragments"]

SOURCE = "def f():\n    a(b(1), 2)\n    c()\n"
GOOD = overlay(ReplaceExpr(FILE, "f", "b(1)", "x"), name="good")
RIVAL = overlay(ReplaceExpr(FILE, "f", "a(b(1), 2)", "y"), name="rival")
OTHER = overlay(InsertAfter(FILE, "f", "c()", "z()"), name="other")
LOST = overlay(ReplaceExpr(FILE, "f", "nowhere()", "x"), name="lost")
BROKEN = overlay(AddFile("vllm/_vpatch/x.py", "def\n"), name="broken")


@dataclass(frozen=True)
class Odd:
    """An edit that does not keep its word: `raises` in `state`, or never finds what it made."""

    raises: bool = False
    file: str = FILE
    scope: str = ""
    reach: Reach = ((FILE, ""),)

    def state(self, files: Workspace, overlay: str) -> Finding:
        if self.raises:
            raise ZeroDivisionError("no such thing")
        return Finding(Found.BEFORE)

    def apply(self, files: Workspace, overlay: str) -> None:
        files.put(FILE, b"other = 1\n")


def one(item: Catalogued, files: Files | None = None) -> Cell:
    return try_one((files or module(SOURCE)).get, item, Engine([item]))


def together(*items: Catalogued) -> Together:
    return try_together(module(SOURCE).get, items, Engine(items))


def test_an_overlay_that_does_what_it_promises() -> None:
    cell = one(GOOD)

    assert (cell.verdict.id, cell.verdict.state, cell.problems) == ("good", State.PENDING, ())
    assert cell.verdict.parts[0].shape == "1.0"


def test_the_tree_is_as_it_was() -> None:
    files = dict(module(SOURCE))
    one(GOOD, files)

    assert files == module(SOURCE)


def test_one_that_is_lost() -> None:
    cell = one(LOST)

    assert cell.verdict.state is State.DRIFTED
    assert cell.problems == cell.verdict.problems
    assert "nowhere()" in str(cell.problems[0])


def test_code_that_does_not_compile() -> None:
    cell = one(BROKEN)

    assert cell.verdict.state is State.PENDING
    assert [str(problem).partition(" (")[0] for problem in cell.problems] == [
        "does not compile: vllm/_vpatch/x.py: invalid syntax"
    ]


def test_an_edit_that_never_finds_what_it_made() -> None:
    cell = one(overlay(Odd(), name="odd"))

    assert cell.verdict.state is State.PENDING
    assert [problem.what for problem in cell.problems] == ["overlay failed"]
    assert "not applied" in str(cell.problems[0])


def test_an_edit_that_raises() -> None:
    cell = one(overlay(Odd(raises=True), name="odd"))

    assert cell.verdict.state is State.DRIFTED
    (problem,) = cell.problems
    assert str(problem) == f"overlay failed: odd: {FILE}: Odd raised ZeroDivisionError: no such thing"


def test_a_second_run_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tree does not keep is written again."""
    monkeypatch.setattr(worker._MemoryTree, "read", lambda self, path: self.pristine(path))

    assert f"not idempotent: good: the second run writes {FILE}" in map(str, one(GOOD).problems)


def test_an_original_that_is_not_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = worker._MemoryTree.decide

    def wrong(self: worker._MemoryTree, desired: Files, note: object, *, on_edits: bool) -> Writes:
        writes = decide(self, desired, note, on_edits=on_edits)

        def carry_out() -> None:
            writes.carry_out()
            self.kept = {file: (data or b"") + b"\n" for file, data in self.kept.items()}

        return replace(writes, carry_out=carry_out)

    monkeypatch.setattr(worker._MemoryTree, "decide", wrong)

    assert f"not reversible: {FILE}: it stays changed" in map(str, one(GOOD).problems)


def test_a_tree_that_is_half_patched_is_healed() -> None:
    both = overlay(ReplaceExpr(FILE, "f", "b(1)", "x"), InsertAfter(FILE, "f", "c()", "z()"), name="both")
    half = module("def f():\n    a(x, 2)  # vpatch: both\n    c()\n")
    cell = one(both, half)

    assert (cell.verdict.state, cell.problems) == (State.PENDING, ())


def test_a_tree_that_is_patched() -> None:
    cell = one(GOOD, module("def f():\n    a(x, 2)  # vpatch: good\n    c()\n"))

    assert (cell.verdict.state, cell.problems) == (State.APPLIED, ())


def test_overlays_that_get_along() -> None:
    assert together(GOOD, OTHER) == Together({}, ())


def test_overlays_that_want_the_same_code() -> None:
    found = together(GOOD, OTHER, RIVAL)

    assert {name: verdict.state for name, verdict in found.clashes.items()} == {
        "good": State.CONFLICT,
        "rival": State.CONFLICT,
    }
    assert found.problems == ()


def test_a_conflict_is_told_though_another_overlay_raises() -> None:
    found = together(GOOD, overlay(Odd(raises=True), name="odd"), RIVAL)

    assert found.clashes.keys() == {"good", "rival"}


@pytest.mark.parametrize("bad", [LOST, BROKEN, overlay(Odd(raises=True), name="odd"), overlay(Odd(), name="odd")])
def test_what_is_wrong_with_one_alone_is_not_told_of_all(bad: Catalogued) -> None:
    assert together(GOOD, bad, OTHER) == Together({}, ())


def test_overlays_that_only_together_break_their_word() -> None:
    first = overlay(InsertAfter(FILE, "f", "c()", "x(2)"), name="first")
    second = overlay(ReplaceExpr(FILE, "f", "2", "y"), name="second")

    found = together(first, second)

    assert not found.clashes
    (problem,) = found.problems
    assert (problem.what, problem.where) == ("conflict", "second")
    assert "`2` is there 2 times" in problem.cause
