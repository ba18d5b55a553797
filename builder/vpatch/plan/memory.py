"""A GPU's memory by item: exact where it can be computed, else an estimate with bounds.

vLLM takes `gpu_memory_utilization` of the whole card, runs the model once at its largest batch, and gives the rest of
its share to the KV cache. Weights and KV cache are arithmetic. That run is estimated from what vLLM counted: 0.20.2 on
an H200 (docs/gpu, `python -m tests.validation.gpu.planned`), and others in starts that people published (docs/starts:
the folder `calibration` and `llm-d-planner.json`; `python -m benchmarks.calibrate` prints the errors of the others).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from math import ceil

from vpatch.plan import ATTENTIVE, GIB, LOCAL, MIB, Model, Tower, Weights
from vpatch.plan import latent as mla
from vpatch.plan.deployment import (
    AMPERE,
    BLACKWELL,
    CONSUMER_BLACKWELL,
    FP8,
    NVFP4,
    TURBOQUANT,
    Deployment,
    arithmetic_of,
    in_second_runner,
)
from vpatch.plan.division import stages_of
from vpatch.plan.estimates import Estimate, Item, added, exactly, within
from vpatch.plan.kv_cache import DTYPE_BYTES, HOPPER, layout
from vpatch.plan.kv_types import skipped_layers
from vpatch.plan.quantization_config import MXFP4
from vpatch.plan.vision import profiled

COUNT_GRAPHS = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
# What a vision tower takes of the intermediate results of its patches: Qwen3.5 on an H200, which has another kernel,
# and on an RTX 5090; Qwen2.5-VL on an A100.
ON_HOPPER, ELSEWHERE = 1.02, 0.83
# Bytes per request and token of the vocabulary in the sampler, and hidden states that it finds: as vLLM 0.19.0 counted
# for 1,024 requests on an H100, with vocabularies of 32,000 to 262,000 tokens.
SAMPLER, HELD = 14, 2.5
QUANTIZED_EXPERTS = 1.2  # times as much as plain ones: Qwen3.6-35B-A3B in NVFP4 on an RTX 5090 and a GB10
WARM_UP = 128 << 10  # bytes per token of a batch: what Gated DeltaNet's warm-up takes, vllm-project/vllm#50780
TABLES = 160 * MIB  # vLLM adds them to the stored weights, mostly rotary positions: 0.14 GiB, measured for Qwen3.6

SPLITS = 32  # parts that TurboQuant's decode divides a context into: `tq_max_kv_splits_for_cuda_graph`
FLOAT, HALF = 4, 2
CONTEXT_GRANULE = 128  # tokens, of which a dequantized context has a multiple: `_continuation_prefill`
TILE = 16_384  # tokens of a prompt that the overlay turboquant-tiles dequantizes at once: its companion's constant
TRANSIENTS = 4  # copies of the dequantized keys that a continuation of a prompt makes while it runs
KEPT = 2.3  # times their size that the allocator keeps, since they grow with each chunk: 1.9 and 2.3 on an H200

# `VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE`: made with the first graph, or else with the first request
WORKSPACE = within(0.385, 0.0, 0.45)
# MiB of a CUDA graph in each layer, and of one with full attention on Hopper: as counted for Qwen3.6 on an H200 and an
# L40S, and for Qwen2.5-14B on an H100.
GRAPH, HOPPER_GRAPH = 0.24, 0.5
EXPERTS = within(0.35, 0.0, 0.9)  # more than else, with experts in NVFP4 on an RTX 5090; the cause is not known
CONTEXT = Item("CUDA context", within(0.51, 0.3, 0.75), "taken before vLLM begins to count", counted=False)


@dataclass(frozen=True)
class Memory:
    """The bytes of a GPU: `total`, `requested` as vLLM's share, and what is left of it for the KV cache, if any."""

    total: int
    requested: int
    items: tuple[Item, ...]
    kv_cache: Estimate

    @property
    def left(self) -> Estimate:
        """What stays free of the whole card when everything is in use; negative if it does not fit."""
        if self.kv_cache.exact:
            return exactly(self.total) - self.kv_cache - added(self.items)
        # The uncertainty of counted items goes to the KV cache, and leaves the sum unchanged.
        return exactly(self.total - self.requested) - added(item for item in self.items if not item.counted)


