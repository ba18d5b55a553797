"""hybrid-mtp-states in the real vLLM, on the CPU: what the kernels compute from a request's states.

Triton's interpreter runs the kernels of Gated DeltaNet. The probe's model of warps runs all of them, without vLLM.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
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
from tests.validation.cpu.comparison import Comparison, compared, each
from tests.validation.cpu.probe_states import COUNTS, DRAFTS, KERNELS, LENGTHS, SHIFTS

pytestmark = pytest.mark.deep
release = each(sampled(SHAPES[::-1], 2))  # all of SHAPES have every version of these kernels
STEPS = [*product(KERNELS, LENGTHS)]
IN_RANGE = range(1, DRAFTS + 2)
CLOSEST = {accepted: min(max(accepted, 1), DRAFTS + 1) for accepted in COUNTS}


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_states", release, ("hybrid-mtp-states",))


@pytest.mark.parametrize(("kernel", "length"), STEPS)
def test_a_number_out_of_range_reads_no_state_of_another(seen: Comparison, kernel: str, length: int) -> None:
    stock, patched = (
        {accepted: found["computed"][f"{kernel} {length} {accepted}"] for accepted in COUNTS} for found in seen
    )

    for accepted, closest in CLOSEST.items():
        assert stock[accepted]["wrong"] is (accepted != closest)
        assert patched[accepted] == stock[closest]
    assert all(found["guards"] for found in (*stock.values(), *patched.values()))
    assert len({stock[accepted]["bytes"] for accepted in IN_RANGE}) == len(IN_RANGE)


def test_the_interpreter_shows_no_race_so_a_shift_is_right_with_and_without_barriers(seen: Comparison) -> None:
    """All lanes of a program load before any of them stores. The order of warps is shown below."""
    for tokens in map(str, SHIFTS):
        for found in seen:
            window, wanted = found["shifted"][tokens]
            assert window == wanted


ORDERS = (range(WARPS), range(WARPS)[::-1])
SELECTING = (probe.CONVOLUTION, *probe.RECURRENT)
WAYS: dict[str, Callable[..., tuple[bool, int]]] = {
    "host": probe.shifted_by_host,
    "gpu": probe.shifted_by_gpu,
    "gpu, rows": partial(probe.shifted_by_gpu, rows=True, chunk=8),
}


def ways_of(release: str) -> list[str]:
    """Return the copies of windows that a release has."""
    return [*WAYS][: 1 if Version(release) < Version("0.22") else 2 if Version(release) < Version("0.24") else 3]


@pytest.fixture(scope="module")
def patched(release: str, slim: Trees, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = shutil.copytree(slim(release), tmp_path_factory.mktemp("states") / release, copy_function=link)
    chosen = select(discover(), ("hybrid-mtp-states",))
    apply(SitePackages(locate(tree)), chosen, engine_of(chosen))
    return tree / "vllm"


def test_a_count_selects_a_state_of_the_request(release: str, patched: Path) -> None:
    stock = tree_of(release) / "vllm"
    here = [kernel for kernel in SELECTING if (stock / kernel[0]).exists()]

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
