"""The layout of the KV cache by numbers; `test_agreement.py` compares it with vLLM's own code."""

from __future__ import annotations

from typing import Any

import pytest
from vpatch.plan import FULL, LINEAR, Attention, Model
from vpatch.plan.checkpoint import model_of
from vpatch.plan.deployment import TURBOQUANT
from vpatch.plan.kv_cache import blocks_for, capacity, layout, longest, token_bytes
from vpatch.plan.refusals import skipped_layers

from tests.failures import problems_of
from tests.plan.configs import named
from tests.plan.examples import DENSE_HYBRID, FOUR_BITS, MOE, dense, deployment, hybrid

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
    ("release", "options", "state", "block", "blocks"),
    [
        ("0.19.1", {}, 1_085_440, 272, 5),  # in float16, where the config has no type
        ("0.20.2", {}, 2_134_016, 528, 5),
        ("0.20.2", {"mamba_ssm_cache_dtype": "float16"}, 1_085_440, 272, 5),
        ("0.20.2", {"enable_prefix_caching": True}, 2_134_016, 768, 9),  # a state for each block, of whole chunks
        ("0.28.0", {"enable_prefix_caching": True}, 2_134_016, 528, 7),
        ("0.33.0", {"enable_prefix_caching": True}, 2_134_016, 528, 9),  # one more, which prefill exports
    ],
)
def test_states_of_mamba(release: str, options: dict[str, Any], state: int, block: int, blocks: int) -> None:
    """`blocks` are those that three blocks of tokens take in one group of attention and two of states."""
    found = layout(
        NEMOTRON, deployment(vllm=release, kv_cache_dtype="auto", **{"enable_prefix_caching": False, **options})
    )

    assert (found.state_bytes, found.block_size, blocks_for(found, 3 * block)) == (state, block, blocks)


def test_slots_of_turboquant() -> None:
    """Of a token, for keys and values, at a head size of 256."""
    assert [token_bytes(Attention(1, 1, 256), dtype, "bfloat16") for dtype in TURBOQUANT] == [388, 262, 230, 198]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (HYBRID, {"kv_cache_dtype": FOUR_BITS, "vllm": "0.19.1"}, f"no such KV cache: {FOUR_BITS} on vLLM 0.19.1"),
        (HYBRID, {"kv_cache_dtype": "fp4"}, "no such KV cache: fp4 on vLLM 0.20.2"),
        (HYBRID, {"tensor_parallel_size": 3}, "its 16 attention heads are not divisible by 3"),
        (HYBRID, {"pipeline_parallel_size": 41}, "cannot divide the model: 41 stages: it has 40 layers"),
        (THREE_HEADS, {"tensor_parallel_size": 4}, "3 KV heads cannot be copied to them evenly"),
        (hybrid(layers=(LINEAR,) * 8), {}, "no attention"),
        (HYBRID, {"mamba_ssm_cache_dtype": "bfloat16"}, "no such states: bfloat16 on vLLM 0.20.2"),
        (NEMOTRON, {"tensor_parallel_size": 16}, "its 8 groups of a state are not divisible by 16"),
        (NEMOTRON, {"pipeline_parallel_size": 4}, "4 stages: a stage would have no KV cache"),
        (FALCON, {"kv_cache_dtype": FOUR_BITS}, "vLLM does not find the attention of layers that also keep a state"),
        (
            model_of(named("Zamba2ForCausalLM"), "", name="Zamba"),
            {"pipeline_parallel_size": 2},
            "vLLM does not divide layers that share their attention",
        ),
        (
            model_of(named("KimiLinearForCausalLM"), "", name="Kimi"),
            {"vllm": "0.33.0", "mamba_ssm_cache_dtype": "bfloat16"},
            "those of Kimi Delta Attention are in float32",
        ),
    ],
)
def test_what_vllm_refuses(model: Model, options: dict[str, Any], message: str) -> None:
    assert message in "\n".join(map(str, problems_of(layout, model, deployment(**options))))


