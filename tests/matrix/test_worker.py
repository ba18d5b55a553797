"""One cell, and one job of a worker process: overlays that do what they promise, and overlays that do not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
from vpatch import AddFile
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import EditFinding, Found, State
from vpatch.core.workspace import Workspace
from vpatch.errors import Code, Problem
from vpatch.matrix import worker
from vpatch.matrix.verdicts import Cell
from vpatch.matrix.worker import Together, try_one, try_together, work
from vpatch.tree.apply import Writes

from tests.conftest import Trees
from tests.releases import fact
from tests.snippets import FILE, Files, InsertAfter, ReplaceExpr, module, names_of_fragments, overlay

__all__ = ["names_of_fragments"]

SOURCE, PATCHED = "def f():\n    a(b(1), 2)\n    c()\n", "def f():\n    a(x, 2)  # vpatch: {}\n    c()\n"
GOOD = overlay(ReplaceExpr(FILE, "f", "b(1)", "x"), name="good")
RIVAL = overlay(ReplaceExpr(FILE, "f", "a(b(1), 2)", "y"), name="rival")
OTHER = overlay(InsertAfter(FILE, "f", "c()", "z()"), name="other")
LOST = overlay(ReplaceExpr(FILE, "f", "nowhere()", "x"), name="lost")
BROKEN = overlay(AddFile("vllm/_vpatch/x.py", "def\n"), name="broken")
NEW = overlay(AddFile("vllm/mine/x.py", "x = 1\n"), name="new")
BOTH = overlay(ReplaceExpr(FILE, "f", "b(1)", "x"), InsertAfter(FILE, "f", "c()", "z()"), name="both")


@dataclass(frozen=True)
class Odd:
    """A broken edit: it raises an exception in `state`, or never finds its own change."""

    raises: bool = False
    file: str = FILE
    scope: str = ""

    def state(self, files: Workspace, overlay: str) -> EditFinding:
        if self.raises:
            raise ZeroDivisionError("no such thing")
        return EditFinding(Found.BEFORE)

    def apply(self, files: Workspace, overlay: str) -> None:
        files.put(FILE, b"other = 1\n")


ODD, RAISING = overlay(Odd(), name="odd"), overlay(Odd(raises=True), name="odd")


def one(item: Catalogued, files: Files | None = None) -> Cell:
    return try_one((files or module(SOURCE)).get, item, Engine([item]))


def together(*items: Catalogued) -> Together:
    return try_together(module(SOURCE).get, items, Engine(items))


CELLS = {
    "it does what it promises": (GOOD, SOURCE, State.PENDING, ""),
    "it drifted": (LOST, SOURCE, State.DRIFTED, r"drifted: .*nowhere\(\).*"),
    "its code does not compile": (
        BROKEN,
        SOURCE,
        State.DRIFTED,
        r"drifted: vllm/_vpatch/x\.py: invalid syntax \(x\.py, line \d+\) \(a fault of the overlay, .*\)",
    ),
    "it never finds what it made": (ODD, SOURCE, State.PENDING, "overlay failed: .*not applied.*"),
    "it raises": (
        RAISING,
        SOURCE,
        State.DRIFTED,
        f"overlay failed: odd: {FILE}: Odd raised ZeroDivisionError: no such thing",
    ),
    "it adds a module": (NEW, SOURCE, State.PENDING, ""),
    "half of it is there": (BOTH, PATCHED.format("both"), State.PENDING, ""),
    "it is there": (GOOD, PATCHED.format("good"), State.APPLIED, ""),
}


@pytest.mark.parametrize(("item", "source", "state", "message"), CELLS.values(), ids=CELLS)
def test_a_cell(item: Catalogued, source: str, state: State, message: str) -> None:
    """The tree is as it was, and a cell has at most one problem, of one line."""
    files = dict(module(source))
    cell = one(item, files)

    assert (cell.verdict.id, cell.verdict.state) == (item.id, state)
    assert re.fullmatch(message, "\n".join(map(str, cell.problems)))
    assert files == module(source)


def test_a_cell_has_the_shape_and_the_problems_of_its_verdict() -> None:
    assert one(GOOD).verdict.parts[0].shape == "1.0"
    assert one(LOST).problems == one(LOST).verdict.problems


def test_a_second_run_that_writes_and_a_wrong_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that loses its changes is written again."""
    with monkeypatch.context() as patched:
        patched.setattr(worker._MemoryTree, "read", lambda self, path: self.pristine(path))
        problem = Problem("not idempotent", "good", f"the second run writes {FILE}", code=Code.NOT_IDEMPOTENT)
        assert problem in one(GOOD).problems

    decide = worker._MemoryTree.decide

    def wrong(self: worker._MemoryTree, *args: Any, **kwargs: Any) -> Writes:
        writes = decide(self, *args, **kwargs)

        def carry_out() -> None:
            writes.carry_out()
            self.originals = {file: (data or b"") + b"\n" for file, data in self.originals.items()}

        return replace(writes, carry_out=carry_out)

    monkeypatch.setattr(worker._MemoryTree, "decide", wrong)
    assert Problem("not reversible", FILE, "it stays changed", code=Code.NOT_REVERSIBLE) in one(GOOD).problems


