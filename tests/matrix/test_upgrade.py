"""What an upgrade brings: which overlays stay, are merged, superfluous or needed, and which drift."""

from __future__ import annotations

import pytest
from vpatch.cli.upgrade import upgrade_report

from tests.conftest import Program
from tests.matrix.test_baseline import cell, row, unread

# The states before and after, and what the upgrade does.
CASES = {
    "a": ("pending", "pending", "stays", ""),
    "b": ("pending", "merged", "merged", "upstream has it: drop it"),
    "c": ("merged", "merged", "merged", "as before"),
    "d": ("pending", "drifted", "drifts", "because drifted"),
    "e": ("pending", "not_applicable", "superfluous", "because not_applicable"),
    "f": ("not_applicable", "not_applicable", "superfluous", "as before"),
    "g": ("merged", "pending", "needed", "it was not before"),
    "h": ("drifted", "pending", "stays", "it did not fit before"),
    "i": ("pending", "pending!", "drifts", "because pending"),
    "j": ("", "pending", "stays", "it did not fit before"),
    "k": ("pending", "merged", "merged", "upstream has it"),
    "n": ("pending", "merged", "merged", "upstream has it: drop it"),
    "l": ("pending", "merged", "merged", "upstream has it"),
    "m": ("not_applicable", "pending", "offered", "not selected; it was not before"),
}


def test_each_overlay_has_a_line() -> None:
    before = row("0.20.2", *(cell(was, name) for name, (was, *_) in CASES.items() if was))
    after = row("0.26.0", *(cell(now, name) for name, (_, now, *_) in CASES.items()))

    report = upgrade_report([after, before], "0.20.2", "v0.26", patches={"b"}, written={"n"}, opt_in={"a", "m"})

    found = {one["overlay"]: (one["prospect"], one["because"]) for one in report.fields()["upgrade"]}
    assert found == {name: tuple(said) for name, (_, _, *said) in CASES.items()}
    assert [str(problem) for problem in report.problems] == [
        "drifts: v0.26: d: because drifted",
        "drifts: v0.26: i: because pending",
    ]
    assert report.outcome == "Merged upstream, so drop: b and n. What drifts: `vpatch show d --vllm v0.26`."
    assert report.offer == (
        "Merged upstream: k and l; `vpatch apply` leaves them out. Newly needed: g; `vpatch apply` applies it."
    )


def test_nothing_to_adapt() -> None:
    """An upgrade with news and no task is none that a user must look at."""
    before = row("0.20.2", cell("pending", "a"), cell("merged", "b"))
    after = row("0.26.0", cell("pending", "a"), cell("pending", "b"))

    report = upgrade_report([before, after], "0.20.2", "0.26.0", opt_in={"b"})

    assert (report.exit_code, report.offer) == (0, "")
    assert report.outcome == "Nothing to adapt: `vpatch apply` after the upgrade does the rest."


def test_one_that_cannot_be_read_is_a_problem() -> None:
    report = upgrade_report([row("0.20.2", cell("pending")), unread("0.26.0")], "0.20.2", "0.26.0")

    assert [problem.what for problem in report.problems] == ["cannot read"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--from", "0.20.2"), "--from and --to come together"),
        (("--from", "0.20.2", "--to", "0.26.0", "--vllm", "0.31.0"), "name no other vLLM, baseline, page or form"),
    ],
)
def test_usage(vpatch: Program, arguments: tuple[str, ...], says: str) -> None:
    ran = vpatch("matrix", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


@pytest.mark.deep
def test_releases_of_the_index(vpatch: Program) -> None:
    ran = vpatch("matrix", "--overlay", "turboquant-hybrid", "--from", "0.20.2", "--to", "0.21.0")

    assert (ran.code, ran.out) == (0, "  turboquant-hybrid  merged  upstream has it\n"), ran.err
    assert ran.err.endswith(
        "Merged upstream: turboquant-hybrid; `vpatch apply` leaves it out.\nNothing to adapt: 1 overlay.\n"
    )