def account(model: Model, weights: Weights, deployment: Deployment) -> tuple[Memory, ...]:
    """Account for the memory of a GPU of each pipeline stage."""
    total = deployment.gpu.memory
    requested = ceil(total * deployment.gpu_memory_utilization)
    skipped = skipped_layers(model, deployment)
    graphs = () if deployment.enforce_eager else (_graphs(model, deployment),)
    found = []
    for stage in stages_of(len(model.layers), deployment.pipeline_parallel_size):
        items = (
            _weights(model, weights, deployment, stage),
            *(_libraries(model, deployment), _activations(model, deployment, stage)),
            *(*graphs, CONTEXT),
            *_turboquant(model, deployment, sum(index not in skipped for index in stage)),
            *_nvfp4(model, deployment, stage),
            *_latent(model, deployment),
            *_flashinfer(model, deployment),
        )
        rest = exactly(requested) - added(item for item in items if item.counted)
        given = deployment.kv_cache_memory_bytes
        found.append(Memory(total, requested, items, rest if given is None else exactly(given)))
    return tuple(found)


def _weights(model: Model, weights: Weights, deployment: Deployment, stage: range) -> Item:
    """A stage's part of the checkpoint: its layers, embeddings on the first stage, the head on the last."""
    size = weights.other + sum(weights.layers[stage.start : stage.stop])
    size += weights.added * sum(model.layers[index] in ATTENTIVE for index in stage)
    size += 0 if deployment.language_model_only else weights.vision
    if stage.start == 0:
        size += weights.embedding
    if stage.stop == len(weights.layers):
        size += weights.head + (weights.draft if deployment.speculative_tokens else 0)
    whole = weights.whole * len(stage) // len(weights.layers)
    size = ceil((size - whole) / deployment.tensor_parallel_size) + whole
    known = weights.exact or (weights.summed and deployment.pipeline_parallel_size == 1)
    margin = 0.1 if model.quantization else 0.02  # plan can only guess what a checkpoint leaves unquantized
    known = known and deployment.tensor_parallel_size == 1  # small tensors are copied, not divided
    loaded = weights.summed and not weights.exact  # what is given counts what vLLM adds
    tables = 0 if loaded else _rotary(model)
    own = 0 if loaded else deployment.max_num_batched_tokens * model.own_width * len(model.layers)  # a batch's, kept
    extra = (tables if tables > TABLES else 0) + own * DTYPE_BYTES[model.dtype]
    estimate = Estimate(size, int(size * (1 - margin)), int(size * (1 + margin)) + TABLES)
    extra += 0 if loaded else _padding(model, deployment, len(stage))
    return Item("weights", (exactly(size) if known else estimate) + exactly(extra), weights.source)


def _padding(model: Model, deployment: Deployment, layers: int) -> int:
    """Bytes that Marlin adds to experts in MXFP4, where neither Triton nor FlashInfer has kernels for them.

    Source: `mxfp4_round_up_hidden_size_and_intermediate_size`.
    """
    experts, major = model.experts, deployment.gpu.major
    if experts is None or model.quantization != MXFP4.name or major not in {AMPERE, CONSUMER_BLACKWELL}:
        return 0
    inner = ceil(experts.intermediate_size / deployment.tensor_parallel_size)
    padded = 128 * ceil(inner / 128) * 256 * ceil(model.hidden_size / 256)
    return int(layers * experts.count * experts.matrices * (padded - inner * model.hidden_size) * MXFP4.size)


def _rotary(model: Model) -> int:
    """Bytes of the tables of rotary positions on each GPU: a head's size for each position, by kind of attention."""
    shapes = {shape.head_size for shape in (model.attention, model.local) if shape}
    factor = max((rope.factor for rope in model.rope if rope.kind == "linear"), default=1.0)
    return int(sum(shapes) * model.max_position_embeddings * factor) * DTYPE_BYTES[model.dtype]


