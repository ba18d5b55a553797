"""compile-cache-key on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vpatch.testing import State

from tests.overlays.tables import check_result, drifted, on, table

ID = "compile-cache-key"
DECORATORS = "vllm/compilation/decorators.py"
COUNTED = "            factors.append(_model_hash_key(self.forward))\n"
IMPORTED = "from .monitor import "

CASES = (
    *on(">=0.18", State.PENDING, "matches the 0.18 layout; 3 changes"),
    *drifted(
        "0.33.0",
        DECORATORS,
        # Another fix is not stacked upon.
        (COUNTED, COUNTED.replace("forward", "forward, self"), "is not there"),
    ),
)

test_case = table(ID, CASES)


def test_only_the_name_of_the_folder_changes(slim: Callable[[str], Path], tmp_path: Path) -> None:
    text = (slim("0.33.0") / DECORATORS).read_text()
    (last,) = (line for line in text.splitlines(keepends=True) if line.startswith(IMPORTED))
    imported = (last, f"{last}from vllm._vpatch.compile_cache_key import layers_key\n")
    added = (COUNTED, f"{COUNTED}            factors.append(layers_key(self))\n")

    check_result(ID, "0.33.0", slim("0.33.0"), tmp_path, DECORATORS, imported, added)
