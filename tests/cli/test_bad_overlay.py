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
from dataclasses import dataclass
from vpatch import Overlay, Part, Shape
from vpatch.core.verdict import Answer, EditFinding, Found

@dataclass(frozen=True)
class Custom:
    file: str = "vllm/engine/arg_utils.py"
    scope: str = "EngineArgs"
    reach = ()

    def state(self, files, overlay):
        {state}

    def apply(self, files, overlay):
        {apply}

    def ask(self, files):
        {ask}

overlay = Overlay(summary="Broken.", parts=(Part("part", (Shape("shape", (Custom(),)),), merged=Custom()),))
"""
FINE = {
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
    ("place", "line"),
    [
        ("state", FAILED + "ZeroDivisionError: a fault"),
        ("apply", FAILED + "ZeroDivisionError: a fault"),
        ("ask", "overlay failed: broken: Custom raised ZeroDivisionError: a fault"),
    ],
)
def test_an_overlay_that_raises_while_it_is_used(broken: Broken, tree: Path, place: str, line: str) -> None:
    source = HEAD.format(**{**FINE, place: RAISES})

    with unchanged(tree):
        assert broken(source, "apply", "-q", tree, *(() if place == "state" else ONLY)) == Ran(1, "", line + "\n")
    assert broken(source, "status", tree, *ONLY).code == 1  # it makes the edits in memory, too


def test_an_edit_whose_postcondition_fails(broken: Broken, tree: Path) -> None:
    """The overlay's postcondition fails after its edits: a bug, and nothing is written."""
    with unchanged(tree):
        ran = broken(HEAD.format(**FINE), "apply", tree, *ONLY)

    assert (ran.code, ran.out) == (3, "")
    assert "Traceback" in ran.err
    assert "broken" in ran.err


def test_an_edit_that_has_no_hash(broken: Broken, pristine: Trees) -> None:
    source = HEAD.format(**FINE).replace("reach = ()", "reach = ()\n    odd: list = field(default_factory=list)")
    source = source.replace("import dataclass\n", "import dataclass, field\n")

    says = f"{FAILED}TypeError: unhashable type: 'list'\n"
    assert broken(source, "status", "-q", pristine("0.20.2"), *ONLY) == Ran(1, "", says)


def test_an_edit_that_ends_the_program(broken: Broken, pristine: Trees) -> None:
    source = HEAD.format(**{**FINE, "state": "raise SystemExit(0)"})

    assert broken(source, "status", "-q", pristine("0.20.2"), *ONLY) == Ran(1, "", f"{FAILED}SystemExit: 0\n")
