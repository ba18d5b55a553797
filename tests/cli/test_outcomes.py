"""The two lines that frame a command on a tree: which vLLM it is, and what came of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.tree.locate import locate

from tests.cli.conftest import rewrite
from tests.conftest import Program, Ran, unchanged
from tests.engines import engine_of
from tests.hybrid import CONFIG, COUNT, DEFAULT, HYBRID, INFO, TILES
from tests.tiers import deep

RESTART = "Restart vLLM if it is running."
FITTING = [name for name in DEFAULT if name != HYBRID]


def framed(ran: Ran) -> tuple[str, str]:
    """Return the first and the last line on stderr."""
    first, *_, last = ran.err.splitlines()
    return first, last


@pytest.fixture(autouse=True)
def _inside(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.parent)


@pytest.fixture
def drifted(tree: Path) -> Path:
    rewrite(tree / CONFIG, b"nothing = 0\n")
    return tree


def test_a_whole_round(vpatch: Program) -> None:
    """Each outcome names the tree as the user did, and the next command works as it is printed."""
    here = "vLLM 0.20.2 in site-packages"

    assert framed(vpatch("status", "site-packages")) == (
        here,
        f"{COUNT} overlays ready to apply: `vpatch apply site-packages`.",
    )
    made = engine_of(select(discover(), DEFAULT)).plan(locate(Path("site-packages")).read)
    files = {file: Path("site-packages", file).exists() for file in made.files}
    size = f"{sum(files.values())} files changed, {list(files.values()).count(False)} added"
    would = f"Would apply {COUNT} overlays: {size}."
    assert framed(vpatch("apply", "-n", "site-packages")) == (
        here,
        f"{would} Nothing is written yet: `vpatch apply site-packages`.",
    )
    assert framed(vpatch("diff", "site-packages"))[1].startswith(would)
    assert framed(vpatch("apply", "site-packages")) == (
        here,
        f"Applied {COUNT} overlays: {size}. {RESTART} Undo with `vpatch revert site-packages`.",
    )
    for again in ("apply", "status", "diff"):
        assert framed(vpatch(again, "site-packages"))[1] == f"Nothing to do: {COUNT} overlays are applied."
    assert framed(vpatch("verify", "site-packages"))[1] == f"Verified: {COUNT} overlays are applied and complete."
    for count, options in (("1 overlay", ("--overlay", HYBRID)), (f"{COUNT - 1} overlays", ())):
        undone = framed(vpatch("revert", *options, "site-packages"))[1]
        assert (undone.startswith(f"Reverted {count}: "), undone.endswith(f" removed. {RESTART}")) == (True, True)
    assert framed(vpatch("revert", "site-packages")) == (here, "Nothing to revert: no overlay is applied.")


def test_a_repair_of_the_list_of_files_wants_no_restart(vpatch: Program, tree: Path) -> None:
    vpatch("apply", tree)
    rewrite(tree / INFO / "RECORD", (tree / INFO / "vpatch/originals" / INFO / "RECORD").read_bytes())

    assert framed(vpatch("apply", tree))[1] == f"Updated RECORD: {COUNT} overlays are applied."


def test_status_offers_what_is_opt_in(vpatch: Program) -> None:
    """Only what could be applied here, and what the user did not choose."""
    decode = "turboquant-decode"
    all_three = f"3 opt-in overlays: receipt, {decode} and {TILES}"
    offer = f"{all_three} (`vpatch show receipt`, `vpatch apply --with receipt site-packages`)"

    assert vpatch("status", "site-packages").err.splitlines()[1] == offer
    for silent in ("-q", "--quiet", "--json"):
        assert vpatch("status", silent, "site-packages").err == ""
    _, offer, outcome = vpatch("status", "site-packages", "--with", TILES).err.splitlines()
    assert offer.startswith(f"2 opt-in overlays: receipt and {decode} (")
    assert outcome == f"{COUNT + 1} overlays ready to apply: `vpatch apply --with {TILES} site-packages`."
    for chosen in (("--overlay", HYBRID), ("--with", TILES, "--with", decode, "--with", "receipt")):
        assert "opt-in" not in vpatch("status", "site-packages", *chosen).err


def test_nothing_to_verify(vpatch: Program) -> None:
    ran = vpatch("verify", "site-packages")

    assert ran.code == 1
    assert framed(ran)[1] == "Not verified: no overlay is applied. Apply with `vpatch apply site-packages`."


@pytest.mark.usefixtures("drifted")
@pytest.mark.parametrize(
    ("command", "begins"),
    [deep("apply", "Nothing was written: "), deep("diff", "Nothing would be written: "), ("status", "")],
)
def test_a_refusal_says_what_would_fit(vpatch: Program, command: str, begins: str) -> None:
    """It says that nothing was written, and the command that it prints applies the rest."""
    ran = vpatch(command, "site-packages")

    options = " ".join(f"--overlay {name}" for name in FITTING)
    rest = f"To apply the others: `vpatch apply {options} site-packages`."
    assert ran.code == 1
    assert framed(ran)[1] == f"{begins}{HYBRID} does not fit this vLLM. {rest}"
    assert ran.err.count(f"drifted: {CONFIG}") == len(set(ran.err.splitlines()) - set(framed(ran))), "each once"
    alone = vpatch("apply", "--overlay", HYBRID, "site-packages")
    assert framed(alone)[1] == f"Nothing was written: {HYBRID} does not fit this vLLM."
    if command == "apply":
        again = vpatch(*rest.split("`vpatch ")[1].rstrip("`.").split())
        assert (again.code, framed(again)[1].partition(":")[0]) == (0, f"Applied {COUNT - 1} overlays")


def test_files_with_verbose(vpatch: Program) -> None:
    """`revert` says what it restored and what it removed; `changed:` would be wrong of both."""
    would = vpatch("apply", "-nv", "site-packages", "--overlay", HYBRID).out
    did = vpatch("apply", "-v", "site-packages", "--overlay", HYBRID).out
    undid = vpatch("revert", "-v", "site-packages").out

    assert f"would change: {CONFIG}\n" in would
    assert "would add: vllm/_vpatch/turboquant_hybrid.py\n" in would
    assert f"changed: {CONFIG}\n" in did
    assert "added: vllm/_vpatch/turboquant_hybrid.py\n" in did
    assert f"restored: {CONFIG}\n" in undid
    assert "removed: vllm/_vpatch/turboquant_hybrid.py\n" in undid
    assert "changed:" not in undid


def test_check_and_dry_run_are_two_answers_and_write_nothing(vpatch: Program, tree: Path) -> None:
    with unchanged(tree):
        for options, code in ((("--dry-run",), 0), (("--check",), 1), (("--check", "--dry-run"), 2)):
            assert vpatch("apply", *options, "site-packages").code == code
