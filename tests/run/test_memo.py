"""A second start plans nothing, unless something that the plan follows from has changed."""

from __future__ import annotations

import json
import os
import sys
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
from vpatch.run.launch import prepare
from vpatch.run.memo import Memo
from vpatch.tree.locate import locate

from tests.engines import engine_of
from tests.run.conftest import Installed

FILE = "vllm/engine/arg_utils.py"


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans that were made."""
    made: list[str] = []

    def counting(*arguments: Any) -> Engine:
        made.append("plan")
        return engine_of(*arguments)

    monkeypatch.setattr(vpatch.run.planning, "Engine", counting)
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


class Package:
    """An installed package with overlays, which imports a helper of another package, and reads a file when it loads."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.put("odd-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
        points = "odd.overlays\nsingle = odd_single"
        self.put("odd-1.dist-info/entry_points.txt", f"[vpatch.overlays]\nodd = {points}\n")
        self.put("odd/__init__.py", "")
        self.put("odd/data/note.txt", "a note")
        reads = "from pathlib import Path\nnote = (Path(__file__).parents[1] / 'data/note.txt').read_text()\n"
        self.put("odd/overlays/__init__.py", "")
        self.put("odd/overlays/odd_one.py", f"from odd_help.words import word\n{reads}{ODD}")
        self.put("odd/overlays/_shared.py", "")
        self.put("odd_help/words.py", "word = 'x'\n")
        self.put("odd_single.py", ODD)

    def put(self, file: str, text: str) -> None:
        place = self.top / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)  # as an editor may: the folder's times stay


ODD = """
from vpatch import File, Overlay, Part
change = File("vllm/no_such.py").function("f").insert_after("a = 1", "b = 1")
overlay = Overlay(opt_in=True, summary="s", symptoms=("s",), releases={}, parts=(Part("p", shapes={"1": [change]}),))
"""
CHANGES = {
    "a new module": ("odd/overlays/odd_two.py", ODD),
    "a changed module": ("odd/overlays/odd_one.py", ODD),
    "a changed helper package": ("odd_help/words.py", "word = 'y'\n"),
    "a helper that becomes a package": ("odd_help/words/__init__.py", "word = 'y'\n"),
    "a changed single module": ("odd_single.py", f"{ODD}\n"),
    "a changed data file": ("odd/data/note.txt", "another note"),
    "an edited entry_points.txt": ("odd-1.dist-info/entry_points.txt", "[vpatch.overlays]\nsingle = odd_single\n"),
    "a new entry_points.txt": ("other-1.dist-info/entry_points.txt", "[vpatch.overlays]\nsingle = odd_single\n"),
    "a module that comes before another": ("../before/odd_help/words.py", "word = 'y'\n"),
}
SAME = {
    "nothing": ("odd/data/note.txt", None),
    "a module's bytecode": ("odd/overlays/__pycache__/odd_one.cpython-399.pyc", ""),
    "a file that nothing reads": ("odd/data/.other.txt", ""),
}


@pytest.mark.parametrize("what", [*CHANGES, *SAME])
def test_what_was_opened_for_a_plan_is_compared(
    what: str, installed: Installed, plans: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever an overlay's package is made of, and reads."""
    for place in ("path", "before"):
        (tmp_path / place).mkdir()
        monkeypatch.syspath_prepend(tmp_path / place)
    package = Package(tmp_path / "path")
    (tmp_path / "path/other-1.dist-info").mkdir()
    before = {*sys.modules}
    try:
        installed.content()
        file, text = {**CHANGES, **SAME}[what]
        if text is not None:
            package.put(file, text)
        recalled = Memo.of(installed.cache, locate(installed.root), Selection()).recall(locate(installed.root))
    finally:
        for name in {*sys.modules} - before:
            if name.startswith("odd"):
                del sys.modules[name]

    assert ((recalled is not None), plans) == (what in SAME, ["plan"])
