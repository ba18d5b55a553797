"""turboquant-decode in the real vLLM, on the CPU: what attention computes, by which kernels, and its buffers.

On each release the tests compare the tree as published with the patched one. Triton's interpreter runs the kernels, and
notes which ones.
"""

from __future__ import annotations

import math
from array import array
from base64 import b64decode
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
from packaging.version import Version

from tests.releases import tree_of
from tests.tiers import sampled
from tests.validation.cpu.comparison import ran
from tests.validation.cpu.probe_decode_layer import REFUSED, STEPS
from tests.validation.cpu.trees import patched_tree

pytestmark = pytest.mark.deep

TAKEN = [name for name in STEPS if name not in REFUSED]
OURS, UPSTREAMS = {"split_kernel", "combine_kernel"}, {"_tq_decode_stage1", "_fwd_kernel_stage2"}
SAID = "TurboQuant decodes by vLLM's own kernel, not by that of vpatch: "
KEYS = " (new keys)"  # ends what is said of the kernel that stores them

# For 16 heads on 8 KV heads of 128, on 132 multiprocessors, by the most requests of a batch: 132 parts at most, and
# from 133 requests on one part for each.
SPLITS = {"64": 3, "1024": 1}
FIRST_SPLITS = [33, 66, 44, 33, 26, 22, 18, 16, 14, 13]  # of each request, in batches of 1 to 10


def size(max_num_seqs: str, splits: int) -> int:
    """Return the bytes of decode's part of the workspace."""
    return int(max_num_seqs) * 16 * (splits * 129 * 4 + 128 * 2 + 4)


class Trees(NamedTuple):
    """A release, and the overlays that both of its trees have."""

    release: str
    beside: tuple[str, ...] = ()

    @property
    def reserves(self) -> bool:
        """Whether the metadata builder reserves the workspace."""
        return bool(self.beside) or Version(self.release) >= Version("0.24")

    @property
    def shares(self) -> bool:
        """Whether layers share their buffers."""
        return Version(self.release) >= Version("0.21")

    def ran(self, folder: str, *arguments: str, stock: bool = False) -> Any:
        """Run a probe of decode on the patched tree, or on the one without the overlay."""
        chosen = (*self.beside, *(() if stock else ("turboquant-decode",)))
        tree = patched_tree(self.release, *chosen) if chosen else tree_of(self.release)
        return ran(f"probe_decode_{arguments[0]}", self.release, tree, folder, *arguments[1:])


