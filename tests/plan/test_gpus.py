"""GPUs by name."""

from __future__ import annotations

import pytest
from vpatch.errors import Failure
from vpatch.plan import GIB
from vpatch.plan.deployment import GPUS, gpu


@pytest.mark.parametrize("name", ["RTX 5090", "rtx5090", "5090", "GeForce RTX 5090", "NVIDIA GeForce RTX 5090"])
def test_a_name_in_any_spelling(name: str) -> None:
    assert gpu(name).memory == int(31.36 * GIB)


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(Failure, match=r"no such GPU: 5080: did you mean RTX 5090\? known: RTX 3090, .*-gib"):
        gpu("5080")
    with pytest.raises(Failure, match="no such GPU: Voodoo: known: RTX 3090"):
        gpu("Voodoo")


def test_any_size() -> None:
    assert (gpu(None, 5).memory, gpu("RTX 5080", 16 * GIB).name) == (5, "RTX 5080")
    assert gpu("RTX 5090", 30 * GIB).capability == (12, 0)


def test_from_the_smallest_to_the_largest_that_differ_in_more_than_drivers_do() -> None:
    sizes = [one.memory for one in GPUS if one.name != "RTX 4090"]
    assert sizes == sorted(sizes)
    assert all("reported" in one.source for one in GPUS)
