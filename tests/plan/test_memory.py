"""The estimates of plan/memory.py: what each depends on, and the numbers that they were set by."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any

import pytest
from vpatch.plan import GIB, Experts, Model
from vpatch.plan.defaults import defaults, gpu, in_second_runner
from vpatch.plan.deployment import Deployment
from vpatch.plan.memory import CONTEXT_GRANULE, TILE, Item, account, counts_graphs
from vpatch_overlays.companions import turboquant_tiles

from benchmarks.calibrate import STARTS
from tests.plan.examples import dense, hybrid, traits
from tests.releases import RELEASES, tiered, tree_of

SHAPES = {
    "meta-llama/Llama-3.1-8B-Instruct": (4096, 14_336, 128_256, None),
    "Qwen/Qwen2.5-7B-Instruct": (3584, 18_944, 152_064, None),
    "google/gemma-7b": (3072, 24_576, 256_000, None),
    "codellama/CodeLlama-7b-hf": (4096, 11_008, 32_016, None),
    "Qwen/Qwen3-30B-A3B": (2048, 6144, 151_936, Experts(128, 8, 768)),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (4096, 14_336, 32_000, Experts(8, 2, 14_336)),
}
"""Hidden size, width of the MLP, vocabulary and experts of models that llm-d-planner measured."""


def items(model: Model, card: str = "H100", vllm: str = "0.19.0", stage: int = -1, **said: Any) -> dict[str, Item]:
    usual = {**defaults(model, traits(vllm), gpu(card)), "max_model_len": 2048}
    deployed = Deployment(release=traits(vllm), gpu=gpu(card), **{**usual, **said})
    return {item.name: item for item in account(model, deployed, 16)[stage].items}


def test_the_tiles_are_those_of_the_overlay() -> None:
    """The patcher imports no overlay, so what plan counts of this one is written twice."""
    assert (turboquant_tiles.TILE, turboquant_tiles.BLOCK) == (TILE, CONTEXT_GRANULE)


def test_activations_and_libraries_are_those_of_published_starts() -> None:
    """On an H100: 1,024 requests, 8,192 tokens. Of a pipeline, the first stage is printed, which does not sample."""
    rows = json.loads((STARTS / "llm-d-planner.json").read_text())["rows"]
    seen = 0
    for row in rows:
        if row["model"] not in SHAPES or row["dtype"] == "f32":
            continue
        hidden, inner, vocabulary, experts = SHAPES[row["model"]]
        model = dense(32, hidden_size=hidden, intermediate_size=inner, vocab_size=vocabulary, experts=experts)
        parallel = {name: row[name] for name in ("tensor_parallel_size", "pipeline_parallel_size")}
        found = items(model, stage=0, **parallel)
        for name, printed in (("activations", "derived_activation_gib"), ("runtime", "derived_non_torch_gib")):
            size = found[name].size
            assert size.likely / GIB == pytest.approx(row[printed], rel=0.16, abs=0.2), (row["model"], name)
            assert size.least <= row[printed] * GIB <= size.most, (row["model"], name)
        seen += 1

    assert seen >= 12


def test_only_the_last_stage_samples() -> None:
    first, last = (
        items(dense(), pipeline_parallel_size=2, enforce_eager=True, stage=stage)["activations"] for stage in (0, -1)
    )

    assert last.because == "sampling for 1,024 requests"
    assert first.because == "8,192 tokens in the decoder"
    assert first.size.likely < last.size.likely


def test_buffers_of_nccl_are_large_over_nvlink_only() -> None:
    alone, joined = (items(dense(), tensor_parallel_size=ranks)["runtime"].size.likely for ranks in (1, 2))
    over_pcie = items(dense(), "L40S", tensor_parallel_size=2)["runtime"].size.likely

    assert (joined - alone) / GIB == pytest.approx(1.83, abs=0.01)
    assert (over_pcie - alone) / GIB < 0.2


def test_shared_memory_has_the_systems_part() -> None:
    assert items(dense(), "GB10")["runtime"].size.likely - items(dense(), "L40S")["runtime"].size.likely > 2 * GIB


def test_a_hybrids_warm_up_counts_as_graphs_in_three_releases() -> None:
    """By 128 KiB for each token of a batch: vllm-project/vllm#50780."""

    def graphs(vllm: str, tokens: int) -> int:
        return items(hybrid(), "RTX 5090", vllm, max_num_batched_tokens=tokens)["CUDA graphs"].size.likely

    grows = {vllm for vllm in RELEASES if graphs(vllm, 8192) > graphs(vllm, 2048)}
    assert grows == {"0.26.0", "0.27.0", "0.27.1", "0.28.0"}
    assert graphs("0.26.0", 8192) - graphs("0.26.0", 2048) == 6144 * 128 * 1024


@pytest.mark.parametrize("release", tiered(RELEASES, first=("0.20.2", "0.26.0", "0.33.0")))
def test_the_second_runner_estimates_no_graphs_where_plan_says_so(release: str) -> None:
    """Where `profile_cudagraph_memory` of that runner returns 0, and the release makes it the default for the model."""
    file = tree_of(release) / "vllm/v1/worker/gpu/model_runner.py"
    names = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.FunctionDef)]
    bodies = {node.name: ast.unparse(node.body) for node in names}  # type: ignore[arg-type]
    returns_nothing = bodies["profile_cudagraph_memory"].endswith("return 0")
    config = (tree_of(release) / "vllm/config/vllm.py").read_text()
    model = dense()  # Qwen3ForCausalLM, not quantized
    listed = '"Qwen3ForCausalLM"' in config.partition("class OptimizationLevel")[0]
    by_kind = "not model_config.is_moe" in config and "is_hybrid" in config

    assert in_second_runner(model, traits(release)) == (returns_nothing and (listed or by_kind))
    assert not in_second_runner(hybrid(), traits(release))


def test_what_decides_on_the_second_runner() -> None:
    def second(vllm: str, **said: Any) -> bool:
        return in_second_runner(dense(**said), traits(vllm))

    assert [vllm for vllm in ("0.21.0", "0.22.0", "0.28.0", "0.29.0") if second(vllm)] == ["0.22.0", "0.28.0"]
    assert not second("0.23.0", quantization="fp8")
    assert second("0.24.0", quantization="fp8")
    assert not second("0.25.0", experts=Experts(8, 2, 64))
    assert second("0.25.0", experts=Experts(8, 2, 64), architecture="Qwen2MoeForCausalLM")
    deployed = Deployment(traits("0.27.0"), gpu("4090"), 2048)
    assert not counts_graphs(dense(), deployed)
    assert counts_graphs(hybrid(), deployed)
    off = replace(deployed, environment=("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0",))
    assert not counts_graphs(hybrid(), off)