def _libraries(model: Model, deployment: Deployment) -> Item:
    size, because = within(0.26, 0.05, 0.6), "libraries"  # their handles and workspaces
    if deployment.tensor_parallel_size > 1:
        buffers = within(1.83, 1.6, 2.1) if deployment.gpu.nvlink else within(0.1, 0.0, 0.6)
        size, because = size + buffers, f"{because}, buffers of NCCL and of all-reduce"
    if model.experts and model.quantization and deployment.gpu.major == CONSUMER_BLACKWELL:
        size, because = size + EXPERTS, f"{because}, and what quantized experts take on such a GPU"
    if deployment.gpu.unified:
        size, because = size + within(2.4, 0.3, 5.0), f"{because}, and what the system takes of the same memory"
    return Item("runtime", size, because)


def _activations(model: Model, deployment: Deployment, stage: range) -> Item:
    """The largest of vLLM's profiling steps: the decoder's longest batch, an image, and sampling on the last stage."""
    ranks = deployment.tensor_parallel_size
    candidates = {f"{deployment.max_num_batched_tokens:,} tokens in the decoder": _decoder(model, deployment)}
    if stage.stop == len(model.layers):
        rows = f"sampling for {deployment.max_num_seqs:,} requests"
        logits = deployment.max_num_seqs * model.vocab_size * SAMPLER
        candidates[rows] = logits + _held(model, deployment)
    if latent := model.attention.latent:
        tokens, heads = _context(model, deployment), model.attention.shard(ranks).heads
        queries = deployment.max_num_batched_tokens * (latent.nope + latent.rope)
        size = heads * (tokens * (latent.nope + latent.value) + queries)
        held = size * DTYPE_BYTES[model.dtype] + _held(model, deployment)
        candidates[f"keys and values of {tokens:,} cached tokens"] = held
    because, size = max(candidates.items(), key=lambda item: item[1])
    most = 1.45 if model.experts and model.quantization else 1.25  # kernels for quantized experts need room
    estimate = Estimate(size, size * 7 // 10, int(size * most) + 128 * MIB)
    if model.tower and not deployment.language_model_only:
        tower, likely = _tower(model, model.tower, deployment), estimate.likely
        estimate = Estimate(*map(max, zip(astuple(estimate), astuple(tower), strict=True)))
        because = because if likely == estimate.likely else "the largest images in the vision tower"
    compiling = _compiling(model, deployment) if stage.start == 0 else 0
    if compiling > estimate.likely:
        because = "a copy of the embeddings while the model is compiled; less where the code is in vLLM's cache"
    beside = estimate.likely if arithmetic_of(deployment.vllm).holds_copy and compiling else 128 * MIB
    largest = max(estimate.most, compiling + beside)
    return Item("activations", Estimate(max(estimate.likely, compiling), estimate.least, largest), because)


def _compiling(model: Model, deployment: Deployment) -> int:
    """What the first start takes to try kernels on: Inductor's `benchmark_combo_kernel` makes arguments of their sizes.

    The largest is the table of embeddings, beside a batch's hidden states twice: 0.20.2 counted this for five models
    on an H200 (docs/gpu). A decoder that gets its embeddings from a vision model does not compile that kernel.
    """
    if deployment.enforce_eager or (model.tower and not deployment.language_model_only):
        return 0
    table = model.vocab_size // deployment.tensor_parallel_size + 2 * deployment.max_num_batched_tokens
    return table * model.hidden_size * DTYPE_BYTES[model.dtype]


def _tower(model: Model, tower: Tower, deployment: Deployment) -> Estimate:
    """What the vision tower takes for the largest items, which wait for the decoder as hidden states."""
    patches, tokens = profiled(tower, deployment)
    share = ON_HOPPER if deployment.gpu.capability == HOPPER else ELSEWHERE
    size = int(DTYPE_BYTES[model.dtype] * (patches * tower.width * share + tokens * model.hidden_size))
    least, most = (0.7, 1.25) if tower.measured else (0.4, 1.8)
    return Estimate(size, int(size * least), int(size * most) + 128 * MIB)


def _held(model: Model, deployment: Deployment) -> int:
    """Bytes of a batch that are still there when its requests are sampled: hidden states, the experts' workspace."""
    width = ceil(HELD * model.hidden_size)
    if experts := model.experts:
        inner = experts.intermediate_size // deployment.tensor_parallel_size
        results = max(2 * inner, model.hidden_size) + max(inner, model.hidden_size)
        width += experts.per_token * results
    return deployment.max_num_batched_tokens * DTYPE_BYTES[model.dtype] * width


def _decoder(model: Model, deployment: Deployment) -> int:
    """Bytes that the widest layer takes for a batch: residuals, projections, experts' intermediate results."""
    ranks, attention, mixers = deployment.tensor_parallel_size, model.attention, []
    if latent := attention.latent:
        mixers.append(attention.heads * (latent.nope + latent.rope + latent.value))
    else:
        mixers.append((2 * attention.heads + 2 * attention.kv_heads) * attention.head_size)
    if experts := model.experts:
        mixers.append(experts.per_token * (experts.matrices * experts.intermediate_size + model.hidden_size))
    else:
        mixers.append(3 * model.intermediate_size)
    # As vLLM counted at 8,192 tokens: 0.19.0 for Llama and CodeLlama on an H100, 0.20.2 for others on an H200.
    residuals = (8.0 if model.experts else 4.5) + (2.0 if deployment.pipeline_parallel_size > 1 else 0.0)
    if model.hybrid and model.state:
        mixers.append(model.state.channels() + 3 * model.state.width)
    if model.delta:
        # As vLLM 0.20.2 counted at 8,192 tokens on an H200 for Qwen3.6-27B, and for Qwen3.6-35B-A3B and Qwen3-Next.
        residuals, mixers = (12.0, [2 * max(mixers)]) if model.experts else (9.0, mixers)
    widest = ceil(residuals * model.hidden_size) + ceil(max(mixers) / ranks)
    if model.experts and model.quantization:
        widest = ceil(QUANTIZED_EXPERTS * widest)
    return deployment.max_num_batched_tokens * DTYPE_BYTES[model.dtype] * widest


def _graphs(model: Model, deployment: Deployment) -> Item:
    """CUDA graphs: one for each captured batch size; by default, these go up to twice the largest batch."""
    largest = min(512, 2 * deployment.max_num_seqs)
    sizes = len({1, 2, 4, *range(8, min(largest, 256) + 1, 8), *range(272, largest + 1, 16)})
    hopper = deployment.gpu.capability == HOPPER
    layers = sum(HOPPER_GRAPH if hopper and kind in ATTENTIVE else GRAPH for kind in model.layers)
    size = int(0.045 * GIB + sizes * layers * MIB / deployment.pipeline_parallel_size)
    counted = counts_graphs(model, deployment)
    because = f"{sizes} batch sizes up to {largest}" + ("" if counted else "; vLLM does not count them here")
    estimate = Estimate(size, size * 3 // 10, size * 3)
    if counted and _in_flashinfer(deployment):
        estimate += WORKSPACE
        because += ", and FlashInfer's workspace"
    if counted and model.delta and arithmetic_of(deployment.vllm).counts_warm_up:
        warm_up = deployment.max_num_batched_tokens * WARM_UP
        drafts = deployment.speculative_tokens > 0  # none showed where whole steps are not captured
        estimate += Estimate(0 if drafts else warm_up, 0 if drafts else warm_up // 2, warm_up * 3 // 2)
        because += f", and what {deployment.max_num_batched_tokens:,} tokens take in the warm-up"
    return Item("CUDA graphs", estimate, because, counted)


def _in_flashinfer(deployment: Deployment) -> bool:
    """Return whether the KV cache's type is one that FlashInfer reads: on Hopper, FlashAttention 3 reads FP8."""
    fp8 = deployment.kv_cache_dtype in FP8 and deployment.gpu.capability != HOPPER
    return fp8 or deployment.kv_cache_dtype in NVFP4


def counts_graphs(model: Model, deployment: Deployment) -> bool:
    """Return whether vLLM takes its estimate for CUDA graphs from the KV cache's memory."""
    variables = dict(variable.partition("=")[::2] for variable in deployment.environment)
    counts = bool(int(variables.get(COUNT_GRAPHS, arithmetic_of(deployment.vllm).counts_graphs)))
    return counts and not in_second_runner(model, deployment.vllm)


def _context(model: Model, deployment: Deployment) -> int:
    return mla.context(deployment, layout(model, deployment).block_size)


def _flashinfer(model: Model, deployment: Deployment) -> Iterator[Item]:
    """FlashInfer's workspace, where no graph is counted."""
    if _in_flashinfer(deployment) and (deployment.enforce_eager or not counts_graphs(model, deployment)):
        yield Item("FlashInfer workspace", WORKSPACE, "made with the first request", counted=False)


def _latent(model: Model, deployment: Deployment) -> Iterator[Item]:
    """The workspace of `MLACommonMetadataBuilder`, for cached tokens of prompts that go on."""
    if model.attention.latent:
        tokens = _context(model, deployment)
        size = tokens * model.attention.head_size * DTYPE_BYTES[model.dtype]
        because = f"latents of {tokens:,} cached tokens; reserved after the KV cache is sized"
        yield Item("MLA workspace", exactly(size), because, counted=False)


def _nvfp4(model: Model, deployment: Deployment, stage: range) -> Iterator[Item]:
    """A batch's results in FP8, of which each attention layer has a buffer on 10.x: `FlashInferImpl`."""
    if deployment.kv_cache_dtype not in NVFP4 or deployment.gpu.major != BLACKWELL:
        return
    shapes = {**dict.fromkeys(ATTENTIVE, model.attention), **dict.fromkeys(LOCAL, model.local or model.attention)}
    found = [shapes[kind] for kind in model.layers[stage.start : stage.stop] if kind in shapes]
    width = sum(shape.heads * shape.head_size for shape in found) // deployment.tensor_parallel_size
    because = f"a batch's results in FP8, in each of {len(found)} layers"
    yield Item("NVFP4 buffers", exactly(deployment.max_num_batched_tokens * width), because)


def _turboquant(model: Model, deployment: Deployment, layers: int) -> Iterator[Item]:
    """What TurboQuant's attention takes besides its KV cache, by the shapes of its buffers, in so many layers.

    Source: `Attention._init_turboquant_buffers` (0.20), `TurboQuantMetadataBuilder._reserve_workspace` (0.24 on) and
    `TurboQuantAttentionImpl._continuation_prefill`, which dequantizes at once what the cache has of a prompt already.
    """
    if deployment.kv_cache_dtype not in TURBOQUANT:
        return
    attention = model.attention.shard(deployment.tensor_parallel_size)
    decode = deployment.max_num_seqs * attention.heads * (SPLITS + 1) * (attention.head_size + 1) * FLOAT
    tile = TILE if deployment.tiles else deployment.max_model_len
    context = ceil((min(deployment.max_model_len, tile) - 1) / CONTEXT_GRANULE) * CONTEXT_GRANULE
    half = attention.kv_heads * context * attention.head_size * HALF
    reserved = max(decode, 2 * half)
    # With experts, the workspace is the memory of theirs, which is counted.
    workspace = Estimate(reserved, 0 if model.experts else reserved, reserved)
    copies = Estimate(TRANSIENTS * half, 0, int(TRANSIENTS * KEPT * half))
    if arithmetic_of(deployment.vllm).decode_buffers:
        yield Item("TurboQuant buffers", exactly(layers * decode), f"decode's, in each of {layers} layers")
    when = "by turboquant-tiles" if deployment.tiles else "after the KV cache is sized"
    because = f"keys and values of {context:,} tokens dequantised; reserved {when}"
    yield Item("TurboQuant workspace", workspace, because, deployment.tiles)
    because = f"copies of them while a prompt of {deployment.max_model_len:,} tokens goes on"
    yield Item("TurboQuant continuation", copies, because, deployment.tiles)
