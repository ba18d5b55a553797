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

SOURCE = Path(__file__).with_name("third_party")
OURS, THEIRS = "turboquant-hybrid", "machine-names"
COMPANION = "vllm/_vpatch/machine_names.py"
PACKAGE = "vpatch_machine_names"


def install(source: Path, target: Path) -> None:
    """Build and install a distribution into a folder, with the build tools of this environment."""
    options = ["--quiet", "--offline", "--no-cache", "--no-deps", "--no-build-isolation", "--python", sys.executable]
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "install", *options, "--target", target, source], check=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("third-party")
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    install(folder / "source", folder / "target")
    return folder / "target"


@pytest.fixture
def here(vpatch: Program, installed: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Run the program in this process, which then has both distributions."""

    def run(*arguments: str | Path) -> Ran:
        with monkeypatch.context() as patch:
            patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
            patch.syspath_prepend(str(installed))
            return vpatch(*arguments)

    return run


def test_their_overlay_alone(here: Program, process: Process, installed: Path, linked: Trees, slim: Trees) -> None:
    listed = {item["id"]: item for item in here("list", "--json").json["overlays"]}
    assert listed[THEIRS]["origin"] == "vpatch-machine-names 1.2.3"
    assert listed[OURS]["origin"].startswith("vpatch ")
    shown = process("show", THEIRS, env={**UNWATCHED, "PYTHONPATH": str(installed)}).out
    why = "Why\n  Know a machine by its other names, too.\n\n  Debian says"
    assert f"From vpatch-machine-names 1.2.3.\n\n{why}" in shown
    tree = linked("0.20.2")

    ran = here("apply", tree, "--overlay", THEIRS, "--json")

    assert (ran.code, ran.err) == (0, "")
    assert ran.json["changed"] == ["vllm-0.20.2.dist-info/RECORD", COMPANION, INTERFACE]
    assert "machine = machine_name(platform.machine())  # vpatch: machine-names\n" in (tree / INTERFACE).read_text()
    both = ("--overlay", THEIRS, "--overlay", OURS)
    states = {i["id"]: i["state"] for i in here("status", tree, "--json", *both).json["overlays"]}
    assert states == {THEIRS: "applied", OURS: "pending"}
    assert here("verify", tree, "--overlay", THEIRS).code == 0
    assert here("revert", tree, "--overlay", THEIRS).code == 0
    subprocess.run(["diff", "-r", tree, slim("0.20.2")], check=True)


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
    assert ran.err.splitlines()[1:] == [f"cannot verify: {tree}: {cause}", "Not verified: 1 problem."]

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

    assert {problem["what"] for problem in found} == {"cannot verify", "does not compile", "RECORD is not true"}