@pytest.fixture(
    scope="module",
    params=sampled([Trees("0.20.2"), Trees("0.21.0", ("turboquant-workspace",)), Trees("0.26.0"), Trees("0.33.0")], 2),
    ids=lambda trees: "-".join((trees.release, *trees.beside)),
)
def trees(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def stock(trees: Trees, folder: str) -> Callable[..., Any]:
    """`stock(...)`: what the probe finds without the overlay."""
    return cache(lambda *arguments: trees.ran(folder, "layer", "on", *arguments, stock=True))


@pytest.fixture(scope="module")
def patched(trees: Trees, folder: str) -> Callable[..., Any]:
    """`patched("on", ...)`: what the probe finds with the overlay, and the switch on or off; or `patched("warmup")`."""
    return cache(
        lambda *arguments: trees.ran(folder, *arguments if arguments == ("warmup",) else ("layer", *arguments))
    )


def test_attention_is_that_of_stock(stock: Callable[..., Any], patched: Callable[..., Any]) -> None:
    for name in TAKEN:
        before, after = stock("steps", *STEPS)[name], patched("on", "steps", *STEPS)[name]

        assert (launched(before), launched(after)) == (UPSTREAMS, OURS), name
        assert after["said"] == [], name
        assert max(before["wrong by"], after["wrong by"]) < 0.0025, name  # rounding, mostly to bfloat16
        assert distance(before["output"], after["output"]) <= 0.01, name


def test_tokens_of_one_request_share_what_is_read(patched: Callable[..., Any], trees: Trees) -> None:
    found = patched("on", "steps", *STEPS)

    assert [windows for name, *_, windows in found["continuation"]["launches"] if name == "split_kernel"] == [2]
    assert [grid[-1] for grid in found["mixed"]["launches"] if grid[0] == "split_kernel"] == [1, 1]
    assert [grid[-1] for grid in found["decodes"]["launches"] if grid[0] == "split_kernel"] == [3]
    splits = 3 if trees.shares else 2  # of 64 tokens each; without shared buffers, as many as vLLM's layers have
    assert found["decodes"]["launches"][0][1:] == [splits, 1, 3]
    assert found["decodes"]["splits"] == [splits]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_covered_is_exactly_that_of_stock(
    stock: Callable[..., Any], patched: Callable[..., Any], name: str
) -> None:
    before, after = stock("steps", *STEPS)[name], patched("on", "steps", *STEPS)[name]

    assert STEPS[name].times == 2
    assert launched(after) == UPSTREAMS
    assert after["output"] == before["output"]
    assert [line for line in after["said"] if not line.endswith(KEYS)] == [SAID + REFUSED[name]]
    assert len(after["said"]) == len(set(after["said"]))


def test_the_switch_leaves_everything_to_stock(stock: Callable[..., Any], patched: Callable[..., Any]) -> None:
    before, off = stock("steps", *STEPS), patched("off", "steps", *STEPS)

    for name in TAKEN:
        assert off[name] | {"said": []} == before[name]
    said = [line for name in TAKEN for line in off[name]["said"]]
    assert sorted(said) == [f"{SAID}VPATCH_TQ_DECODE is 0", f"{SAID}VPATCH_TQ_DECODE is 0{KEYS}"]


def test_the_switch_leaves_buffers_as_they_were(stock: Callable[..., Any], patched: Callable[..., Any]) -> None:
    assert patched("off", "buffers", *SPLITS) == stock("buffers", *SPLITS)


@pytest.mark.parametrize("requests", SPLITS)
def test_decodes_part_of_the_workspace_is_what_its_kernels_need(
    stock: Callable[..., Any], patched: Callable[..., Any], trees: Trees, requests: str
) -> None:
    """It is taken before the cache is sized, and no batch finds it too small."""
    before, after = stock("buffers", *SPLITS)[requests], patched("on", "buffers", *SPLITS)[requests]
    needed = size(requests, SPLITS[requests])

    assert size(requests, 32) > 5 * needed
    assert before["reserved"] == (size(requests, 32) if trees.reserves else 0)
    assert after["reserved"] == (needed if trees.reserves else 0)
    assert before["profiled"] == 0
    assert after["profiled"] == after["both"] == (needed if trees.shares else 0)
    assert after["locked"] == []
    assert len(after["splits"]) == int(requests)
    assert after["splits"][:10] == (FIRST_SPLITS if trees.shares else [0] * 10)


def test_the_warm_up_compiles_all_that_a_step_needs(patched: Callable[..., Any]) -> None:
    """It takes one layer of each shape, and changes nothing in the cache."""
    found = patched("warmup")

    assert len(found["left out"]) == 3
    assert not any(found["left out"].values())
    assert found["real"] == ["split_kernel", "combine_kernel"] * 2  # one decode step and one piece of a prompt
    assert found["why off"] is None
    assert found["cache is as before"]
    assert found["launches by layers"] == [4, 4, 8]  # one layer, two like it, and one of another preset
    assert found["nothing to warm"] == 0


def test_vllms_kernels_remain_if_the_warm_up_fails(patched: Callable[..., Any]) -> None:
    found, why = patched("warmup")["fails"], "its warm-up failed: RuntimeError: ptxas: no such instruction"

    assert found["warned"] == ["TurboQuant decodes by vLLM's own kernels. Those of vpatch failed on this GPU."]
    assert found["why off"] == why
    assert set(found["launches"]) == UPSTREAMS
    assert sorted(found["said"]) == [SAID + why, SAID + why + KEYS]


def test_flash_attention_keeps_version_3_on_hopper(stock: Callable[..., Any], patched: Callable[..., Any]) -> None:
    replaced, kept = {"None": 2, "2": 2, "3": 2, "4": 2}, {"None": None, "2": 2, "3": 3, "4": 2}
    other = {"None": None, "2": 2, "3": 3, "4": 4}

    assert versions(stock("flash")) == (replaced, other)
    assert versions(patched("off", "flash")) == (replaced, other)
    assert versions(patched("on", "flash")) == (kept, other)


def test_other_gpus_have_version_2(patched: Callable[..., Any]) -> None:
    on, off = ({name: row for name, row in patched(switch, "flash").items() if "." in name} for switch in ("on", "off"))

    hopper = [False, False, False, True]
    others = [True, False, True, True]
    assert on == {"9.0": hopper, "10.0": others, "12.0": others, "8.9": others}
    assert off == dict.fromkeys(on, others)


def launched(found: dict[str, Any]) -> set[str]:
    return {name for name, *_ in found["launches"]}


def versions(found: dict[str, Any]) -> tuple[dict[str, int | None], ...]:
    """Return the version of flash attention by the one that is asked for: with TurboQuant, and without."""
    configs = found["configs"].items()
    return tuple(
        {name.rpartition(" ")[2]: version for name, version in configs if name.startswith(dtype)}
        for dtype in ("turboquant_4bit_nc", "auto")
    )


def distance(one: str, other: str) -> float:
    """Return the norm of the difference of two outputs, relative to the first; NaN if they have any."""
    before, after = (array("f", b64decode(output)) for output in (one, other))
    assert len(before) == len(after)
    return math.dist(before, after) / math.hypot(*before)
