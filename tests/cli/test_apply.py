"""`apply` and `revert` end to end: a second run changes nothing, and a revert leaves nothing behind."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover

from tests.cli.conftest import rewrite
from tests.conftest import Process, Program, Ran, Trees, environment, unchanged, untouched
from tests.hybrid import COMPANION, CONFIG, HYBRID, ONLY
from tests.releases import pending, tiered


@pytest.fixture
def venv(tmp_path: Path, linked: Trees) -> Path:
    """A virtual environment whose interpreter imports a tree by a .pth file, and prints when it starts."""
    packages = environment(tmp_path / "venv")
    (packages / "vllm.pth").write_text(f"{linked('0.20.2')}\n")
    (packages / "sitecustomize.py").write_text("import sys\nprint('hello from site')\n")
    return tmp_path / "venv"


def test_revert_of_an_overlay_that_is_not_applied(vpatch: Program, tree: Path) -> None:
    """What was asked for holds already."""
    for applied in (False, True):
        if applied:
            vpatch("apply", "-q", tree, "--overlay", "turboquant-workspace")
        with untouched(tree):
            ran = vpatch("revert", tree, *ONLY)
        assert (ran.code, ran.err.splitlines()[-1]) == (0, f"Nothing to revert: {HYBRID} is not applied.")

    ran = vpatch("revert", tree, *ONLY, "--overlay", "turboquant-workspace", "--json")

    assert (ran.code, ran.json["notes"]) == (0, [f"{HYBRID}: not applied, so there was nothing to revert"])
    assert "vllm/_vpatch/turboquant_workspace.py" in ran.json["removed"]


def test_revert_of_a_half_applied_overlay(vpatch: Program, tree: Path, slim: Trees) -> None:
    vpatch("apply", tree, *ONLY)
    rewrite(tree / CONFIG, (slim("0.20.2") / CONFIG).read_bytes())
    assert vpatch("status", tree, *ONLY, "--json").json["overlays"][0]["state"] == "pending"

    ran = vpatch("revert", "-q", tree, *ONLY)

    assert (ran.code, ran.err) == (0, "")
    subprocess.run(["diff", "-r", tree, slim("0.20.2")], check=True)


def test_another_interpreter(child: Process, venv: Path) -> None:
    """vpatch asks the interpreter where vLLM is; whatever the interpreter prints when it starts does no harm."""
    python, tree = venv / "bin/python", venv.parent / "linked"

    applied = child("apply", "--python", python, *ONLY, "--json")
    assert (applied.code, applied.json["tree"]) == (0, str(tree))
    assert COMPANION in applied.json["changed"]

    for arguments in (("verify", "--python", python), ("status", python), ("status", tree)):
        ran = child(*arguments, *ONLY, "--json")
        assert (ran.code, ran.err) == (0, "")
        assert (ran.json["tree"], ran.json["overlays"][0]["state"]) == (str(tree), "applied")
    active = child("revert", "--json", env={"VIRTUAL_ENV": str(venv)})
    assert (active.code, active.json["tree"], active.json["changed"]) == (0, str(tree), applied.json["changed"])


def test_revert_of_one_overlay_must_know_the_others(vpatch: Program, tree: Path) -> None:
    """Reverting one overlay recomputes the others; if vpatch does not know one of them, it changes nothing."""
    vpatch("apply", tree, *ONLY)
    (tree / CONFIG).write_bytes((tree / CONFIG).read_bytes() + b"more = 1  # vpatch: from-elsewhere\n")

    says = f"cannot keep: {CONFIG}: from-elsewhere is in it, and is not installed; "
    says += "`vpatch revert` without --overlay removes all\n"
    with unchanged(tree):
        assert vpatch("revert", "-q", tree, *ONLY) == Ran(1, "", says)


def test_the_note_of_a_shape_is_printed_once(vpatch: Program, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No overlay of vpatch's own has one. The engine and the parses stay those of the real overlay."""
    (hybrid,) = (item for item in discover() if item.id == HYBRID)
    shape = hybrid.overlay.parts[0].shapes[0]
    monkeypatch.setitem(vars(shape), "note", "do not do this")

    ahead = vpatch("apply", "-q", tree, "--check", *ONLY, "--json")
    done, again = (vpatch("apply", "-q", tree, *ONLY) for _ in range(2))
    asked = vpatch("apply", "-qv", tree, *ONLY)

    assert ahead.json["notes"] == [f"{HYBRID}: do not do this"]
    for ran in (done, asked):
        assert (ran.code, ran.err) == (0, f"note: {HYBRID}: do not do this\n")
    assert (again.code, again.err) == (0, ""), "once is enough"


@pytest.mark.parametrize("release", tiered(pending(HYBRID), ("0.20.2",)))
def test_patched_without_dist_info(vpatch: Program, linked: Trees, release: str) -> None:
    tree = linked(release)
    assert vpatch("apply", tree, *ONLY).code == 0
    shutil.rmtree(next(tree.glob("*.dist-info")))

    ran = vpatch("apply", tree, *ONLY, "--json")
    assert (ran.code, ran.json["overlays"][0]["state"], ran.json["changed"]) == (0, "applied", [])
    for only in ((), ONLY):
        ran = vpatch("revert", "-q", tree, *only)
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 6)
        for line in ran.err.splitlines():
            assert line.startswith("cannot revert: vllm/")
            assert line.endswith("reinstall vLLM, or revert the commit that has it")
