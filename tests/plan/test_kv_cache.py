"""The layout of the KV cache by numbers; `test_agreement.py` compares it with vLLM's own code."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version
from vpatch.errors import UnknownName
from vpatch.plan import FULL, LINEAR, Attention, Model
from vpatch.plan.checkpoint import model_of
from vpatch.plan.deployment import RELEASES as KNOWN
from vpatch.plan.deployment import TURBOQUANT, arithmetic_of
from vpatch.plan.division import stages_of
from vpatch.plan.kv_cache import blocks_for, capacity, layout, longest, turboquant_slot
from vpatch.plan.kv_types import skipped_layers

from tests.failures import problems_of
from tests.plan.configs import named
from tests.plan.examples import DENSE_HYBRID, FOUR_BITS, MOE, dense, deployment, hybrid
from tests.releases import RELEASES

NEMOTRON = model_of(named("NemotronHForCausalLM", hybrid_override_pattern="MEM*", mamba_num_heads=64), "", name="Nano")
FALCON = model_of(named("FalconH1ForCausalLM"), "", name="Falcon")
HYBRID, THREE_HEADS = hybrid(), dense(attention=Attention(24, 3, 128))


@pytest.mark.parametrize(
    ("name", "dtype", "speculative", "block"),
    [
        (MOE, FOUR_BITS, 0, 4096),
        (MOE, "turboquant_k8v4", 0, 2768),
        (MOE, "turboquant_3bit_nc", 0, 5424),
        (MOE, FOUR_BITS, 3, 4192),
        (DENSE_HYBRID, FOUR_BITS, 0, 3072),
        (DENSE_HYBRID, "turboquant_k8v4", 0, 2080),
        (DENSE_HYBRID, FOUR_BITS, 3, 3120),
    ],
)
def test_blocks_that_others_reported(name: str, dtype: str, speculative: int, block: int) -> None:
    found = layout(hybrid(name), deployment(kv_cache_dtype=dtype, speculative_tokens=speculative))

    assert found.block_size == block


@pytest.mark.parametrize(
    ("release", "said", "state", "block", "blocks"),
    [
        ("0.19.1", {}, 1_085_440, 272, 5),  # in float16, where the config has no type
        ("0.20.2", {}, 2_134_016, 528, 5),
        ("0.20.2", {"mamba_ssm_cache_dtype": "float16"}, 1_085_440, 272, 5),
        ("0.20.2", {"enable_prefix_caching": True}, 2_134_016, 768, 9),  # a state for each block, of whole chunks
        ("0.28.0", {"enable_prefix_caching": True}, 2_134_016, 528, 7),
        ("0.33.0", {"enable_prefix_caching": True}, 2_134_016, 528, 9),  # one more, which prefill exports
    ],
)
def test_states_of_mamba(release: str, said: dict[str, Any], state: int, block: int, blocks: int) -> None:
    """`blocks` are those that three blocks of tokens take in one group of attention and two of states."""
    found = layout(NEMOTRON, deployment(vllm=release, kv_cache_dtype="auto", **{"enable_prefix_caching": False} | said))

    assert (found.state_bytes, found.block_size, blocks_for(found, 3 * block)) == (state, block, blocks)


def test_slots_of_turboquant() -> None:
    """At a head size of 256, per KV head."""
    assert [turboquant_slot(dtype, 256) for dtype in TURBOQUANT] == [388, 262, 230, 198]


@pytest.mark.parametrize(
    ("model", "said", "message"),
    [
        (
            HYBRID,
            {"vllm": "0.17.0"},
            "unknown release: vLLM 0.17.0: plan knows the arithmetic of vLLM 0.18.0 to",
        ),
        (HYBRID, {"vllm": "0.34.0"}, "unknown release: vLLM 0.34.0"),
        (HYBRID, {"kv_cache_dtype": FOUR_BITS, "vllm": "0.19.1"}, f"no such KV cache: {FOUR_BITS} on vLLM 0.19.1"),
        (HYBRID, {"kv_cache_dtype": "fp4"}, "no such KV cache: fp4 on vLLM 0.20.2"),
        (HYBRID, {"tensor_parallel_size": 3}, "its 16 attention heads are not divisible by 3"),
        (HYBRID, {"pipeline_parallel_size": 41}, "cannot divide the model: 41 stages: it has 40 layers"),
        (THREE_HEADS, {"tensor_parallel_size": 4}, "3 KV heads cannot be copied to them evenly"),
        (hybrid(layers=(LINEAR,) * 8), {}, "no attention"),
        (HYBRID, {"mamba_ssm_cache_dtype": "bfloat16"}, "no such states: bfloat16 on vLLM 0.20.2"),
        (NEMOTRON, {"tensor_parallel_size": 16}, "its 8 groups of a state are not divisible by 16"),
        (FALCON, {"kv_cache_dtype": FOUR_BITS}, "vLLM does not find the attention of layers that also keep a state"),
    ],
)
def test_what_vllm_refuses(model: Model, said: dict[str, Any], message: str) -> None:
    assert message in "\n".join(map(str, problems_of(layout, model, deployment(**said))))


def test_every_problem_is_named_at_once() -> None:
    said = deployment(kv_cache_dtype="fp4", tensor_parallel_size=5, pipeline_parallel_size=50)

    assert len(problems_of(layout, hybrid(), said)) == 6  # the cache, three kinds of heads, heads to copy, stages


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"), [(40, 4, [10] * 4), (42, 4, [10, 11, 11, 10]), (7, 2, [4, 3]), (5, 1, [5])]
)
def test_stages(layers: int, stages: int, sizes: list[int]) -> None:
    found = stages_of(layers, stages)

    assert [len(stage) for stage in found] == sizes
    assert [index for stage in found for index in stage] == list(range(layers))


def test_padding_layers_take_room() -> None:
    """With 11 attention and 30 linear layers, the last group has 8 layers and takes the memory of 11."""
    kinds = tuple(FULL if index < 11 else LINEAR for index in range(41))
    found = layout(hybrid(layers=kinds), deployment())

    assert found.groups == (11, 10, 10, 10)
    assert found.bytes_per_block == (11 * found.page_bytes,)


def test_nearly_as_many_of_a_kind_are_one_group() -> None:
    kinds = tuple(FULL if index < 12 else LINEAR for index in range(25))

    assert layout(hybrid(layers=kinds), deployment()).groups == (12, 13)


def test_a_stage_takes_what_its_layers_do() -> None:
    """Of every group of 10 layers, a stage of 10 has 2 or 3: 40 layers, attention at 3, 7, ..."""
    one, four = (layout(hybrid(), deployment(pipeline_parallel_size=stages)) for stages in (1, 4))

    assert four.groups == one.groups
    assert [size // four.page_bytes for size in four.bytes_per_block] == [3, 3, 3, 3]


@pytest.mark.parametrize(("vllm", "block"), [("0.24.0", 16), ("0.25.0", 32)])
def test_boundary_layers_of_dense_models(vllm: str, block: int) -> None:
    model, said = dense(), deployment(vllm, kv_cache_dtype=FOUR_BITS)
    found = layout(model, said)

    assert skipped_layers(model, said) == {0, 1, 26, 27}
    assert found.block_size == block
    assert found.bytes_per_block == (block * 8 * (24 * 134 + 4 * 512),)


@pytest.mark.parametrize(("vllm", "spare"), [("0.28.0", 0), ("0.29.0", 1)])
def test_newer_releases_keep_a_block_back(vllm: str, spare: int) -> None:
    said = deployment(vllm)
    laid = layout(hybrid(), said)
    length = longest(laid, said, 100)

    assert blocks_for(laid, length) == 100 - spare
    assert blocks_for(laid, length + 1) > 100 - spare
    assert longest(laid, said, 3) == 0


@pytest.mark.parametrize(
    ("card", "prefixes", "blocks", "block_size"),
    [("5090", True, 3, 1088), ("4090", True, 2, 1056), ("H100", True, 3, 1088), ("5090", False, 1, 1056)],
)
def test_kernels_that_export_states_need_one_block_more(
    card: str, blocks: int, block_size: int, *, prefixes: bool
) -> None:
    found = layout(hybrid(), deployment("0.33.0", card, enable_prefix_caching=prefixes))

    assert (found.state_blocks, found.block_size) == (blocks, block_size)


def test_a_budget_of_nothing_holds_nothing() -> None:
    said = deployment()
    laid = layout(hybrid(), said)

    assert capacity(laid, said, [-5]).blocks == 0 == capacity(laid, said, [laid.bytes_per_block[0] - 1]).tokens


def test_the_smallest_stage_decides() -> None:
    said = deployment(pipeline_parallel_size=2)
    laid = layout(hybrid(), said)
    sizes = laid.bytes_per_block

    assert capacity(laid, said, [100 * sizes[0], 7 * sizes[1]]).blocks == 7


def test_a_build_has_the_arithmetic_of_its_release() -> None:
    build, same, other = (arithmetic_of(Version(version)) for version in ("0.20.1rc3+g1", "0.20.1", "0.20.0"))

    assert build == same != other


@pytest.mark.parametrize(
    ("version", "nearest"),
    [("0.20.9", "0.20.2 and 0.21.0"), ("0.18.2+cu130", "0.18.1 and 0.19.0"), ("0.20.3.post1", "0.20.2 and 0.21.0")],
)
def test_a_release_that_does_not_exist(version: str, nearest: str) -> None:
    with pytest.raises(UnknownName) as unknown:
        arithmetic_of(Version(version))
    assert str(unknown.value) == f"no such release: vLLM {version}: the nearest are {nearest}"


def test_a_build_of_a_release_that_never_came_is_as_the_one_before() -> None:
    """Between releases, builds are numbered after the next patch release, which may never come."""
    assert arithmetic_of(Version("0.20.3.dev7+g1")) == arithmetic_of(Version("0.20.2"))
    assert tuple(map(str, KNOWN)) == RELEASES
