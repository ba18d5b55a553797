"""The real CUDA platform and its choice of kernels, with sm12x-deepgemm; and the overlay's own probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vpatch.image.checks import outcome

from tests.overlays.deepgemm import sources_of
from tests.overlays.probing import LIMIT_S, SCRIPTS, Outcomes, run_scripts
from tests.overlays.test_probes import MISSED
from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, each, ran
from tests.validation.cpu.trees import patched_tree, with_sources

ID = "sm12x-deepgemm"
PROBE = "sm12x_deepgemm"
DEEPGEMM = "DeepGemmFp8BlockScaledMMKernel"

# The wheel of 0.26.0 has the sources; without them, its code has the same defect as that of the other three.
pytestmark = pytest.mark.deep
release = each(sampled(("0.26.0", "0.24.0", "0.27.1", "0.27.0"), 2))


@pytest.fixture(scope="module")
def trees(release: str) -> tuple[Path, Path]:
    names = tuple(name for name in sources_of(release) if not name.startswith("sm120_"))
    stock = with_sources(release, names)
    return stock, patched_tree(release, ID, pristine=stock)


@pytest.fixture(scope="module")
def seen(release: str, trees: tuple[Path, Path], folder: str) -> Comparison:
    return Comparison(*(ran("probe_sm12x_deepgemm", release, tree, folder) for tree in trees))


def test_stock_takes_deepgemm_without_its_sources(seen: Comparison) -> None:
    assert seen.stock["copy"] == {one: [True, True, DEEPGEMM] for one in ("9.0", "10.0", "12.0", "12.1")}


@pytest.mark.parametrize("package", ["copy", "without sources", "broken"])
def test_patched_takes_it_on_other_gpus_only(seen: Comparison, package: str) -> None:
    found: dict[str, Any] = seen.patched[package]

    for capability in ("9.0", "10.0"):
        assert found[capability] == seen.stock[package][capability] == [True, True, DEEPGEMM]
    for capability in ("12.0", "12.1"):
        claimed, supported, kernel = found[capability]
        assert (claimed, supported) == (False, False)
        assert "DeepGemm" not in kernel


def test_patched_takes_a_package_that_has_the_sources(seen: Comparison) -> None:
    assert seen.patched["with sources"] == seen.stock["with sources"] == seen.stock["copy"]


@pytest.fixture(scope="module")
def probed(release: str, trees: tuple[Path, Path]) -> tuple[Outcomes, Outcomes]:
    stock, patched = (run_scripts(release, tree, {PROBE: SCRIPTS[PROBE]}) for tree in trees)
    return stock, patched


def test_the_probe_tells_stock_from_patched(probed: tuple[Outcomes, Outcomes]) -> None:
    stock, patched = (outcome(PROBE, *found[PROBE], limit_s=LIMIT_S) for found in probed)

    assert stock.ok is False
    assert stock.because.startswith(MISSED[ID])
    assert patched.ok, patched.because


def test_the_probe_passes_where_the_sources_ship() -> None:
    found = run_scripts("0.26.0", with_sources("0.26.0", sources_of("0.26.0")), {PROBE: SCRIPTS[PROBE]})

    shipped = outcome(PROBE, *found[PROBE], limit_s=LIMIT_S)
    assert shipped.ok, shipped.because
