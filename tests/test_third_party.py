"""An overlay from another distribution is found, applied and reverted like vpatch's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Process, Program, Ran, Trees
from tests.hybrid import INTERFACE
from tests.matrix.git_server import git
from tests.needs import need
from tests.processes import UNWATCHED
from tests.run.conftest import install
from tests.tiers import deep

OURS, THEIRS, PATCH = "turboquant-hybrid", "machine-names", "i586-machines"
COMPANION = "vllm/_vpatch/machine_names.py"
PACKAGE = "vpatch_machine_names"


@pytest.fixture
def here(vpatch: Program, third_party: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Run the program in this process, which then has both distributions."""

    def run(*arguments: str | Path) -> Ran:
        with monkeypatch.context() as patch:
            patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
            patch.syspath_prepend(str(third_party))
            return vpatch(*arguments)

    return run


def test_theirs_are_listed_and_explained(here: Program, process: Process, third_party: Path) -> None:
    listed = {item["id"]: item for item in here("list", "--json").json["overlays"]}
    assert [listed[name]["origin"] for name in (THEIRS, PATCH)] == ["vpatch-machine-names 1.2.3"] * 2
    assert listed[OURS]["origin"].startswith("vpatch ")
    env = {**UNWATCHED, "PYTHONPATH": str(third_party)}
    why = "Why\n  Know a machine by its other names, too.\n\n  Debian says"
    assert f"From vpatch-machine-names 1.2.3.\n\n{why}" in process("show", THEIRS, env=env).out
    shown = process("show", PATCH, env=env).out
    assert "Why\n  Some builds of Linux for x86 name the machine after the\n  processor that" in shown
    assert "Releases\n  vLLM >=0.20.0,<=0.21.0: pending\n" in shown


@pytest.mark.parametrize(
    ("theirs", "line", "added"),
    [
        (THEIRS, "machine = machine_name(platform.machine())  # vpatch: machine-names\n", [COMPANION]),
        deep(PATCH, 'if machine in ("x86_64", "amd64", "i386", "i586", "i686"):  # vpatch: i586-machines\n', []),
    ],
)
def test_their_overlay_alone(
    here: Program, linked: Trees, slim: Trees, theirs: str, line: str, added: list[str]
) -> None:
    """A module, or a patch file."""
    tree = linked("0.20.2")
    named = ("--overlay", theirs)

    rows = here("matrix", "--tree", tree, *named, "--json").json["rows"]
    ran = here("apply", tree, *named, "--json")

    assert [(cell["id"], cell["state"], cell["problems"]) for cell in rows[0]["overlays"]] == [(theirs, "pending", [])]
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["changed"] == ["vllm-0.20.2.dist-info/RECORD", *added, INTERFACE]
    assert line in (tree / INTERFACE).read_text()
    states = {i["id"]: i["state"] for i in here("status", tree, "--json", *named, "--overlay", OURS).json["overlays"]}
    assert states == {theirs: "applied", OURS: "pending"}
    assert here("apply", tree, *named, "--json").json["changed"] == []
    assert here("verify", tree, *named).code == 0
    assert here("revert", tree, *named).code == 0
    subprocess.run(["diff", "-r", tree, slim("0.20.2")], check=True)


def test_a_patch_file_is_run(process: Process, slim: Trees, third_party: Path, tmp_path: Path) -> None:
    """A plan that was remembered is made again once the file has changed."""
    theirs = shutil.copytree(third_party, tmp_path / "theirs")
    installed = install(tmp_path, slim("0.20.2"))
    shows = f"import sys; print([open(f'{{top}}/{INTERFACE}').read() for top in sys.path if '/cache/' in top][0])"
    words = ("run", "--cache", installed.cache, "--overlay", PATCH, "--", installed.python, "-c", shows)
    file = theirs / PACKAGE / f"{PATCH}.vpatch"
    for name in ("i586", "i586", "geode"):
        file.write_text(file.read_text().replace('i586",', f'{name}",'))
        ran = process(*words, env={**UNWATCHED, "PYTHONPATH": str(theirs)})
        assert f'"i386", "{name}", "i686"):  # vpatch: {PATCH}\n' in ran.out, ran.err


