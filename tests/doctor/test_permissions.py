"""Whether this user could apply overlays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_bad_system import humble
from tests.conftest import untouched
from tests.doctor.conftest import Diagnose, packages, put
from tests.forks import output
from tests.hybrid import ATTENTION
from tests.needs import root_only


def test_it_can(diagnose: Diagnose, stock: Path) -> None:
    (found,) = diagnose(stock, name="permission")

    assert (found["level"], found["what"]) == ("ok", "this user can change the files")


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


@root_only
def test_a_folder_that_this_user_may_not_write(stock: Path) -> None:
    closed = packages(stock) / ATTENTION
    closed.parent.chmod(0o555)
    with untouched(stock):
        _code, out, _err = output("doctor", stock, "--json", first=humble)

    (found,) = (one for one in json.loads(out)["findings"] if one["name"] == "permission")
    assert (found["level"], found["where"]) == ("warning", ATTENTION)
    assert found["what"].endswith("would fail: permission denied to write in its folder")
