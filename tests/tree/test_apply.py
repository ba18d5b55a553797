"""Apply and revert overlays that conflict with each other, and while another program changes the tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from vpatch import Overlay, Part, Shape
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, Edit
from vpatch.core.verdict import State
from vpatch.errors import Failure
from vpatch.tree.apply import apply, revert
from vpatch.tree.locate import Tree
from vpatch.tree.write_plan import SitePackages

from tests.conftest import unchanged, untouched
from tests.snippets import InsertAfter, ReplaceExpr

FILE = "vllm/m.py"


def made(name: str, edit: Edit) -> Catalogued:
    return Catalogued(name, Overlay("What.", (Part("part", (Shape("shape", (edit,)),)),)), "Why.")


FIRST = made("first", InsertAfter(FILE, "", anchor="x = 1", new="y = 2"))
LEANS_ON_FIRST = made("leaning", InsertAfter(FILE, "", anchor="y = 2", new="z = 3"))
APART = made("apart", ReplaceExpr(FILE, "", old="9", new="10"))
IN_CONFLICT = made("rival", ReplaceExpr(FILE, "", old="9", new="11"))
ALL = (APART, FIRST, LEANS_ON_FIRST, IN_CONFLICT)


@pytest.fixture
def store(tmp_path: Path) -> SitePackages:
    files = {FILE: "x = 1\nw = 9\n", "vllm/__init__.py": "", "vllm-1.dist-info/RECORD": f"{FILE},,\n"}
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    return SitePackages(Tree(tmp_path / "tree", "vllm-1.dist-info", "1"))


def text(store: SitePackages) -> str:
    return (store.tree.root / FILE).read_text()


def test_an_overlay_on_an_overlay(store: SitePackages) -> None:
    """The lower overlay cannot be reverted alone: the upper one could not be applied."""
    assert apply(store, [FIRST])[1].changed
    assert apply(store, [LEANS_ON_FIRST], installed=ALL)[1].changed
    assert text(store) == "x = 1\ny = 2  # vpatch: first\nz = 3  # vpatch: leaning\nw = 9\n"
    states = Engine([FIRST, LEANS_ON_FIRST]).status(store.tree.read)
    assert [verdict.state for verdict in states] == [State.APPLIED] * 2

    drifted = pytest.raises(Failure, match=r"^drifted: vllm/m\.py: .*`y = 2`")
    with unchanged(store.tree.root), drifted:
        revert(store, ALL, [FIRST])

    revert(store, ALL, [LEANS_ON_FIRST])
    assert text(store) == "x = 1\ny = 2  # vpatch: first\nw = 9\n"
    revert(store, ALL, [FIRST])
    assert text(store) == "x = 1\nw = 9\n"


def test_a_rival_that_is_not_applied_does_not_matter(store: SitePackages) -> None:
    apply(store, [FIRST])
    apply(store, [APART])

    revert(store, ALL, [FIRST])

    assert text(store) == "x = 1\nw = 10  # vpatch: apart\n"


def test_rivals_are_not_applied(store: SitePackages) -> None:
    with unchanged(store.tree.root):
        changeset, writes = apply(store, [APART, IN_CONFLICT])

    assert writes.changed == ()
    assert {verdict.state for verdict in changeset.after} == {State.CONFLICT}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_overlay_at_the_place_of_one_that_is_applied_is_refused(store: SitePackages, order: tuple[int, int]) -> None:
    """Also if it is the only one that was asked for: in the other order, the module would be another."""
    items = [FIRST, made("beside", InsertAfter(FILE, "", anchor="x = 1", new="v = 2"))]
    one, other = (items[number] for number in order)
    assert apply(store, [one], installed=items)[1].changed

    with unchanged(store.tree.root):
        changeset, _ = apply(store, [other], installed=items)

    assert [verdict.state for verdict in changeset.after] == [State.CONFLICT]
    assert [problem.cause for problem in changeset.problems] == [f"{other.id} and {one.id} change the same code"]


def test_revert_of_overlays_that_are_not_applied(store: SitePackages) -> None:
    with untouched(store.tree.root):
        assert revert(store, ALL, [APART]).changed == ()
    apply(store, [FIRST])

    with untouched(store.tree.root):
        assert revert(store, ALL, [APART, IN_CONFLICT]).changed == ()
    assert FILE in revert(store, ALL, [APART, FIRST, IN_CONFLICT]).changed
    assert text(store) == "x = 1\nw = 9\n"


class Busy(SitePackages):
    """A tree that another program changes while vpatch waits for the lock."""

    theirs = ""

    @contextmanager
    def lock(self) -> Iterator[None]:
        with super().lock():
            (self.tree.root / FILE).write_text(self.theirs)
            yield


@pytest.mark.parametrize(
    ("theirs", "state", "ours"),
    [
        ("x = 1\nw = 99\n", State.APPLIED, "x = 1\ny = 2  # vpatch: first\nw = 99\n"),
        ("v = 1\n", State.DRIFTED, "v = 1\n"),
    ],
)
def test_the_tree_changes_while_vpatch_waits(
    store: SitePackages, monkeypatch: pytest.MonkeyPatch, theirs: str, state: State, ours: str
) -> None:
    """vpatch plans anew: what the other program wrote is neither lost nor assumed."""
    monkeypatch.setattr(Busy, "theirs", theirs)

    changeset, writes = apply(Busy(store.tree), [FIRST])

    assert changeset.after[0].state is state
    assert bool(writes.changed) is (state is State.APPLIED)
    assert text(store) == ours
