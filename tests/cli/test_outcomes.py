"""The two lines that frame a command on a tree: which vLLM it is, and what came of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.tree.locate import locate

from tests.cli.conftest import rewrite
from tests.conftest import Program, Ran, unchanged
from tests.engines import engine_of
from tests.hybrid import CONFIG, COUNT, DEFAULT, HYBRID, INFO, ONLY, TILES
from tests.tiers import deep

KEY = "compile-cache-key"
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


@pytest.mark.deep
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
    verified = f"Verified: {COUNT} overlays are applied and complete (digest "
    assert framed(vpatch("verify", "site-packages"))[1].startswith(verified)
    for count, options in (("1 overlay", ("--overlay", HYBRID)), (f"{COUNT - 1} overlays", ())):
        undone = framed(vpatch("revert", *options, "site-packages"))[1]
        assert (undone.startswith(f"Reverted {count}: "), undone.endswith(f" removed. {RESTART}")) == (True, True)
    assert framed(vpatch("revert", "site-packages")) == (here, "Nothing to revert: no overlay is applied.")


def test_a_repair_of_the_list_of_files_wants_no_restart(vpatch: Program, tree: Path) -> None:
    vpatch("apply", tree)
    rewrite(tree / INFO / "RECORD", (tree / INFO / "vpatch/originals" / INFO / "RECORD").read_bytes())

    assert framed(vpatch("apply", tree))[1] == f"Updated RECORD: {COUNT} overlays are applied."


@pytest.mark.deep
def test_status_offers_what_is_opt_in(vpatch: Program) -> None:
    """Only what could be applied here, and what the user did not choose."""
    decode = "turboquant-decode"
    everything = f"4 opt-in overlays: {KEY}, receipt, {decode} and {TILES}"
    offer = f"{everything} (`vpatch show {KEY} site-packages`, `vpatch apply --with {KEY} site-packages`)."
    plan = "To learn which of these your deployment needs: `vpatch plan --help`."

    assert vpatch("status", "site-packages").err.splitlines()[1] == f"{offer} {plan}"
    for silent in ("-q", "--quiet", "--json"):
        assert vpatch("status", silent, "site-packages").err == ""
    _, offer, outcome = vpatch("status", "site-packages", "--with", TILES).err.splitlines()
    assert offer.startswith(f"3 opt-in overlays: {KEY}, receipt and {decode} (")
    assert outcome == f"{COUNT + 1} overlays ready to apply: `vpatch apply --with {TILES} site-packages`."
    others = [word for one in (KEY, TILES, decode, "receipt") for word in ("--with", one)]
    for chosen in (("--overlay", HYBRID), others):
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

    rest = f"To apply the others: `vpatch apply --without {HYBRID} site-packages`."
    assert ran.code == 1
    assert framed(ran)[1] == f"{begins}{HYBRID} does not fit this vLLM. {rest}"
    assert ran.err.count(f"drifted: {CONFIG}") == len(set(ran.err.splitlines()) - set(framed(ran))), "each once"
    alone = vpatch("apply", "--overlay", HYBRID, "site-packages")
    assert framed(alone)[1] == f"Nothing was written: {HYBRID} does not fit this vLLM."
    if command == "apply":
        again = vpatch(*rest.split("`vpatch ")[1].rstrip("`.").split())
        assert (again.code, framed(again)[1].partition(":")[0]) == (0, f"Applied {COUNT - 1} overlays")


WORDS: dict[str, tuple[str, str]] = {
    "an opt-in one beside": (f"--with {KEY} --with {TILES}", f"--with {KEY} --without {HYBRID}"),
    "named ones": ("--overlay turboquant-workspace " + " ".join(ONLY), "--overlay turboquant-workspace"),
    "one less": (f"--without {TILES}", f"--without {TILES} --without {HYBRID}"),
}


@pytest.mark.deep
@pytest.mark.usefixtures("drifted")
@pytest.mark.parametrize("words", WORDS)
def test_the_rest_of_a_selection(vpatch: Program, words: str) -> None:
    typed, rest = WORDS[words]
    ran = vpatch("status", *typed.split(), "site-packages")

    assert framed(ran)[1].endswith(f" To apply the others: `vpatch apply {rest} site-packages`.")
    assert vpatch("apply", "-n", *rest.split(), "site-packages").code == 0


@pytest.mark.deep
def test_what_is_applied_in_part_cannot_be_left_out(vpatch: Program, tree: Path) -> None:
    """`--without` leaves in what is in the tree, so the others are named."""
    vpatch("apply", *ONLY, tree)
    rewrite(tree / CONFIG, b"nothing = 0\n")
    last = framed(vpatch("status", tree))[1]

    options = " ".join(f"--overlay {name}" for name in FITTING)
    assert last == f"{HYBRID} was edited after vpatch. To apply the others: `vpatch apply {options} {tree}`."


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
