"""Chunks and Gemma 4's two shapes of heads; `test_agreement.py` compares the layouts with vLLM's."""

from __future__ import annotations

from typing import Any

import pytest
from vpatch.plan import CHUNKED, FULL, GIB, Model
from vpatch.plan.checkpoint import model_of
from vpatch.plan.kv_cache import layout

from tests.failures import problems_of
from tests.plan.configs import named
from tests.plan.examples import deployment, weights_of
from tests.plan.test_memory import GEMMA_4, SMALL_GEMMA_4, started


def read(config: dict[str, Any]) -> Model:
    return model_of(config, "config.json", name="a model")


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
