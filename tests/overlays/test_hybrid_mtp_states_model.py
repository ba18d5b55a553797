"""hybrid-mtp-states: the kernels of every release, as published and patched, in the probe's model of warps.

In Triton's interpreter the copies of a published release are right, too: all lanes of a program load before any of
them stores. So the order of warps is shown here, and what the kernels compute in `test_hybrid_mtp_states_cpu.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from packaging.version import Version
from vpatch.core.catalogue import discover, select
from vpatch.tree.apply import apply
from vpatch.tree.locate import locate
from vpatch.tree.write_plan import SitePackages
from vpatch_overlays.probes import hybrid_mtp_states as probe
from vpatch_overlays.probes.kernel_threads import WARPS

from tests.conftest import Trees
from tests.engines import engine_of
from tests.paths import link
from tests.releases import SHAPES, tree_of
from tests.tiers import sampled
from tests.validation.cpu.comparison import each

ORDERS = (range(WARPS), range(WARPS)[::-1])
KERNELS = (probe.CONVOLUTION, *probe.RECURRENT)
WAYS: dict[str, Callable[..., tuple[bool, int]]] = {
    "host": probe.shifted_by_host,
    "gpu": probe.shifted_by_gpu,
    "gpu, rows": partial(probe.shifted_by_gpu, rows=True, chunk=8),
}


def ways_of(release: str) -> list[str]:
    """Return the copies of windows that a release has."""
    return [*WAYS][: 1 if Version(release) < Version("0.22") else 2 if Version(release) < Version("0.24") else 3]


pytestmark = pytest.mark.deep
release = each(sampled(SHAPES[::-1], 2))


@pytest.fixture(scope="module")
def patched(release: str, slim: Trees, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = shutil.copytree(slim(release), tmp_path_factory.mktemp("states") / release, copy_function=link)
    chosen = select(discover(), ("hybrid-mtp-states",))
    apply(SitePackages(locate(tree)), chosen, engine_of(chosen))
    return tree / "vllm"


def test_a_count_selects_a_state_of_the_request(release: str, patched: Path) -> None:
    stock = tree_of(release) / "vllm"
    here = [kernel for kernel in KERNELS if (stock / kernel[0]).exists()]

    assert len(here) == 3 + 2 * (Version(release) >= Version("0.27")) + 2 * (Version(release) >= Version("0.30"))
    for kernel in here:
        assert probe.columns(stock, *kernel) == [accepted - 1 for accepted in probe.COLUMNS] == [-1, 0, 3, 8]
        assert probe.columns(patched, *kernel) == [0, 0, 3, 3]


def test_a_window_is_shifted_in_any_order_of_warps(release: str, patched: Path) -> None:
    stock = tree_of(release) / "vllm"
    merged = Version(release) >= Version("0.29")
    for name in ways_of(release):
        for order in ORDERS:
            assert WAYS[name](stock, 1, order)[0] is merged, (name, order)
            for tokens in range(1, probe.TOKENS):
                assert WAYS[name](patched, tokens, order)[0], (name, order, tokens)
