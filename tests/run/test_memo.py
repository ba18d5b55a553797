"""A second start plans nothing, unless something that was opened, listed or imported for the plan has changed.

What is stamped for that: tests/test_stamps.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import vpatch.run.planning
from vpatch.core.catalogue import Selection
from vpatch.core.engine import Engine
from vpatch.errors import Failure
from vpatch.run.command import Command
from vpatch.run.content import Content
from vpatch.run.launch import prepare

from tests.engines import engine_of
from tests.run.conftest import FILE, Installed

ONE = ("turboquant-skip-list",)  # planned quickly


def content(installed: Installed) -> Content:
    return installed.content(only=ONE)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    def counting(*arguments: Any, **more: Any) -> Engine:
        made.append("plan")
        return engine_of(*arguments, **more)

    monkeypatch.setattr(vpatch.run.planning, "Engine", counting)
    return made


def edit(installed: Installed) -> None:
    data = (installed.root / FILE).read_bytes()
    (installed.root / FILE).unlink()
    (installed.root / FILE).write_bytes(data + b"\nx = 1\n")


def add_a_file_that_was_missing(installed: Installed) -> None:
    (installed.root / "vllm/_vpatch").mkdir()
    (installed.root / "vllm/_vpatch/turboquant_skip_list.py").write_bytes(b"# vpatch: turboquant-skip-list\n")


def memo(installed: Installed) -> Path:
    (found,) = (installed.cache / "memos").iterdir()
    return found


def spoil_a_file(about: Any) -> None:
    file = next(iter(about["files"]))
    about["files"][file] = (bytes.fromhex(about["files"][file]) + b"x = 1\n").hex()


def touch_vpatch(about: Any) -> None:
    """As if a module had been another file then."""
    own = next(path for path in about["code"] if path.endswith("/vpatch_overlays/turboquant_hybrid.py"))
    about["code"][own][0][2] -= 1


def spoiled(change: Callable[[Any], object]) -> Callable[[Installed], None]:
    def spoil(installed: Installed) -> None:
        about = json.loads(memo(installed).read_text())
        change(about)
        memo(installed).write_text(json.dumps(about))

    return spoil


CHANGED: dict[str, Callable[[Installed], object]] = {
    "an edit": edit,
    "a file that was missing": add_a_file_that_was_missing,
    "another vpatch": spoiled(touch_vpatch),
    "a spoiled file": spoiled(spoil_a_file),
    "what apply did": spoiled(lambda about: about.update(applied={"vllm/other.py": "0" * 64})),
    "no JSON": lambda installed: memo(installed).write_text("{"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_change_is_planned_anew(what: str, installed: Installed, plans: list[str]) -> None:
    """The memo is then replaced as a whole."""
    first = content(installed)
    assert first.files
    assert (content(installed), plans) == (first, ["plan"])
    old = time.time() - 9
    os.utime(memo(installed), (old, old))
    CHANGED[what](installed)
    with suppress(Failure):  # an overlay that is half applied
        content(installed)
        assert memo(installed).stat().st_mtime > old

    assert plans == ["plan", "plan"]


def test_another_selection_or_search_path_is_planned_by_itself(
    installed: Installed, plans: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = content(installed)
    assert first != installed.content(only=("hybrid-mtp-prefix",))
    monkeypatch.syspath_prepend(tmp_path)

    assert content(installed) == first
    assert plans == ["plan"] * 3


def test_a_cache_that_cannot_be_written_to_is_no_failure(installed: Installed, plans: list[str]) -> None:
    installed.cache.write_bytes(b"")

    assert content(installed) == content(installed)
    assert plans == ["plan", "plan"]


def test_memos_that_others_may_write_to_are_not_read(installed: Installed, plans: list[str]) -> None:
    content(installed)
    (installed.cache / "memos").chmod(0o777)
    message = f"not a safe folder for farms: {installed.cache}/memos: others may write to it"
    with pytest.raises(Failure, match=message):
        prepare(Command(installed.python, installed.python, None), Selection(), installed.python, installed.cache)

    assert plans == ["plan"]
