"""One cell, and one job of a worker process: overlays that do what they promise, and overlays that do not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from vpatch import AddFile, InsertAfter, ReplaceExpr
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, Reach
from vpatch.core.verdict import Finding, Found, State
from vpatch.core.workspace import Workspace
from vpatch.matrix import worker
from vpatch.matrix.verdicts import Cell
from vpatch.matrix.worker import Together, try_one, try_together, work
from vpatch.tree.apply import Writes

from tests.releases import fact
from tests.snippets import FILE, Files, module, names_of_fragments, overlay

if TYPE_CHECKING:
    from tests.conftest import Trees

__all__ = ["names_of_fragments"]

SOURCE = "def f():\n    a(b(1), 2)\n    c()\n"
GOOD = overlay(ReplaceExpr(FILE, "f", "b(1)", "x"), name="good")
RIVAL = overlay(ReplaceExpr(FILE, "f", "a(b(1), 2)", "y"), name="rival")
OTHER = overlay(InsertAfter(FILE, "f", "c()", "z()"), name="other")
LOST = overlay(ReplaceExpr(FILE, "f", "nowhere()", "x"), name="lost")
BROKEN = overlay(AddFile("vllm/_vpatch/x.py", "def\n"), name="broken")


@dataclass(frozen=True)
class Odd:
    """A broken edit: it raises an exception in `state`, or never finds its own change."""

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


def test_an_overlay_that_drifted() -> None:
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
    """A tree that loses its changes is written again."""
    monkeypatch.setattr(worker._MemoryTree, "read", lambda self, path: self.pristine(path))

    assert f"not idempotent: good: the second run writes {FILE}" in map(str, one(GOOD).problems)


def test_a_wrong_original(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = worker._MemoryTree.decide

    def wrong(self: worker._MemoryTree, desired: Files, note: object, *, on_edits: bool) -> Writes:
        writes = decide(self, desired, note, on_edits=on_edits)

        def carry_out() -> None:
            writes.carry_out()
            self.originals = {file: (data or b"") + b"\n" for file, data in self.originals.items()}

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


def test_a_conflict_is_reported_although_another_overlay_raises() -> None:
    found = together(GOOD, overlay(Odd(raises=True), name="odd"), RIVAL)

    assert found.clashes.keys() == {"good", "rival"}


@pytest.mark.parametrize("bad", [LOST, BROKEN, overlay(Odd(raises=True), name="odd"), overlay(Odd(), name="odd")])
def test_a_problem_of_one_overlay_is_not_one_of_all(bad: Catalogued) -> None:
    assert together(GOOD, bad, OTHER) == Together({}, ())


def test_overlays_that_fail_only_together() -> None:
    first = overlay(InsertAfter(FILE, "f", "c()", "x(2)"), name="first")
    second = overlay(ReplaceExpr(FILE, "f", "2", "y"), name="second")

    found = together(first, second)

    assert not found.clashes
    (problem,) = found.problems
    assert (problem.what, problem.where) == ("conflict", "second")
    assert "`2` is there 2 times" in problem.cause


# --- a job ----------------------------------------------------------------------------------------------------------


IDS = tuple(item.id for item in select(discover(), ("turboquant-hybrid", "turboquant-skip-list", "turboquant-tiles")))


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    worker._engine.cache_clear()


def files(trees: Trees, release: str) -> dict[str, bytes]:
    root = trees(release)
    return {file: (root / file).read_bytes() for file in Engine(discover()).files if (root / file).is_file()}


def test_the_overlays_that_are_asked_for_are_tried(slim: Trees) -> None:
    cells, both = work(files(slim, "0.20.2"), IDS, IDS[:2], IDS)

    assert {name: cell.verdict.state for name, cell in cells.items()} == {
        name: fact(name, "0.20.2") for name in IDS[:2]
    }
    assert both == Together({}, ())


def test_only_files_of_the_last_vllm_stay_parsed(slim: Trees) -> None:
    first, second = files(slim, "0.18.0"), files(slim, "0.20.2")
    work(first, IDS, IDS, ())
    kept = {data for _, data in worker._engine(frozenset(IDS))._cache._known}
    work(second, IDS, IDS, ())

    assert kept
    assert kept <= set(first.values())
    assert {data for _, data in worker._engine(frozenset(IDS))._cache._known} <= set(second.values())
