"""If an overlay raises, at any stage: one clear line with its name, exit code 1, and nothing written."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

from tests.conftest import Program, Ran, Trees, contents_of, unchanged
from tests.forks import output
from tests.hybrid import ONLY as NAMED

HEAD = """
from dataclasses import dataclass, field
from vpatch import Overlay, Part, Shape
from vpatch.core.verdict import Answer, EditFinding, Found

@dataclass(frozen=True)
class Custom:
    file: str = "vllm/engine/arg_utils.py"
    scope: str = "EngineArgs"
    files = ()
    {more}

    def state(self, files, overlay):
        {state}

    def apply(self, files, overlay):
        {apply}

    def ask(self, files):
        {ask}

overlay = Overlay(summary="Broken.", parts=(Part("part", (Shape("shape", (Custom(),)),), merged=Custom()),))
"""
FINE = {
    "more": "",
    "state": "return EditFinding(Found.BEFORE)",
    "apply": "files.put(self.file, files.read(self.file) + b'x = 1  # vpatch: broken\\n')",
    "ask": "return Answer(None, '')",
}
FAILED = "overlay failed: broken: vllm/engine/arg_utils.py (EngineArgs): Custom raised "
ONLY = ("--overlay", "broken")
RAISES = "raise ZeroDivisionError('a fault')"


class Broken(Protocol):
    def __call__(self, source: str, *arguments: str | Path) -> Ran: ...


@pytest.fixture
def broken(tmp_path: Path) -> Broken:
    """Run the program where a distribution ships this source as an overlay."""

    def run(source: str, *arguments: str | Path) -> Ran:
        root = tmp_path / "distribution"
        files: Mapping[str, str] = {
            "broken-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: broken\nVersion: 1\n",
            "broken-1.dist-info/entry_points.txt": "[vpatch.overlays]\nbroken = broken\n",
            "broken.py": source,
        }
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return Ran(*output(*arguments, first=lambda: sys.path.insert(0, str(root))))

    return run


def test_revert_needs_no_overlay(vpatch: Program, broken: Broken, slim: Trees, tmp_path: Path) -> None:
    """A package that does not load leaves the way back open."""
    tree = shutil.copytree(slim("0.20.2"), tmp_path / "tree")
    before = contents_of(tree)
    assert vpatch("apply", *NAMED, tree).code == 0

    ran = broken(RAISES, "revert", *NAMED, tree)
    assert (ran.code, "cannot load overlays: broken: " in ran.err) == (1, True)

    ran = broken(RAISES, "revert", tree)
    assert ran.code == 0
    assert "note: cannot load overlays: broken: ZeroDivisionError: a fault (line 1)" in ran.err
    assert contents_of(tree) == before


@pytest.mark.parametrize(
    ("source", "named", "line"),
    [
        ({"state": RAISES}, (), f"{FAILED}ZeroDivisionError: a fault\n"),
        ({"state": "raise SystemExit(0)"}, ONLY, f"{FAILED}SystemExit: 0\n"),
        ({"apply": RAISES}, ONLY, f"{FAILED}ZeroDivisionError: a fault\n"),
        ({"ask": RAISES}, ONLY, "overlay failed: broken: Custom raised ZeroDivisionError: a fault\n"),
        ({"more": "odd: list = field(default_factory=list)"}, ONLY, f"{FAILED}TypeError: unhashable type: 'list'\n"),
    ],
    ids=["state", "exit", "apply", "ask", "hash"],
)
def test_an_overlay_that_raises(
    broken: Broken, tree: Path, source: dict[str, str], named: tuple[str, ...], line: str
) -> None:
    with unchanged(tree):
        assert broken(HEAD.format(**FINE | source), "apply", "-q", tree, *named) == Ran(1, "", line)


def test_an_edit_whose_postcondition_fails_is_a_bug(broken: Broken, tree: Path) -> None:
    with unchanged(tree):
        ran = broken(HEAD.format(**FINE), "apply", tree, *ONLY)

    assert (ran.code, ran.out, "Traceback" in ran.err, "broken" in ran.err) == (3, "", True, True)
