"""hybrid-mtp-gates in the real vLLM, on the CPU: a request's result does not depend on the other rows of its step.

Triton's interpreter runs the kernels that verify drafts, and vLLM's own layer calls them.
"""

from __future__ import annotations

import pytest

from tests.releases import tree_of
from tests.validation.cpu.comparison import Comparison, compared, each, ran
from tests.validation.cpu.probe_gates import ORDERS, OTHER, VERIFYING

NAME = "hybrid-mtp-gates"

pytestmark = pytest.mark.deep
release = each(("0.20.2", "0.21.0", "0.26.0"))


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_gates", release, (NAME,))


def spoiled(found: dict[str, dict[str, str]], order: tuple[int, ...]) -> list[int]:
    """Return the verifying requests whose result differs from that of a step which has only them."""
    key, alone = (" ".join(map(str, one)) for one in (order, VERIFYING))
    return [one for one in VERIFYING if found[key][str(one)] != found[alone][str(one)]]


@pytest.mark.parametrize("order", ORDERS)
def test_rows_in_any_order(seen: Comparison, order: tuple[int, ...]) -> None:
    """A request's tokens get gates of others if a row without drafts stands before them."""
    behind = [one for one in VERIFYING if OTHER in order and order.index(one) > order.index(OTHER)]
    key = " ".join(map(str, order))

    assert spoiled(seen.stock, order) == behind
    assert spoiled(seen.patched, order) == []
    assert OTHER in order or seen.patched[key] == seen.stock[key]


def test_upstream_is_right_from_0_28() -> None:
    found = ran("probe_gates", "0.33.0", tree_of("0.33.0"))

    assert not any(spoiled(found, order) for order in ORDERS)
