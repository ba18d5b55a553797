"""vpatch finds what refuses a removal in a source checkout before the first rename."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.tree.test_checkout import CHANGED, INTERFACE, ONLY, clean, clone, upstream
from tests.tree.test_precheck import flagged

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Program

__all__ = ["clone", "upstream"]

CACHE = "vllm/platforms/__pycache__"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a file immutable")
@pytest.mark.parametrize(
    ("path", "says"),
    [
        (f"{CACHE}/interface.cpython-311.pyc", f"cannot remove bytecode of: {INTERFACE}: operation not permitted"),
        (CACHE, f"cannot remove bytecode of: {INTERFACE}: operation not permitted"),
        ("vllm", "cannot remove: vllm/_vpatch: its folder is immutable (chattr +i)"),
    ],
)
def test_a_removal_that_is_refused(vpatch: Program, clone: Path, path: str, says: str) -> None:
    assert vpatch("apply", clone, *ONLY).code == 0
    (clone / CACHE).mkdir()
    (clone / CACHE / "interface.cpython-311.pyc").touch()
    before = {file: (clone / file).read_bytes() for file in CHANGED}

    with flagged(clone / path, "i"):
        ran = vpatch("revert", clone)
        assert (ran.code, says in ran.err) == (1, True), ran.err
        assert {file: (clone / file).read_bytes() for file in CHANGED} == before

    assert vpatch("revert", clone).code == 0
    assert clean(clone)
