"""Files of vLLM that somebody else changed, added or removed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Program, Trees
from tests.doctor.conftest import ELSEWHERE, Diagnose, packages, put
from tests.hybrid import ATTENTION, INFO, INTERFACE, ONLY


def edit(venv: Path, file: str, comment: str) -> None:
    path = packages(venv) / file
    put(path, comment.encode() + b"\n" + path.read_bytes())


def test_as_installed(diagnose: Diagnose, healthy: Path) -> None:
    """What vpatch changed is in RECORD, so it is no edit."""
    (edits,) = diagnose(healthy, name="edit")

    assert (edits["level"], edits["what"]) == ("ok", "every other Python file is the one that was installed")
    assert diagnose(healthy, name="unlisted-file") == diagnose(healthy, name="missing-file") == []


@pytest.mark.parametrize(
    ("comment", "what"),
    [
        ("# debugging", "files that were edited, or changed by another patcher"),
        ("# [Genesis wiring marker: P4 TQ hybrid]", "files that Genesis, another patcher, changed"),
        ("# LOCAL workspace lock disable -- see club-3090", "files that club-3090, another patcher, changed"),
    ],
)
def test_another_patcher(diagnose: Diagnose, stock: Path, comment: str, what: str) -> None:
    edit(stock, ELSEWHERE, comment)
    (alone,) = diagnose(stock, name="edit")
    edit(stock, ATTENTION, comment)
    (edits,) = diagnose(stock, name="edit")

    assert (alone["level"], alone["what"], alone["where"]) == ("warning", what, ELSEWHERE)
    assert edits["what"] == f"{what}; overlays change some of them, too"
    assert edits["where"] == f"{ATTENTION}, {ELSEWHERE}", "first what matters most"
    assert edits["do"] == f"if you do not want these changes, reinstall vLLM, then `vpatch apply {stock}`"


def test_two_patchers(diagnose: Diagnose, stock: Path) -> None:
    edit(stock, ELSEWHERE, "# [Genesis wiring marker: P1]")
    edit(stock, ATTENTION, "# edited")

    unknown, genesis = diagnose(stock, name="edit")

    assert (unknown["where"], genesis["where"]) == (ATTENTION, ELSEWHERE)
    assert unknown["what"].endswith("; overlays change them, too")


def test_files_that_were_copied_from_a_patched_vllm(
    vpatch: Program, diagnose: Diagnose, stock: Path, healthy: Path
) -> None:
    """With the marks, but without RECORD; those of overlays that are applied are problems already."""
    shutil.rmtree(packages(stock) / "vllm")
    shutil.copytree(packages(healthy) / "vllm", packages(stock) / "vllm")

    problems = [one for one in diagnose(stock, *ONLY) if one["level"] == "problem"]
    (edits,) = diagnose(stock, *ONLY, name="edit")

    assert {one["name"] for one in problems} == {"record"}
    assert INTERFACE in {one["where"] for one in problems}
    assert edits["what"].startswith("files with vpatch's marks that RECORD does not describe")
    assert INTERFACE not in edits["where"], "each is reported once"


def test_missing_files(diagnose: Diagnose, stock: Path) -> None:
    (packages(stock) / ELSEWHERE).unlink()

    (missing,) = diagnose(stock, name="missing-file")

    assert (missing["level"], missing["where"]) == ("warning", ELSEWHERE)
    assert diagnose(stock, name="edit") == []


def test_added_files(diagnose: Diagnose, healthy: Path) -> None:
    put(packages(healthy) / "vllm/_genesis/__init__.py", "")

    (added,) = diagnose(healthy, name="unlisted-file")

    assert (added["level"], added["where"]) == ("note", "vllm/_genesis/__init__.py"), "not those in vllm/_vpatch"


def test_without_record(diagnose: Diagnose, stock: Path) -> None:
    (packages(stock) / INFO / "RECORD").unlink()

    assert diagnose(stock, name="edit") == []


def test_a_whole_release(diagnose: Diagnose, pristine: Trees) -> None:
    """Every Python file of a release, as published, is compared."""
    (edits,) = diagnose(pristine("0.33.0"), name="edit")

    assert edits["level"] == "ok"
