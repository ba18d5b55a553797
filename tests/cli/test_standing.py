"""What stands in a tree against its originals, edits of others included, and how these are discarded."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from vpatch.guest.vpatch_receipt import written_to

from tests.cli.conftest import rewrite, ways_out
from tests.conftest import Program, Trees, contents_of, unchanged, untouched
from tests.hybrid import ARG_UTILS, ATTENTION, COMPANION, CONFIG, HYBRID, ONLY, TILES
from tests.tiers import deep

SIZES, RUNNER = "mtp-capture-sizes", "vllm/v1/worker/gpu_model_runner.py"
PARALLEL = "vllm/distributed/parallel_state.py"
WORKSPACE = ("--overlay", "turboquant-workspace")
BOTH = (*ONLY, *WORKSPACE)
"""Two overlays that change a file together."""


def patched(tree: Path, diff: str, *options: str) -> None:
    command = ["patch", "-p1", "--quiet", *options]
    subprocess.run(command, cwd=tree, input=diff.encode("utf-8", "surrogateescape"), check=True)


def draw(tree: Path, files: list[str], seed: int) -> dict[str, set[int]]:
    """Edit some of the files in some places; return the lines of each that differ then."""
    chance = random.Random(seed)  # noqa: S311
    edited = {}
    for file in chance.sample(files, chance.randint(1, 3)):
        lines = (tree / file).read_text().split("\n")
        places = sorted(chance.sample(range(len(lines)), chance.randint(1, 3)))
        for place in reversed(places):
            lines.insert(place, "# mine")
        rewrite(tree / file, "\n".join(lines).encode())
        edited[file] = {place + 1 + before for before, place in enumerate(places)}
    return edited


def sources(tree: Path) -> dict[str, bytes | None]:
    return {file: data for file, data in contents_of(tree).items() if file.startswith("vllm/")}


def lines_of(places: str) -> set[int]:
    spans = [[int(number) for number in span.split(" to ")] for span in places.split(", ")]
    return {line for span in spans for line in range(span[0], span[-1] + 1)}


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1, 7))
def test_edits_are_shown_named_discarded_and_kept(
    vpatch: Program, tree: Path, slim: Trees, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = vpatch("apply", tree, "--json").json
    files = [file for file in done["changed"] if file.endswith(".py") and file not in done["added"]]
    edited = draw(tree, files, seed)
    before = sources(tree)

    with unchanged(tree):
        found = vpatch("diff", "--applied", tree, "--json").json
        edits = vpatch("diff", "--edits", tree).out
        checked = vpatch("verify", tree, "--json")
        refused = vpatch("revert", tree)
        shown = vpatch("revert", "--force", "--dry-run", tree)
    assert {file: lines_of(places) for file, places in found["edited"].items()} == edited
    assert checked.json["edited"] == found["edited"]
    assert {problem["what"] for problem in checked.json["problems"]} == {"edited after vpatch"}
    assert (checked.code, refused.code, shown.code) == (1, 1, 0)
    assert ways_out(tree, keep="`vpatch capture " in refused.err) in refused.err
    assert (edits in shown.err, edits.count("\n+# mine\n")) == (True, sum(map(len, edited.values())))
    assert shown.err.endswith(f" Nothing is written yet: `vpatch revert --force {tree}`.\n")
    assert not (tmp_path / "state").exists()

    gone = vpatch("revert", "--force", tree)
    (kept,) = (tmp_path / "state/vpatch/discarded").iterdir()
    assert (gone.code, kept.read_text(), edits in gone.err) == (0, edits, True)
    assert contents_of(tree) == contents_of(slim("0.20.2"))

    vpatch("apply", tree)
    patched(tree, kept.read_text())
    assert sources(tree) == before


COUNT = """\
Format: 1
Subject: Count ranks.
Base: 0.20.2

