"""Vision towers, chunks and Gemma 4's two shapes of heads; `test_agreement.py` compares the layouts with vLLM's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vpatch.plan import CHUNKED, FULL, GIB, Model
from vpatch.plan.activations import profiled
from vpatch.plan.checkpoint import model_of
from vpatch.plan.fit import fit
from vpatch.plan.kv_cache import layout

from benchmarks.calibrate import STARTS
from tests.failures import problems_of
from tests.plan.configs import named
from tests.plan.examples import deployment, weights_of


def started(name: str) -> Model:
    """Return a model of which a start was published."""
    return model_of(json.loads((STARTS / "configs" / f"{name}.json").read_text()), name, name=name)


def read(config: dict[str, Any]) -> Model:
    return model_of(config, "config.json", name="a model")


QWEN, GEMMA_3 = "Qwen--Qwen2.5-VL-7B-Instruct", "google--gemma-3-27b-it"
GEMMA_4, SMALL_GEMMA_4 = "google--gemma-4-31B-it", "google--gemma-4-E4B"


@pytest.mark.parametrize(
    ("name", "said", "patches", "tokens"),
    [
        (QWEN, {"max_model_len": 128_000}, 458_752, 114_688),  # as vLLM 0.23.0 said of a start
        (QWEN, {"max_model_len": 40_000}, 131_072, 32_768),  # a video that is no longer than a request
        (QWEN, {"max_model_len": 1000}, 65_536, 16_384),
        (GEMMA_3, {"max_num_batched_tokens": 8192}, 131_072, 8192),
        (SMALL_GEMMA_4, {"max_num_batched_tokens": 16_384}, 120_960, 14_976),  # six videos, as 0.19 said of a start
        (GEMMA_4, {"max_num_batched_tokens": 8192}, 60_480, 7488),  # three, as 0.23.0 said
    ],
)
def test_what_towers_are_profiled_with(name: str, said: dict[str, Any], patches: int, tokens: int) -> None:
    tower = started(name).tower

    assert tower
    assert profiled(tower, deployment(**said)) == (patches, tokens)


def test_a_language_model_alone_has_no_tower() -> None:
    model = started(QWEN)
    said: dict[str, Any] = {"card": "A100", "max_model_len": 128_000}
    whole, alone = (fit(model, deployment(**said, language_model_only=one)) for one in (False, True))

    assert alone.memory.kv_cache.likely - whole.memory.kv_cache.likely > 12 * GIB
    assert {item.name for item in alone.memory.items} == {item.name for item in whole.memory.items}


def test_blocks_of_two_shapes_of_heads_are_equally_large() -> None:
    found = layout(started(GEMMA_4), deployment("0.23.0"))

    assert (found.block_size, found.window_block, found.attention_groups, found.window_groups) == (32, 16, 1, 5)
    assert found.page_bytes == 32 * 2 * 4 * 512 * 2 == 16 * 2 * 16 * 256 * 2
    hopper = layout(started(GEMMA_4), deployment("0.31.0", "H100", kv_cache_dtype="fp8"))
    assert (hopper.block_size, hopper.window_block) == (128, 64)


def test_gemma_4_is_refused_where_vllm_does_not_have_it() -> None:
    (problem,) = problems_of(layout, started(GEMMA_4), deployment("0.18.1"))

    assert str(problem).startswith(
        "no such model: Gemma4ForConditionalGeneration on vLLM 0.18.1: vLLM has it from 0.19.0"
    )


def test_layers_that_read_the_cache_of_others_stay_beside_them() -> None:
    model = started(SMALL_GEMMA_4)  # of 42 layers, the last 18 read the caches of 22 and 23

    assert layout(model, deployment(pipeline_parallel_size=2)).bytes_per_block
    (problem,) = problems_of(layout, model, deployment(pipeline_parallel_size=3))
    assert "another stage than those whose KV cache they read" in problem.cause


def test_heads_without_a_common_block_are_refused() -> None:
    model = read(named("Gemma4ForCausalLM", head_dim=192, global_head_dim=256))

    (problem,) = problems_of(layout, model, deployment())
    assert "no common size" in problem.cause


def test_a_config_that_leaves_no_cache_to_read_is_wrong() -> None:
    (problem,) = problems_of(read, named("Gemma4ForCausalLM", num_hidden_layers=6, num_kv_shared_layers=2))

    assert "num_kv_shared_layers is 2, and leaves no layer" in problem.cause


def test_chunks_are_of_layers_with_rotary_positions() -> None:
    listed = read(named("Llama4ForConditionalGeneration", no_rope_layers=[0, 1, 1, 0]))

    assert listed.layers == (FULL, CHUNKED, CHUNKED, FULL)
    assert read(named("Llama4ForConditionalGeneration")).layers == (CHUNKED, CHUNKED, CHUNKED, FULL)
    (problem,) = problems_of(read, named("Llama4ForConditionalGeneration", no_rope_layers=[0, 2]))
    assert "no_rope_layers is not a list of 4 times 0 or 1" in problem.cause


def test_an_audio_tower_weighs() -> None:
    config = named("Gemma4ForConditionalGeneration")
    heard = config | {"audio_config": {"model_type": "gemma4_audio"}}

    assert weights_of(read(heard)).vision - weights_of(read(config)).vision == pytest.approx(0.57 * GIB, rel=0.02)
