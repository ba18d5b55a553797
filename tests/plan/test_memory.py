"""The estimates of plan/memory.py and plan/activations.py: what each depends on, and the numbers they were set by."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any

import pytest
from vpatch.plan import GIB, Experts, Model
from vpatch.plan.activations import profiled
from vpatch.plan.checkpoint import model_of
from vpatch.plan.defaults import defaults, gpu, in_second_runner
from vpatch.plan.deployment import KERNEL_BLOCK, Deployment
from vpatch.plan.fit import fit
from vpatch.plan.memory import CONTEXT_GRANULE, TILE, Item, account, counts_graphs
from vpatch.plan.weights import with_total
from vpatch_overlays.companions import turboquant_tiles

from benchmarks.calibrate import STARTS
from tests.plan.examples import FLASH, FOUR_BITS, R1, dense, deployment, hybrid, traits, weights_of
from tests.releases import RELEASES, tiered, tree_of

# Hidden size, width of the MLP, vocabulary and experts of models that llm-d-planner measured.
SHAPES = {
    "meta-llama/Llama-3.1-8B-Instruct": (4096, 14_336, 128_256, None),
    "Qwen/Qwen2.5-7B-Instruct": (3584, 18_944, 152_064, None),
    "google/gemma-7b": (3072, 24_576, 256_000, None),
    "codellama/CodeLlama-7b-hf": (4096, 11_008, 32_016, None),
    "Qwen/Qwen3-30B-A3B": (2048, 6144, 151_936, Experts(128, 8, 768)),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (4096, 14_336, 32_000, Experts(8, 2, 14_336)),
}


def items(model: Model, card: str = "H100", vllm: str = "0.19.0", stage: int = -1, **options: Any) -> dict[str, Item]:
    usual = {**defaults(model, traits(vllm), gpu(card)), "max_model_len": 2048}
    deployed = Deployment(release=traits(vllm), gpu=gpu(card), **{**usual, **options})
    return {item.name: item for item in account(model, deployed, KERNEL_BLOCK)[stage].items}


def test_the_tiles_are_those_of_the_overlay() -> None:
    """The patcher imports no overlay, so what plan counts of this one is written twice."""
    assert (turboquant_tiles.TILE, turboquant_tiles.BLOCK) == (TILE, CONTEXT_GRANULE)


def test_activations_and_libraries_are_those_of_published_starts() -> None:
    """On an H100: 1,024 requests, 8,192 tokens. Of a pipeline, the first stage is printed, which does not sample."""
    rows = json.loads((STARTS / "llm-d-planner.json").read_text())["rows"]
    known = [row for row in rows if row["model"] in SHAPES and row["dtype"] != "f32"]
    for row in known:
        hidden, inner, vocabulary, experts = SHAPES[row["model"]]
        model = dense(32, hidden_size=hidden, intermediate_size=inner, vocab_size=vocabulary, experts=experts)
        parallel = {name: row[name] for name in ("tensor_parallel_size", "pipeline_parallel_size")}
        found = items(model, stage=0, **parallel)
        for name, printed in (("activations", "derived_activation_gib"), ("runtime", "derived_non_torch_gib")):
            size = found[name].size
            assert size.likely / GIB == pytest.approx(row[printed], rel=0.16, abs=0.2), (row["model"], name)
            assert size.least <= row[printed] * GIB <= size.most, (row["model"], name)

    assert len(known) >= 12


def test_only_the_last_stage_samples() -> None:
    first, last = (
        items(dense(), pipeline_parallel_size=2, enforce_eager=True, stage=stage)["activations"] for stage in (0, -1)
    )

    assert last.because == "sampling for 1,024 requests"
    assert first.because == "8,192 tokens in the decoder"
    assert first.size.likely < last.size.likely


def test_the_runtime_has_buffers_over_nvlink_and_the_systems_part_of_shared_memory() -> None:
    def runtime(card: str, ranks: int = 1) -> float:
        return items(dense(), card, tensor_parallel_size=ranks)["runtime"].size.likely / GIB

    assert runtime("H100", 2) - runtime("H100") == pytest.approx(1.83, abs=0.01)
    assert runtime("L40S", 2) - runtime("H100") < 0.2
    assert runtime("GB10") - runtime("L40S") > 2


def test_a_hybrids_warm_up_counts_as_graphs_in_three_releases() -> None:
    """By 128 KiB for each token of a batch: vllm-project/vllm#50780."""

    def graphs(vllm: str, tokens: int) -> int:
        return items(hybrid(), "RTX 5090", vllm, max_num_batched_tokens=tokens)["CUDA graphs"].size.likely

    grown = {vllm: graphs(vllm, 8192) - graphs(vllm, 2048) for vllm in RELEASES}
    assert {vllm for vllm in grown if grown[vllm]} == {"0.26.0", "0.27.0", "0.27.1", "0.28.0"}
    assert grown["0.26.0"] == 6144 * 128 * 1024


def test_buffers_of_turboquants_decode_on_0_20() -> None:
    """The figures of the 35B: 331 MiB for 64 requests, which the card's weights show for 16."""
    found = fit(hybrid(), deployment(kv_cache_dtype=FOUR_BITS, max_num_seqs=64))
    buffers = next(item for item in found.memory.items if item.name == "TurboQuant buffers")

    assert (round(buffers.size.likely / 2**20), buffers.counted) == (331, True)


