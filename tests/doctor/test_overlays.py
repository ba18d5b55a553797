"""The state of overlays, and harm to the files that they changed: reported, and healed by the command that is named."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from vpatch import api

from tests import releases
from tests.cli.test_verify import HARM
from tests.conftest import Program, Trees
from tests.doctor.conftest import Diagnose, packages, put
from tests.hybrid import ARG_UTILS, CONFIG, DEFAULT, HYBRID, INFO, INTERFACE, ONLY
from tests.tiers import deep


def test_states(diagnose: Diagnose, stock: Path, healthy: Path) -> None:
    def brief(*arguments: str | Path) -> list[tuple[str, str, str]]:
        found = diagnose(*arguments)
        return [(one["level"], one["what"], one["do"]) for one in found if one["name"] in {"overlay", "files"}]

    unneeded = ("ok", f"nothing to change in this vLLM: {', '.join(releases.unneeded('0.20.2'))}", "")
    names, ready = ", ".join(DEFAULT), "ready to apply, but not applied: "
    complete = ("ok", "the files that overlays changed are complete", "")
    assert brief(healthy) == [("ok", f"applied: {names}", ""), unneeded, complete]
    assert brief(stock) == [("note", f"{ready}{names}", f"`vpatch apply {stock}`"), unneeded]
    named = ("problem", f"{ready}{HYBRID}", f"`vpatch apply --overlay {HYBRID} {stock}`")
    assert brief(stock, *ONLY) == [named]


def test_drifted(diagnose: Diagnose, stock: Path) -> None:
    file = packages(stock) / CONFIG
    put(file, file.read_text().replace("def get_boundary_skip_layers(", "def get_skipped_layers("))
    *misfits, pending = (one for one in diagnose(stock, name="overlay") if one["level"] != "ok")

    assert misfits
    for one in misfits:
        name = one["what"].partition(" ")[0]
        assert one["level"] == "problem"
        assert one["what"].startswith(f"{name} does not fit this vLLM: ")
        assert one["where"].startswith(CONFIG)
        assert one["do"] == f"`vpatch status -v --overlay {name} {stock}`"
    assert pending["what"].startswith("ready to apply, but not applied: ct-fp8-lm-head, ")
    apply = re.fullmatch(r"`vpatch (apply (--overlay .*)+)`", pending["do"])
    assert apply, "without --overlay, it would be refused"


def test_half_applied(diagnose: Diagnose, healthy: Path) -> None:
    root = packages(healthy)
    put(root / CONFIG, (root / INFO / "vpatch/originals" / CONFIG).read_bytes())
    half, *_ = diagnose(healthy, name="overlay")

    assert (half["level"], half["do"]) == ("problem", f"`vpatch apply {healthy}`")
    assert half["what"].startswith(f"{HYBRID} is half applied: ")
    assert ARG_UTILS in half["where"]
    assert CONFIG not in half["where"]


NAMES = {
    "edited": ("edited", "`vpatch diff --edits "),
    "edited, as RECORD says": ("edited", "`vpatch diff --edits "),
    "changed again": ("overlay", "`vpatch diff --edits "),
    "untrue RECORD": ("record", "`vpatch apply"),
    "forgotten row": ("record", "`vpatch apply"),
    "no RECORD": ("record", "reinstall vLLM, then `vpatch apply"),
    "stale bytecode": ("bytecode", "`vpatch apply"),
    "missing companion": ("record", "`vpatch apply"),
    "broken syntax": ("overlay", "`vpatch diff --edits "),
    "torn provenance": ("provenance", "reinstall vLLM, then `vpatch apply"),
}


@pytest.fixture(scope="module")
def once(slim: Trees, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = shutil.copytree(slim("0.20.2"), tmp_path_factory.mktemp("once") / "tree")
    assert api.apply(tree, [HYBRID]).changed
    return tree


FIRST = ("untrue RECORD", "stale bytecode", "torn provenance")


@pytest.mark.parametrize("harm", [harm if harm in FIRST else deep(harm) for harm in NAMES])
def test_harm_to_changed_files(vpatch: Program, diagnose: Diagnose, once: Path, tmp_path: Path, harm: str) -> None:
    """The harm of `tests/cli/test_verify.py`; what the finding names last heals it, unless that is a new vLLM."""
    tree = shutil.copytree(once, tmp_path / "site-packages")
    HARM[harm][0](tree)
    name, do = NAMES[harm]
    found = diagnose(tree, *ONLY, name=name)

    assert any(one["level"] == "problem" and one["do"].startswith(do) for one in found), found
    cure = re.findall(r"`vpatch ([^`]*)`", found[0]["do"])[-1]
    healed = vpatch(*shlex.split(cure)).code == 0 and all(
        one["what"].startswith("ready to apply, ") for one in diagnose(tree, *ONLY, name=name) if one["level"] != "ok"
    )
    assert healed == (not do.startswith("reinstall"))


def test_a_record_that_is_no_table(diagnose: Diagnose, once: Path, tmp_path: Path) -> None:
    """It stops two examinations, and is reported once; the others go on."""
    tree = shutil.copytree(once, tmp_path / "site-packages")
    put(tree / INFO / "RECORD", '"' + "x" * 200_000)
    found = diagnose(tree, *ONLY)

    (bad,) = (one for one in found if one["level"] == "problem")
    assert (bad["name"], bad["where"], bad["do"]) == ("unreadable", f"{INFO}/RECORD", "reinstall vLLM")
    assert {"overlay", "python", "gpu"} <= {one["name"] for one in found}


def test_a_run_that_was_killed(vpatch: Program, diagnose: Diagnose, once: Path, tmp_path: Path) -> None:
    tree = shutil.copytree(once, tmp_path / "site-packages")
    put(tree / INFO / "vpatch/under-way.json", '{"schema": 1, "files": {}}')
    (unfinished,) = diagnose(tree, *ONLY, name="unfinished")

    apply = f"vpatch apply --overlay {HYBRID} {tree}"
    assert (unfinished["level"], unfinished["do"]) == ("problem", f"complete it: `{apply}`")
    assert vpatch(*apply.split()[1:]).code == 0
    assert diagnose(tree, *ONLY, name="unfinished") == []


def test_overlays_that_are_not_installed(diagnose: Diagnose, slim: Trees, once: Path, tmp_path: Path) -> None:
    """A mark alone, and one beside what vpatch wrote."""
    for number, (source, file) in enumerate(((slim("0.20.2"), INTERFACE), (once, ARG_UTILS))):
        tree = shutil.copytree(source, tmp_path / f"tree{number}")
        put(tree / file, (tree / file).read_bytes() + b"x = 1  # vpatch: of-nobody\n")
        (mark,) = diagnose(tree, name="mark")
        assert mark["level"] == "problem"
        if source == once:
            assert mark["what"].startswith("cannot verify: of-nobody is applied, and its package is not installed here")
            assert mark["do"] == f"install the package of that overlay, or remove all: `vpatch revert {tree}`"
        else:
            assert mark["where"] == INTERFACE
            assert mark["do"] == "install the package of that overlay, or reinstall vLLM"


def test_stale_bytecode_in_a_checkout(diagnose: Diagnose, once: Path, tmp_path: Path) -> None:
    """There, `vpatch apply` leaves the bytecode of files alone that it does not change."""
    tree = shutil.copytree(once, tmp_path / "checkout")
    HARM["stale bytecode"][0](tree)
    shutil.rmtree(tree / INFO)
    subprocess.run(["/usr/bin/env", "git", "init", "-q", tree], check=True, env={})

    (stale,) = diagnose(tree, *ONLY, name="bytecode")
    subprocess.run(["/bin/sh", "-c", stale["do"].split("`")[1]], check=True, env={"PATH": "/bin"})

    assert diagnose(tree, *ONLY, name="bytecode") == []