--- vllm/distributed/parallel_state.py
@@ get_tensor_model_parallel_rank
+get_tp_group().counted = 1
 return get_tp_group().rank_in_group
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("how", "named"),
    [
        (["--with", TILES], f"--with {TILES} "),
        (["--overlay", TILES], f"--overlay {TILES} "),
        ([], ""),
        (["--patches", "count-them.vpatch", "--overlay", "count-them"], "--overlay count-them "),
    ],
)
def test_what_was_discarded_comes_back(
    vpatch: Program, tree: Path, how: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the two commands of the note, with the overlays that were applied, also where a patch file is not named."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "count-them.vpatch").write_text(COUNT)
    vpatch("apply", tree, *how)
    file = PARALLEL if "--patches" in how else ATTENTION
    marked = next(line for line in (tree / file).read_bytes().splitlines() if b"# vpatch: " in line)
    rewrite(tree / file, (tree / file).read_bytes().replace(marked, marked + b" # mine", 1))
    before = sources(tree)

    said = vpatch("revert", "--force", tree).err
    assert sources(tree) != before
    apply, patch = re.findall("after `vpatch ([^`]*)`, `([^`]*)` brings", said)[0]
    assert (named in apply, apply.endswith(str(tree))) == (True, True), said
    done = vpatch(*shlex.split(apply))
    assert done.code == 0, done.err
    subprocess.run(shlex.split(patch), check=True)
    assert sources(tree) == before


def test_what_stands_there_is_undone_by_patch(vpatch: Program, tree: Path, slim: Trees) -> None:
    assert "Nothing to show: no overlay is applied." in vpatch("diff", "--applied", tree).err
    vpatch("apply", tree, *BOTH)
    ran = vpatch("diff", "--applied", tree)

    assert f"--- /dev/null\n+++ b/{COMPANION}\n" in ran.out
    patched(tree, ran.out, "-R")
    assert sources(tree) == sources(slim("0.20.2"))


def test_what_one_overlay_changed(vpatch: Program, tree: Path) -> None:
    vpatch("apply", tree, *BOTH)
    found = vpatch("diff", "--applied", "--overlay", HYBRID, tree, "--json").json
    would = vpatch("revert", "--dry-run", "--overlay", HYBRID, tree, "--json").json

    assert {COMPANION, CONFIG} < set(found["files"]) == {file for file in would["changed"] if file.startswith("vllm/")}
    vpatch("revert", "--overlay", HYBRID, tree)
    patched(tree, found["diff"])
    assert vpatch("status", "--overlay", HYBRID, tree, "--json").json["overlays"][0]["state"] == "applied"


def test_an_edit_is_none_of_an_overlay(vpatch: Program, tree: Path) -> None:
    vpatch("apply", tree, *WORKSPACE, "--overlay", "custom-ar-expandable")
    of_one = ("diff", "--applied", *WORKSPACE, tree)
    before = vpatch(*of_one).out
    for file in (ATTENTION, PARALLEL):
        rewrite(tree / file, b"mine = 1\n" + (tree / file).read_bytes())

    ran = vpatch(*of_one)
    assert (ran.code, ran.out) == (0, before)
    assert f"note: {ATTENTION}: edited after vpatch, line 1: `vpatch diff --edits {tree}` shows it alone\n" in ran.err
    assert vpatch("diff", "--edits", *WORKSPACE, tree, "--json").json["files"] == [ATTENTION]
    assert vpatch("diff", "--edits", "--applied", tree).code == 2


def mine(tree: Path) -> None:
    rewrite(tree / CONFIG, (tree / CONFIG).read_bytes() + b"mine = 1\n")


def test_an_edit_stays_known(vpatch: Program, tree: Path) -> None:
    """No run makes it vpatch's: `apply` writes nothing, and RECORD vouches for what vpatch wrote, and no more."""
    vpatch("apply", tree, *ONLY)
    mine(tree)
    line = len((tree / CONFIG).read_bytes().splitlines())
    ways = ways_out(tree)
    note = f"note: {CONFIG}: edited after vpatch, line {line}; {ways}\n"

    with untouched(tree):
        for command in ("apply", "status", "diff"):
            ran = vpatch(*command.split(), tree, *ONLY)
            assert (ran.code, ran.err.count(note)) == (0, command != "diff")
            assert ran.err.endswith("Nothing to do: 1 overlay is applied; 1 file was edited after vpatch.\n")
        checked = vpatch("verify", tree, "--json")
    found = [(one["code"], one["file"], one["hint"]) for one in checked.json["problems"]]
    assert (checked.code, found) == (1, [("edited-after-vpatch", CONFIG, ways)])


def test_a_comment_is_an_edit_that_no_patch_file_has(vpatch: Program, tree: Path) -> None:
    vpatch("apply", tree, *ONLY)
    rewrite(tree / CONFIG, b"# mine\n" + (tree / CONFIG).read_bytes())

    assert f"; {ways_out(tree, keep=False)}\n" in vpatch("verify", tree, *ONLY).err


def test_an_edit_of_a_file_that_vpatch_left_alone(vpatch: Program, tree: Path) -> None:
    """It is no edit after vpatch. RECORD, which vpatch does not heal there, is untrue of it if an overlay reads it."""
    vpatch("apply", tree, *ONLY)
    rewrite(tree / PARALLEL, (tree / PARALLEL).read_bytes() + b"# mine\n")
    way = f"vpatch did not change it: `vpatch capture {tree}` makes a patch file of what others did; undo it, "
    way += f"or reinstall vLLM, then `vpatch apply {tree}`"

    said = vpatch("diff", "--edits", tree).err.splitlines()[-1]
    assert said == f"Nothing to show: no file that vpatch patched was edited since. Others: `vpatch doctor {tree}`."
    untrue = f"RECORD is not true: {PARALLEL}: its hash or size is not that of the file; {way}\n"
    assert (untrue in vpatch("verify", tree).err, vpatch("verify", tree, *ONLY).code) == (True, 0)
    found = vpatch("doctor", tree, "--json").json["findings"]
    assert [one["do"] for one in found if PARALLEL in one["where"]] == [way]


def test_a_revert_that_would_leave_something_writes_nothing(vpatch: Program, tree: Path) -> None:
    """No original is kept of a file that was copied back with vpatch's code in it."""
    vpatch("apply", tree, *BOTH)
    patched = (tree / CONFIG).read_bytes()
    vpatch("revert", tree)
    rewrite(tree / CONFIG, patched)
    vpatch("apply", tree, *BOTH)

    with unchanged(tree):
        for options in ((), ("-n",), ONLY):
            ran = vpatch("revert", tree, *options)
            assert (ran.code, f"cannot revert: {CONFIG}: {HYBRID} is applied, " in ran.err) == (1, True), ran.err


def test_an_edit_from_before_vpatch_is_the_original(vpatch: Program, tree: Path) -> None:
    mine(tree)
    before = contents_of(tree)
    vpatch("apply", tree, *ONLY)

    assert "edited" not in vpatch("status", tree, *ONLY).err
    assert vpatch("diff", "--edits", tree).err.endswith(f" was edited since. Others: `vpatch doctor {tree}`.\n")
    assert vpatch("verify", tree).code == 0
    assert vpatch("revert", tree).code == 0
    assert contents_of(tree) == before


def test_what_verify_says_of_an_overlay_that_was_left_out(vpatch: Program, tree: Path) -> None:
    """It is no failure; yet the table has it in red."""
    text = (tree / ARG_UTILS).read_text()
    rewrite(tree / ARG_UTILS, text.replace("key=lambda x: int(x)", "key=lambda y: float(y)").encode())
    vpatch("apply", tree, *ONLY)
    ran = vpatch("verify", tree)

    assert (ran.code, ran.err.splitlines()[-1].partition(")")[2]) == (0, "; 1 drifted, not applied.")


@pytest.mark.parametrize("command", ["status", *map(deep, ("apply", "diff", "verify"))])
def test_an_edit_of_an_overlays_own_line(vpatch: Program, tree: Path, command: str) -> None:
    """The overlay fits this vLLM: the messages show what the user changed, and commands that work."""
    vpatch("apply", tree, "--overlay", SIZES)
    line = "self.uniform_decode_query_len > {}:  # vpatch: mtp-capture-sizes"
    text = (tree / RUNNER).read_text()
    rewrite(tree / RUNNER, text.replace(line.format(1), line.format(2)).encode())
    ran = vpatch(command, tree, "--overlay", SIZES)

    (problem,) = (one for one in ran.err.splitlines() if one.startswith(f"edited after vpatch: {RUNNER}: line "))
    assert re.search(rf"expected `.*{re.escape(line.format(1))}`, found `.*{re.escape(line.format(2))}`; ", problem)
    assert problem.endswith(f"shows it; undo it, or discard it, and all overlays, by `vpatch revert --force {tree}`")
    assert ("does not fit" in ran.err, "note: " in ran.err, ran.code) == (False, False, 1)
    if command == "apply":
        exported = vpatch("run", "--export", tree.parent / "farm", "--tree", tree, "--overlay", SIZES)
        assert (exported.code, problem in exported.err.splitlines()) == (1, True), exported.err
    if command != "verify":
        assert ran.err.splitlines()[-1].endswith(f"{SIZES} was edited after vpatch.")


@pytest.mark.deep
def test_what_stays_is_whole_after_an_edit_was_discarded(
    vpatch: Program, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit that stays is neither shown nor kept as a discarded one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    vpatch("apply", tree, *WORKSPACE, "--overlay", TILES, "--overlay", "custom-ar-expandable")
    ours = (tree / PARALLEL).read_bytes()
    for file in (ATTENTION, PARALLEL):
        rewrite(tree / file, (tree / file).read_bytes() + b"# mine\n")

    ran = vpatch("revert", "--force", "--overlay", TILES, tree)
    (kept,) = (tmp_path / "state/vpatch/discarded").iterdir()
    assert (ran.code, f"+++ b/{ATTENTION}\n" in kept.read_text(), f"+++ b/{PARALLEL}\n" in kept.read_text()) == (
        0,
        1,
        0,
    )
    assert (f"note: {PARALLEL}: edited" in ran.err, f"note: {ATTENTION}: edited" in ran.err) == (True, False)
    rewrite(tree / PARALLEL, ours)
    assert vpatch("verify", tree, "--json").json["digest"] == written_to(tree)["digest"]


@pytest.mark.parametrize("more", [(), ("--overlay", HYBRID)])
def test_a_dry_run_of_revert_says_what_it_would_do(vpatch: Program, tree: Path, more: tuple[str, ...]) -> None:
    vpatch("apply", tree, *BOTH)
    with unchanged(tree):
        would = vpatch("revert", "--dry-run", tree, *more, "--json").json
        said = vpatch("revert", "-n", tree, *more).err
    done = vpatch("revert", tree, *more, "--json").json

    assert {key: would[key] for key in ("changed", "removed")} == {key: done[key] for key in ("changed", "removed")}
    assert "Nothing is written yet: `vpatch revert " in said


def test_the_digest_is_that_of_a_receipt(vpatch: Program, tree: Path) -> None:
    assert vpatch("status", tree, *ONLY, "--json").json["digest"] is None
    found = {verb: vpatch(verb, tree, *ONLY, "--json").json["digest"] for verb in ("apply", "status", "verify")}

    assert {*found.values()} == {written_to(tree)["digest"]}
    assert f"(digest {found['apply'][:12]})" in vpatch("verify", tree, *ONLY).err
    mine(tree)
    assert vpatch("status", tree, *ONLY, "--json").json["digest"] is None