CHECK = """
import sys
from pathlib import Path
from vpatch.testing import Case, State, check
check(Case("0.20.2", State.PENDING), sys.argv[1], *map(Path, sys.argv[2:]))
"""


@pytest.mark.deep
def test_what_a_patch_file_takes_is_recorded(slim: Trees, third_party: Path, tmp_path: Path) -> None:
    """`check` asks for the list, as of any overlay."""
    theirs = shutil.copytree(third_party, tmp_path / "theirs")
    env = {**UNWATCHED, "PYTHONPATH": str(theirs)}

    def checked(scratch: str) -> str:
        (tmp_path / scratch).mkdir()
        words = (sys.executable, "-c", CHECK, PATCH, slim("0.20.2"), tmp_path / scratch)
        ran = subprocess.run(words, env=env, stderr=subprocess.PIPE, text=True, check=False)
        return str(ran.stderr)

    assert f"run `python -m vpatch.calls {PATCH} --release" in checked("first")
    subprocess.run([sys.executable, "-m", "vpatch.calls", PATCH, "-r", slim("0.20.2")], env=env, check=True)
    assert (theirs / PACKAGE / f"_calls/{PATCH}.json").exists()
    assert checked("second") == ""


GONE = [{"id": THEIRS, "files": [COMPANION, INTERFACE]}]


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["site-packages", "checkout"])
def test_an_uninstalled_distribution_is_named(here: Program, vpatch: Program, linked: Trees, kind: str) -> None:
    tree = linked("0.20.2")
    if kind == "checkout":
        need("git")
        shutil.rmtree(tree / "vllm-0.20.2.dist-info")
        git(tree, "init", "-q")
        git(tree, "add", "-A")
        git(tree, "commit", "-q", "-m", "0.20.2")
    assert here("apply", tree, "--overlay", THEIRS).code == 0
    for command in ("status", "verify"):
        assert here(command, tree, "--json").json["not_installed"] == []

    ran, found = vpatch("status", tree), vpatch("status", tree, "--json")
    assert (ran.code, found.json["not_installed"]) == (0, GONE)
    remedy = f"`vpatch revert {tree}` removes it, with all others."
    assert f"note: {THEIRS} is applied, too; its package is not installed here. {remedy}\n" in ran.err

    ran, found = vpatch("verify", tree), vpatch("verify", tree, "--json")
    assert (ran.code, found.json["not_installed"]) == (1, GONE)
    cause = f"{THEIRS} is applied, and its package is not installed here; install it, or remove all by `vpatch revert`"
    problem, outcome = ran.err.splitlines()[1:]
    assert problem == f"cannot verify: {tree}: {cause}"
    assert (outcome.startswith("Not verified: 1 problem. "), f"`vpatch apply {tree}`" in outcome) == (True, True)

    ran = vpatch("revert", tree)
    said = f"Reverted 1 overlay ({THEIRS}, whose package is not installed here): 1 file restored, 1 removed. "
    assert (ran.code, ran.err.splitlines()[-1].startswith(said)) == (0, True)
    assert vpatch("status", tree, "--json").json["not_installed"] == []


@pytest.mark.deep
def test_of_an_uninstalled_distribution_the_files_are_checked(here: Program, vpatch: Program, linked: Trees) -> None:
    tree = linked("0.20.2")
    assert here("apply", tree, "--overlay", OURS, "--overlay", THEIRS).code == 0
    alone = vpatch("verify", tree, "--overlay", OURS)
    assert (alone.code, f"note: {THEIRS} is applied, too; " in alone.err) == (0, True)
    (tree / COMPANION).unlink()
    (tree / COMPANION).write_text(f"def broken(:  # vpatch: {THEIRS}\n")

    found = vpatch("verify", tree, "--json").json["problems"]

    assert {problem["what"] for problem in found} == {"cannot verify", "does not compile", "edited after vpatch"}
