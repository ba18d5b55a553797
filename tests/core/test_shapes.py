"""The further shapes of a patch file, read as one file with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import vpatch
from vpatch.core.catalogue import discover
from vpatch.core.overlay import Shape
from vpatch.core.shapes import families, shapes
from vpatch.errors import Failure

FIX = """\
Format: 1
Subject: A fix
Base: {base}
{more}
--- vllm/m.py
@@ f
-a = {old}
+a = {new}
"""


def text(base: str, old: str = "1", more: str = "") -> str:
    return FIX.format(base=base, old=old, new=f"{old}0", more=more)


def loaded(folder: Path, files: Mapping[str, str]) -> Sequence[Shape]:
    """Load a folder of patch files that are one overlay, and return its shapes."""
    for name, content in files.items():
        (folder / name).write_text(content)
    with vpatch.patches(folder):
        (item,) = (item for item in discover() if item.patch is not None)
    (part,) = item.overlay.parts
    return part.shapes


def test_the_newest_shape_comes_first(tmp_path: Path) -> None:
    further = {f"fix@{base}.vpatch": text(base, base[2]) for base in ("0.9.0", "0.33.0")}
    found = loaded(tmp_path, {"fix.vpatch": text("0.20.2"), **further})

    assert [shape.name for shape in found] == ["0.33.0", "0.20.2", "0.9.0"]


def test_names() -> None:
    names = ["b@1.vpatch", "a@2.vpatch", "a.vpatch", "a@1.vpatch", ".a@3.vpatch", "notes.md"]

    assert families(names) == {"a.vpatch": ("a@1.vpatch", "a@2.vpatch"), "b@1.vpatch": ()}


MISTAKES = {
    "a shape without its patch file": (
        {"fix@0.33.0.vpatch": text("0.33.0")},
        "it is a shape of fix.vpatch, which has to lie beside it, and to be named instead",
    ),
    "for another vLLM than its name says": (
        {"fix.vpatch": text("0.20.2"), "fix@0.33.0.vpatch": text("0.32.0")},
        "fix@0.33.0.vpatch: its head has no `Base: 0.33.0`, as its name says",
    ),
    "of the same vLLM": (
        {"fix.vpatch": text("0.20.2"), "fix@0.20.2.vpatch": text("0.20.2")},
        "it has two shapes for 0.20.2",
    ),
    "of the same vLLM, in other words": (
        {"fix.vpatch": text("0.20.0"), "fix@0.20.vpatch": text("0.20")},
        "it has two shapes for 0.20",
    ),
    "with a field of the overlay": (
        {"fix.vpatch": text("0.20.2"), "fix@0.33.0.vpatch": text("0.33.0", more="Releases: 0.33.0 pending\n")},
        "its shape for 0.33.0: Releases belongs in the patch file itself",
    ),
    "with a mistake": (
        {"fix.vpatch": text("0.20.2"), "fix@0.33.0.vpatch": text("0.33.0", more="Because: so\n")},
        "its shape for 0.33.0: line 4: no field is called Because",
    ),
    "a patch file without a newline": (
        {"fix.vpatch": text("0.20.2").rstrip(), "fix@0.33.0.vpatch": text("0.33.0")},
        "fix.vpatch: no newline at its end: it may be truncated",
    ),
    "a date that is none": (
        {"fix.vpatch": text("0.20.2"), "fix@0.33.0.vpatch": text("0.33.0", more="Last-Update: today\n")},
        "its shape for 0.33.0: line 4: Last-Update: 'today' is no date",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str, tmp_path: Path) -> None:
    files, says = MISTAKES[case]

    with pytest.raises(Failure) as raised:
        loaded(tmp_path, files)

    assert says in str(raised.value)


def test_a_shape_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "fix@0.33.0.vpatch").mkdir()

    with pytest.raises(Failure, match=r"fix@0\.33\.0\.vpatch: is a directory"):
        loaded(tmp_path, {"fix.vpatch": text("0.20.2")})


def test_what_is_joined_is_told_apart() -> None:
    found = shapes(f"{text('0.20.2')}{text('0.33.0', '2')}".encode())

    assert [str(one) for one in found] == [text("0.20.2"), text("0.33.0", "2")]