@pytest.mark.parametrize(
    ("others", "clashing"),
    [
        ((), set()),
        ((RIVAL,), {"good", "rival"}),
        ((RAISING, RIVAL), {"good", "rival"}),  # reported although another overlay raises
        *(((bad,), set()) for bad in (LOST, BROKEN, RAISING, ODD)),  # a problem of one is not one of all
    ],
    ids=["along", "rival", "raising", "lost", "broken", "raises", "odd"],
)
def test_overlays_together(others: tuple[Catalogued, ...], clashing: set[str]) -> None:
    found = together(GOOD, OTHER, *others)

    assert {name: verdict.state for name, verdict in found.clashes.items()} == dict.fromkeys(clashing, State.CONFLICT)
    assert found.problems == ()


def test_overlays_that_fail_only_together() -> None:
    first = overlay(InsertAfter(FILE, "f", "c()", "x(2)"), name="first")
    second = overlay(ReplaceExpr(FILE, "f", "2", "y"), name="second")

    found = together(first, second)

    assert not found.clashes
    (problem,) = found.problems
    assert (problem.what, problem.where) == ("conflict", "second")
    assert "the code that has the mark `# vpatch: second` in line 2" in problem.cause


# --- a job ----------------------------------------------------------------------------------------------------------


ONE = ("turboquant-skip-list",)
IDS = tuple(item.id for item in select(discover(), ("turboquant-hybrid", "turboquant-skip-list")))


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    worker._engine.cache_clear()


def files(trees: Trees, release: str) -> dict[str, bytes]:
    root = trees(release)
    return {file: (root / file).read_bytes() for file in Engine(discover()).files if (root / file).is_file()}


def test_the_overlays_that_are_asked_for_are_tried(slim: Trees) -> None:
    result = work(files(slim, "0.20.2"), IDS, IDS[:1], IDS)
    cells, both = result.cells, result.together

    states = {name: cell.verdict.state for name, cell in cells.items()}
    assert states == {name: fact(name, "0.20.2") for name in IDS[:1]}
    assert both == Together({}, ())


def test_only_files_of_the_last_vllm_stay_parsed(slim: Trees) -> None:
    first, second = files(slim, "0.33.0"), files(slim, "0.20.2")
    work(first, ONE, ONE, ())
    kept = {data for _, data in worker._engine(frozenset(ONE))._cache._known}
    work(second, ONE, ONE, ())

    assert kept
    assert kept <= set(first.values())
    assert {data for _, data in worker._engine(frozenset(ONE))._cache._known} <= set(second.values())