def test_blackwell_keeps_a_batch_of_results_in_each_layer() -> None:
    def buffers(card: str, **options: Any) -> int:
        found = fit(dense(), deployment("0.33.0", card, kv_cache_dtype="nvfp4", **options))
        return sum(item.size.likely for item in found.memory.items if item.name == "NVFP4 buffers")

    assert buffers("B200") == 28 * 4096 * 16 * 128
    assert buffers("B200", tensor_parallel_size=2) * 2 == buffers("B200")
    assert buffers("RTX 5090") == 0


@pytest.mark.parametrize("release", tiered(RELEASES, first=("0.20.2", "0.33.0")))
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


@pytest.mark.parametrize(
    ("vllm", "options", "second"),
    [
        ("0.21.0", {}, False),
        ("0.22.0", {}, True),
        ("0.28.0", {}, True),
        ("0.29.0", {}, False),
        ("0.23.0", {"quantization": "fp8"}, False),
        ("0.24.0", {"quantization": "fp8"}, True),
        ("0.25.0", {"experts": Experts(8, 2, 64)}, False),
        ("0.25.0", {"experts": Experts(8, 2, 64), "architecture": "Qwen2MoeForCausalLM"}, True),
    ],
)
def test_what_decides_on_the_second_runner(vllm: str, options: dict[str, Any], *, second: bool) -> None:
    assert in_second_runner(dense(**options), traits(vllm)) is second


def test_what_counts_graphs() -> None:
    deployed = deployment("0.27.0", "4090")
    off = replace(deployed, environment=("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0",))

    counted = [counts_graphs(dense(), deployed), counts_graphs(hybrid(), deployed), counts_graphs(hybrid(), off)]
    assert counted == [False, True, False]


QWEN, GEMMA_3 = "Qwen--Qwen2.5-VL-7B-Instruct", "google--gemma-3-27b-it"
GEMMA_4, SMALL_GEMMA_4 = "google--gemma-4-31B-it", "google--gemma-4-E4B"


def started(name: str) -> Model:
    """Return a model of which a start was published."""
    return model_of(json.loads((STARTS / "configs" / f"{name}.json").read_text()), name, name=name)


@pytest.mark.parametrize(
    ("name", "options", "patches", "tokens"),
    [
        (QWEN, {"max_model_len": 128_000}, 458_752, 114_688),  # as vLLM 0.23.0 said of a start
        (QWEN, {"max_model_len": 40_000}, 131_072, 32_768),  # a video that is no longer than a request
        (QWEN, {"max_model_len": 1000}, 65_536, 16_384),
        (GEMMA_3, {"max_num_batched_tokens": 8192}, 131_072, 8192),
        (SMALL_GEMMA_4, {"max_num_batched_tokens": 16_384}, 120_960, 14_976),  # six videos, as 0.19 said of a start
        (GEMMA_4, {"max_num_batched_tokens": 8192}, 60_480, 7488),  # three, as 0.23.0 said
    ],
)
def test_what_towers_are_profiled_with(name: str, options: dict[str, Any], patches: int, tokens: int) -> None:
    tower = started(name).tower

    assert tower
    assert profiled(tower, deployment(**options)) == (patches, tokens)


def test_a_language_model_alone_has_no_tower() -> None:
    options: dict[str, Any] = {"card": "A100", "max_model_len": 128_000}
    whole, alone = (fit(started(QWEN), deployment(**options, language_model_only=one)) for one in (False, True))

    assert alone.memory.kv_cache.likely - whole.memory.kv_cache.likely > 12 * GIB
    assert {item.name for item in alone.memory.items} == {item.name for item in whole.memory.items}


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def latent(config: dict[str, Any]) -> Model:
    return model_of(config, "config.json", name="some")


def test_a_quantized_up_projection_is_kept_once_more() -> None:
    plain, quantized = (weights_of(latent(config)) for config in (R1, R1 | {"quantization_config": FP8}))

    assert plain.added == 0
    assert quantized.added == 512 * 128 * (128 + 128) * 2
    given = weights_of(with_total(latent(R1 | {"quantization_config": FP8}), 700))
    assert given.added == 0  # what is given is what the weights take once they are loaded


def test_ranks_do_not_divide_what_makes_the_latent() -> None:
    found = latent(R1)
    of_one, of_two = (fit(found, deployment("0.33.0", "H200", tensor_parallel_size=ranks)) for ranks in (1, 2))
    whole = 61 * 7168 * (1536 + 576) * 2

    assert weights_of(found).whole == whole
    assert 2 * of_two.memory.items[0].size.likely - of_one.memory.items[0].size.likely == pytest.approx(whole, abs=2)


def test_the_workspace_for_cached_tokens_is_not_counted() -> None:
    found = latent(FLASH)
    memory = fit(found, deployment("0.33.0", "H100", max_model_len=4096, max_num_seqs=256)).memory
    (workspace,) = (item for item in memory.items if item.name == "MLA workspace")

    assert not workspace.counted
    assert workspace.size.likely == 8 * 4096 * 576 * 2
