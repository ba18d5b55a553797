"""turboquant-skip-list on real releases: its states, what drifts, the code that it writes, and its companion."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
from vpatch.testing import Case, State, check
from vpatch_overlays.companions.turboquant_skip_list import skip_layer_order

from tests.overlays.tables import WITHOUT_TURBOQUANT, check_result, drifted, on
from tests.releases import cases, tiered

ARG_UTILS = "vllm/engine/arg_utils.py"

UNSORTED = "layers) | set(boundary)\n"
BRANCH = 'if resolved_cache_dtype.startswith("turboquant_"):'
SPELLINGS = {
    "0.20.2": "sorted(existing | set(boundary), key=lambda x: int(x))",
    "0.21.0": "sorted(\n                existing | set(boundary), key=int\n            )",
}

CASES = (
    *WITHOUT_TURBOQUANT,
    *on(">=0.20,<0.21", State.PENDING, "0.20 layout; 3 changes"),
    *on(">=0.21,<0.32", State.PENDING, "0.21 layout; 3 changes"),
    *on(">=0.32", State.MERGED, "has no `sorted(..., key=...)`"),
    *drifted("0.20.2", ARG_UTILS, ("lambda x: int(x)", "lambda x: float(x)", "is not there; nearest, line 1689")),
    *drifted("0.26.0", ARG_UTILS, (BRANCH, "if turboquant:", "no block `if resolved_cache")),
    *drifted(
        "0.31.0",
        ARG_UTILS,
        ("key=int", "key=int, reverse=True", "is not there"),
        # Half of upstream's change is not merged.
        ("existing | set(boundary), key=int", "existing | set(boundary)", "key=int)` is not there"),
    ),
    *drifted("0.33.0", ARG_UTILS, (UNSORTED, UNSORTED.replace("\n", ", key=int\n"), "no block `if resolved_cache")),
)


@pytest.mark.parametrize("case", cases(CASES))
def test_case(case: Case, slim: Callable[[str], Path], tmp_path: Path) -> None:
    check(case, "turboquant-skip-list", tree=slim(case.release), scratch=tmp_path)


@pytest.mark.parametrize("release", tiered(SPELLINGS))
def test_only_the_key_changes(release: str, slim: Callable[[str], Path], tmp_path: Path) -> None:
    imported = "from vllm._vpatch.turboquant_skip_list import skip_layer_order"
    changes = (
        (SPELLINGS[release], "sorted(existing | set(boundary), key=skip_layer_order)"),
        ("\nif TYPE_CHECKING:", f"\n{imported}\nif TYPE_CHECKING:"),
    )

    check_result("turboquant-skip-list", release, slim(release), tmp_path, ARG_UTILS, *changes)


def test_indices_come_first_and_by_number() -> None:
    entries = ["sliding_window", "27", "", "9", "²", "٣", "-1", "chunked", "10", " 4 ", "+5", "1_1", "5.0", "9" * 5000]

    found = sorted(entries, key=skip_layer_order)

    assert found == ["-1", "٣", " 4 ", "+5", "9", "10", "1_1", "27", *sorted(found[8:])]
    assert found[8:] == ["", "5.0", "9" * 5000, "chunked", "sliding_window", "²"]


def test_a_list_of_indices_keeps_its_order() -> None:
    rng = random.Random(31)  # noqa: S311 - it is to be repeatable
    for count in range(1, 80):
        entries = {str(index) for index in rng.sample(range(200), count)}

        assert sorted(entries, key=skip_layer_order) == sorted(entries, key=int)


def test_the_order_does_not_depend_on_that_of_a_set() -> None:
    entries = ["3", "03", "+3", "³", "three"]

    assert {tuple(sorted(order, key=skip_layer_order)) for order in permutations(entries)} == {
        ("+3", "03", "3", "three", "³")
    }