def test_every_problem_is_named_at_once() -> None:
    options = deployment(kv_cache_dtype="fp4", tensor_parallel_size=5, pipeline_parallel_size=50)

    assert len(problems_of(layout, hybrid(), options)) == 6  # the cache, three kinds of heads, heads to copy, stages


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"), [(40, 4, [10] * 4), (42, 4, [10, 11, 11, 10]), (7, 2, [4, 3]), (5, 1, [5])]
)
def test_stages(layers: int, stages: int, sizes: list[int]) -> None:
    found = deployment(pipeline_parallel_size=stages).stages(layers)

    assert [len(stage) for stage in found] == sizes
    assert [index for stage in found for index in stage] == list(range(layers))


@pytest.mark.parametrize(
    ("full", "linear", "stages", "groups", "pages"),
    [
        (11, 30, 1, (11, 10, 10, 10), [11]),  # the last group has 10 layers, and takes the memory of 11
        (12, 13, 1, (12, 13), [13]),  # nearly as many of a kind are one group
    ],
)
def test_groups(full: int, linear: int, stages: int, groups: tuple[int, ...], pages: list[int]) -> None:
    kinds = tuple(FULL if index < full else LINEAR for index in range(full + linear))
    found = layout(hybrid(layers=kinds), deployment(pipeline_parallel_size=stages))

    assert (found.groups, [size // found.page_bytes for size in found.bytes_per_block]) == (groups, pages)


def test_a_stage_takes_what_its_layers_do() -> None:
    """Of every group of 10 layers, a stage of 10 has 2 or 3: 40 layers, attention at 3, 7, ..."""
    one, four = (layout(hybrid(), deployment(pipeline_parallel_size=stages)) for stages in (1, 4))

    assert four.groups == one.groups
    assert [size // four.page_bytes for size in four.bytes_per_block] == [3, 3, 3, 3]


@pytest.mark.parametrize(("vllm", "block"), [("0.24.0", 16), ("0.25.0", 32)])
def test_boundary_layers_of_dense_models(vllm: str, block: int) -> None:
    model, options = dense(), deployment(vllm, kv_cache_dtype=FOUR_BITS)
    found = layout(model, options)

    assert skipped_layers(model, options) == {0, 1, 26, 27}
    assert found.block_size == block
    assert found.bytes_per_block == (block * 8 * (24 * 134 + 4 * 512),)


@pytest.mark.parametrize(("vllm", "spare"), [("0.28.0", 0), ("0.29.0", 1)])
def test_newer_releases_keep_a_block_back(vllm: str, spare: int) -> None:
    options = deployment(vllm)
    laid = layout(hybrid(), options)
    length = longest(laid, options, 100)

    assert blocks_for(laid, length) == 100 - spare
    assert blocks_for(laid, length + 1) > 100 - spare
    assert longest(laid, options, 3) == 0


@pytest.mark.parametrize(
    ("card", "prefixes", "blocks", "block_size"),
    [("5090", True, 3, 1088), ("4090", True, 2, 1056), ("H100", True, 3, 1088), ("5090", False, 1, 1056)],
)
def test_kernels_that_export_states_need_one_block_more(
    card: str, blocks: int, block_size: int, *, prefixes: bool
) -> None:
    found = layout(hybrid(), deployment("0.33.0", card, enable_prefix_caching=prefixes))

    assert (found.state_blocks, found.block_size) == (blocks, block_size)


def test_the_smallest_stage_decides_and_nothing_holds_nothing() -> None:
    options = deployment(pipeline_parallel_size=2)
    laid = layout(hybrid(), options)
    first, second = laid.bytes_per_block

    assert capacity(laid, options, [100 * first, 7 * second]).blocks == 7
    assert capacity(laid, options, [-5, second]).blocks == 0 == capacity(laid, options, [first - 1, second]).tokens
