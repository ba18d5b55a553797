"""A second start plans nothing, unless something that the plan follows from has changed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import vpatch.farm.planning
from vpatch.core.catalogue import Selection
from vpatch.core.engine import Engine
from vpatch.errors import Failure
from vpatch.farm.command import Command
from vpatch.farm.launch import prepare

from tests.engines import engine_of
from tests.farm.conftest import Installed

FILE = "vllm/engine/arg_utils.py"


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans that were made."""
    made: list[str] = []

    def counting(*arguments: Any) -> Engine:
        made.append("plan")
        return engine_of(*arguments)

    monkeypatch.setattr(vpatch.farm.planning, "Engine", counting)
    return made


def test_a_second_start_plans_nothing(installed: Installed, plans: list[str]) -> None:
    first, second = installed.content(), installed.content()

    assert (first, plans) == (second, ["plan"])
    assert first.files


def edit(installed: Installed) -> None:
    data = (installed.root / FILE).read_bytes()
    (installed.root / FILE).unlink()
    (installed.root / FILE).write_bytes(data + b"\nx = 1\n")


def add_a_file_that_was_missing(installed: Installed) -> None:
    (installed.root / "vllm/_vpatch").mkdir()
    (installed.root / "vllm/_vpatch/turboquant_hybrid.py").write_bytes(b"# vpatch: turboquant-hybrid\n")


def spoil_the_memo(installed: Installed) -> None:
    (memo,) = (installed.cache / "memos").iterdir()
    memo.write_text("{")


def spoil_a_file(installed: Installed) -> None:
    (memo,) = (installed.cache / "memos").iterdir()
    told = json.loads(memo.read_text())
    told["files"][FILE] = (bytes.fromhex(told["files"][FILE]) + b"x = 1\n").hex()
    memo.write_text(json.dumps(told))


def spoil_what_apply_did(installed: Installed) -> None:
    (memo,) = (installed.cache / "memos").iterdir()
    told = json.loads(memo.read_text())
    memo.write_text(json.dumps({**told, "applied": {"vllm/other.py": "0" * 64}}))


def touch_vpatch(installed: Installed) -> None:
    (memo,) = (installed.cache / "memos").iterdir()
    told = json.loads(memo.read_text())
    own = next(path for path in told["code"] if path.endswith("/vpatch_overlays/turboquant_hybrid.py"))
    told["code"][own][0][2] -= 1  # as if it had been another file then
    memo.write_text(json.dumps(told))


SPOILED = [spoil_the_memo, spoil_a_file, spoil_what_apply_did]


@pytest.mark.parametrize("change", [edit, add_a_file_that_was_missing, touch_vpatch, *SPOILED])
def test_a_change_is_planned_anew(change: Callable[[Installed], None], installed: Installed, plans: list[str]) -> None:
    installed.content()
    change(installed)
    with suppress(Failure):  # an overlay that is half applied
        installed.content()

    assert plans == ["plan", "plan"]


def test_another_selection_is_planned_by_itself(installed: Installed, plans: list[str]) -> None:
    assert installed.content() != installed.content("turboquant-tiles")
    assert plans == ["plan", "plan"]


def test_a_cache_that_cannot_be_written_to_is_no_failure(installed: Installed, plans: list[str]) -> None:
    installed.cache.write_bytes(b"")

    assert installed.content() == installed.content()
    assert plans == ["plan", "plan"]


def test_memos_that_others_may_write_to_are_not_read(installed: Installed, plans: list[str]) -> None:
    installed.content()
    (installed.cache / "memos").chmod(0o777)
    told = f"not a safe folder for farms: {installed.cache}/memos: others may write to it"
    with pytest.raises(Failure, match=told):
        prepare(Command(installed.python, installed.python, None), Selection(), installed.python, installed.cache)

    assert plans == ["plan"]


def test_the_memo_is_replaced_as_a_whole(installed: Installed) -> None:
    installed.content()
    (memo,) = (installed.cache / "memos").iterdir()
    old = time.time() - 9
    os.utime(memo, (old, old))
    edit(installed)
    installed.content()

    assert [memo] == list((installed.cache / "memos").iterdir())
    assert Path(memo).stat().st_mtime > old


def test_what_is_no_code_may_come_and_go(
    installed: Installed, plans: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As coverage data, and bytecode that another process compiles, do while tests run."""
    monkeypatch.syspath_prepend(tmp_path / "path")
    (tmp_path / "path").mkdir()
    installed.content()
    (tmp_path / "path/.coverage.host.1").touch()
    (tmp_path / "path/__pycache__").mkdir()
    installed.content()

    assert plans == ["plan"]


@pytest.mark.parametrize("which", ["new", "another version"])
def test_an_installed_package_may_have_overlays(
    which: str, installed: Installed, plans: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    about = tmp_path / "path/more-1.dist-info"
    monkeypatch.syspath_prepend(tmp_path / "path")
    (about.parent if which == "new" else about).mkdir(parents=True)
    installed.content()
    if which != "new":
        about.rename(tmp_path / "gone")
    about.mkdir()
    (about / "entry_points.txt").touch()
    installed.content()

    assert plans == ["plan", "plan"]


def test_another_search_path_has_other_overlays(
    installed: Installed, plans: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed.content()
    monkeypatch.syspath_prepend(tmp_path)
    installed.content()

    assert plans == ["plan", "plan"]
