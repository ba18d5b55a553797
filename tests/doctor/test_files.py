"""Files of vLLM that a person or another patcher changed, added or removed; and whether this user could write them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from vpatch.doctor import files
from vpatch.doctor.subject import Level

from tests.cli.test_bad_system import humble
from tests.conftest import Program, Trees
from tests.doctor.conftest import ELSEWHERE, Diagnose, Examine, brief, packages, put
from tests.forks import output
from tests.hybrid import ATTENTION, INFO, INTERFACE, ONLY
from tests.needs import root_only

EDITED = "files that were edited, or changed by another patcher"


def edit(venv: Path, file: str, comment: str) -> None:
    path = packages(venv) / file
    put(path, comment.encode() + b"\n" + path.read_bytes())


def test_as_installed(examine: Examine, healthy: Path) -> None:
    """What vpatch changed is in RECORD, so it is no edit."""
    assert brief(files.edits(examine(healthy))) == [
        ("edit", "ok", "every other Python file is the one that was installed")
    ]
    assert brief(files.permissions(examine(healthy))) == [("permission", "ok", "this user can change the files")]
    (packages(healthy) / INFO / "RECORD").unlink()
    assert list(files.edits(examine(healthy))) == []


@pytest.mark.parametrize(
    ("comment", "what"),
    [
        ("# debugging", EDITED),
        ("# [Genesis wiring marker: P4 TQ hybrid]", "files that Genesis, another patcher, changed"),
        ("# LOCAL workspace lock disable -- see club-3090", "files that club-3090, another patcher, changed"),
    ],
)
def test_another_patcher(examine: Examine, stock: Path, comment: str, what: str) -> None:
    edit(stock, ELSEWHERE, comment)
    (alone,) = files.edits(examine(stock))
    edit(stock, ATTENTION, comment)
    (both,) = files.edits(examine(stock))

    assert (alone.level, alone.what, alone.where) == (Level.WARNING, what, (ELSEWHERE,))
    assert both.what == f"{what}; overlays change some of them, too"
    assert both.where == (ATTENTION, ELSEWHERE), "first what matters most"
    kept = f"to keep these changes as a patch file: `vpatch capture {stock}`; "
    assert both.do == f"{kept}if you do not want them, reinstall vLLM, then `vpatch apply {stock}`"


def test_two_patchers_and_files_that_came_or_went(examine: Examine, healthy: Path) -> None:
    root = packages(healthy)
    lost = ATTENTION.replace("turboquant_attn", "__init__")
    (root / lost).unlink()
    put(root / "vllm/_genesis/__init__.py", "")  # unlike those in vllm/_vpatch
    edit(healthy, ELSEWHERE, "# [Genesis wiring marker: P1]")
    edit(healthy, "vllm/__init__.py", "# edited")
    found = list(files.edits(examine(healthy)))

    assert [(one.name, one.level, one.where) for one in found] == [
        ("edit", Level.WARNING, ("vllm/__init__.py",)),
        ("edit", Level.WARNING, (ELSEWHERE,)),
        ("missing-file", Level.WARNING, (lost,)),
        ("unlisted-file", Level.NOTE, ("vllm/_genesis/__init__.py",)),
    ]


def test_files_that_were_copied_from_a_patched_vllm(
    vpatch: Program, diagnose: Diagnose, stock: Path, healthy: Path
) -> None:
    """With the marks, but without RECORD; those of overlays that are applied are problems already."""
    shutil.rmtree(packages(stock) / "vllm")
    shutil.copytree(packages(healthy) / "vllm", packages(stock) / "vllm")
    found = diagnose(stock, *ONLY)
    problems = [one for one in found if one["level"] == "problem"]
    (edits,) = (one for one in found if one["name"] == "edit")

    assert {one["name"] for one in problems} == {"record"}
    assert INTERFACE in {one["where"] for one in problems}
    assert edits["what"].startswith("files with vpatch's marks that RECORD does not describe")
    assert INTERFACE not in edits["where"], "each is reported once"


@root_only
def test_files_that_this_user_may_not_read(stock: Path) -> None:
    closed = packages(stock) / "vllm/platforms"
    closed.chmod(0)
    code, out, _err = output("doctor", stock, "--json", first=humble)
    closed.chmod(0o755)

    found = json.loads(out)["findings"]
    unread = [one for one in found if one["name"] == "unreadable"]
    assert code == 1
    assert {(one["what"], one["do"]) for one in unread} == {
        ("cannot read: permission denied", "run `vpatch doctor` as a user who may read it")
    }
    assert len({one["where"] for one in unread}) == len(unread), "each is reported once"


@pytest.mark.parametrize(("venv", "level"), [("stock", "warning"), ("healthy", "note")])
def test_a_link(diagnose: Diagnose, request: pytest.FixtureRequest, tmp_path: Path, venv: str, level: str) -> None:
    """Of every reason why `apply` refuses, the test has one; `vpatch.tree.guard` knows all."""
    top: Path = request.getfixturevalue(venv)
    file = packages(top) / ATTENTION
    real = put(tmp_path / "real.py", file.read_bytes())
    file.unlink()
    file.symlink_to(real)
    (found,) = diagnose(top, name="permission")

    assert (found["level"], found["where"]) == (level, ATTENTION)
    assert f"it stands for {real}" in found["what"]
    assert bool(found["do"]) == (level == "warning")


@pytest.mark.deep
def test_a_whole_release(diagnose: Diagnose, pristine: Trees) -> None:
    """Every Python file of a release, as published, is compared."""
    (edits,) = diagnose(pristine("0.33.0"), name="edit")

    assert edits["level"] == "ok"
