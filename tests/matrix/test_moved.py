"""A function that an overlay calls, and that moved to a module which no overlay names: the matrix reads that, too."""

from __future__ import annotations

from pathlib import Path

from vpatch.core.catalogue import discover, select
from vpatch.core.verdict import State
from vpatch.matrix.run import run
from vpatch.matrix.trees import LocalTree

MATH, MOVED = "vllm/utils/math_utils.py", "vllm/utils/moved_utils.py"


def test_a_callee_that_moved(tree: Path) -> None:
    text = (tree / MATH).read_text()
    (tree / MATH).write_text("from vllm.utils.moved_utils import *\nfrom vllm.utils.moved_utils import round_up\n")
    (tree / MOVED).write_text(text.replace("def round_up(x: int, y: int)", "def round_up(x: int, by: int)"))

    (row,) = run([LocalTree(tree)], select(discover(), ["turboquant-workspace"]), (), lambda _: None).rows

    assert row.tree is not None
    assert MOVED in row.tree.files
    assert row.cells[0].verdict.state is State.DRIFTED
    assert f"{MOVED} (round_up)" in "\n".join(map(str, row.cells[0].problems))

    (tree / MOVED).write_text(text)
    (row,) = run([LocalTree(tree)], select(discover(), ["turboquant-workspace"]), (), lambda _: None).rows
    assert row.cells[0].verdict.state is State.PENDING
