"""A GPU's memory by item: exact where it can be computed, else an estimate with bounds.

vLLM takes `gpu_memory_utilization` of the whole card, runs the model once at its largest batch, and gives the rest of
its share to the KV cache. Weights and KV cache are arithmetic. That run is estimated from what vLLM counted: 0.20.2 on
an H200 (docs/gpu, `python -m tests.validation.gpu.planned`), and others in starts that people published (docs/starts:
the folder `calibration` and `llm-d-planner.json`; `python -m benchmarks.calibrate` prints the errors of the others).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

from vpatch.plan import ATTENTIVE, GIB, LOCAL, MIB, Estimate, Model, exactly, within
from vpatch.plan import latent as mla
from vpatch.plan.activations import activations
from vpatch.plan.defaults import in_second_runner
from vpatch.plan.deployment import (
    AMPERE,
    BLACKWELL,
    CONSUMER_BLACKWELL,
    DTYPE_BYTES,
    FP8,
    HOPPER,
    NVFP4,
    TURBOQUANT,
    Deployment,
)
from vpatch.plan.quantization import MXFP4
from vpatch.plan.refusals import skipped_layers


@dataclass(frozen=True)
class Item:
    """Something that takes memory of a GPU; if it is not `counted`, it comes on top of vLLM's share."""

    name: str
    size: Estimate
    because: str
    counted: bool = True


def added(items: Iterable[Item]) -> Estimate:
    """Return the sum of the items' sizes."""
    return sum((item.size for item in items), exactly(0))


COUNT_GRAPHS = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
CONTEXT = Item("CUDA context", within(0.51, 0.3, 0.75), "taken before vLLM begins to count", counted=False)
TILE = 16_384  # tokens of a prompt that the overlay turboquant-tiles dequantizes at once: its companion's constant
CONTEXT_GRANULE = 128  # tokens, of which a dequantized context has a multiple: `_continuation_prefill`

_TABLES = 160 * MIB  # vLLM adds them to the stored weights, mostly rotary positions: 0.14 GiB, measured for Qwen3.6
_WARM_UP = 128 << 10  # bytes per token of a batch: what Gated DeltaNet's warm-up takes, vllm-project/vllm#50780
# `VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE`: made with the first graph, or else with the first request
_WORKSPACE = within(0.385, 0.0, 0.45)
# MiB of a CUDA graph in each layer, and of one with full attention on Hopper: as counted for Qwen3.6 on an H200 and an
# L40S, and for Qwen2.5-14B on an H100.
_GRAPH, _HOPPER_GRAPH = 0.24, 0.5
_EXPERTS = within(0.35, 0.0, 0.9)  # more than else, with experts in NVFP4 on an RTX 5090; the cause is not known
_SPLITS = 32  # parts that TurboQuant's decode divides a context into: `tq_max_kv_splits_for_cuda_graph`
_FLOAT, _HALF = 4, 2
_TRANSIENTS = 4  # copies of the dequantized keys that a continuation of a prompt makes while it runs
_KEPT = 2.3  # times their size that the allocator keeps, since they grow with each chunk: 1.9 and 2.3 on an H200


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


def account(model: Model, deployment: Deployment, block_size: int) -> tuple[Memory, ...]:
    """Account for the memory of a GPU of each pipeline stage; `block_size` is that of the KV cache, in tokens."""
    total = deployment.gpu.memory
    requested = ceil(total * deployment.gpu_memory_utilization)
    found = []
    for stage in deployment.stages(len(model.layers)):
        items = (
            _weights(model, deployment, stage),
            _libraries(model, deployment),
            Item("activations", *activations(model, deployment, stage, block_size)),
            *(() if deployment.enforce_eager else (_graphs(model, deployment),)),
            CONTEXT,
            *_turboquant(model, deployment, stage),
            *_nvfp4(model, deployment, stage),
            *_latent(model, deployment, block_size),
            *_flashinfer(model, deployment),
        )
        rest = exactly(requested) - added(item for item in items if item.counted)
        given = deployment.kv_cache_memory_bytes
        found.append(Memory(total, requested, items, rest if given is None else exactly(given)))
    return tuple(found)


def _weights(model: Model, deployment: Deployment, stage: range) -> Item:
    """A stage's part of the checkpoint, and what vLLM adds to it when it loads."""
    weights = model.weights
    assert weights  # noqa: S101 - for mypy; without, there is no plan
    size = weights.other + sum(weights.layers[stage.start : stage.stop])
    size += weights.added * sum(model.layers[index] in ATTENTIVE for index in stage)
    size += 0 if deployment.language_model_only else weights.vision
    if stage.start == 0:
        size += weights.embedding
    if stage.stop == len(weights.layers):
        size += weights.head + (weights.draft if deployment.speculative_tokens else 0)
    whole = weights.whole * len(stage) // len(weights.layers)
    size = ceil((size - whole) / deployment.tensor_parallel_size) + whole
    estimate = exactly(size)
    summed = weights.exact or (weights.summed and deployment.pipeline_parallel_size == 1)
    if not summed or deployment.tensor_parallel_size > 1:  # small tensors are copied, not divided
        margin = 0.1 if model.quantization else 0.02  # plan can only guess what a checkpoint leaves unquantized
        estimate = Estimate(size, int(size * (1 - margin)), int(size * (1 + margin)) + _TABLES)
    if weights.exact or not weights.summed:  # what is given counts what vLLM adds
        estimate += exactly(_beside_weights(model, deployment, len(stage)))
    return Item("weights", estimate, weights.source)


def _beside_weights(model: Model, deployment: Deployment, layers: int) -> int:
    """Bytes that vLLM adds to the weights of so many layers, beside those in `_TABLES`."""
    # The tables of rotary positions: a head's size for each position, by kind of attention.
    shapes = {shape.head_size for shape in (model.attention, model.local) if shape}
    factor = max((rope.factor for rope in model.rope if rope.kind == "linear"), default=1.0)
    tables = int(sum(shapes) * model.max_position_embeddings * factor) * DTYPE_BYTES[model.dtype]
    # The layers' own embeddings of a batch.
    own = deployment.max_num_batched_tokens * model.own_width * len(model.layers) * DTYPE_BYTES[model.dtype]
    padding, experts, major = 0, model.experts, deployment.gpu.major
    if experts and model.quantization == MXFP4.name and major in {AMPERE, CONSUMER_BLACKWELL}:
        # Marlin pads experts, where neither Triton nor FlashInfer has kernels for them. Source:
        # `mxfp4_round_up_hidden_size_and_intermediate_size`.
        inner = ceil(experts.intermediate_size / deployment.tensor_parallel_size)
        padded = 128 * ceil(inner / 128) * 256 * ceil(model.hidden_size / 256)
        padding = int(layers * experts.count * experts.matrices * (padded - inner * model.hidden_size) * MXFP4.size)
    return (tables if tables > _TABLES else 0) + own + padding


def _libraries(model: Model, deployment: Deployment) -> Item:
    size, because = within(0.26, 0.05, 0.6), "libraries"  # their handles and workspaces
    if deployment.tensor_parallel_size > 1:
        buffers = within(1.83, 1.6, 2.1) if deployment.gpu.nvlink else within(0.1, 0.0, 0.6)
        size, because = size + buffers, f"{because}, buffers of NCCL and of all-reduce"
    if model.experts and model.quantization and deployment.gpu.major == CONSUMER_BLACKWELL:
        size, because = size + _EXPERTS, f"{because}, and what quantized experts take on such a GPU"
    if deployment.gpu.unified:
        size, because = size + within(2.4, 0.3, 5.0), f"{because}, and what the system takes of the same memory"
    return Item("runtime", size, because)


def _graphs(model: Model, deployment: Deployment) -> Item:
    """CUDA graphs: one for each captured batch size; by default, these go up to twice the largest batch."""
    largest = min(512, 2 * deployment.max_num_seqs)
    sizes = len({1, 2, 4, *range(8, min(largest, 256) + 1, 8), *range(272, largest + 1, 16)})
    hopper = deployment.gpu.major == HOPPER
    layers = sum(_HOPPER_GRAPH if hopper and kind in ATTENTIVE else _GRAPH for kind in model.layers)
    size = int(0.045 * GIB + sizes * layers * MIB / deployment.pipeline_parallel_size)
    counted = counts_graphs(model, deployment)
    because = f"{sizes} batch sizes up to {largest}" + ("" if counted else "; vLLM does not count them here")
    estimate = Estimate(size, size * 3 // 10, size * 3)
    if counted and _in_flashinfer(deployment):
        estimate += _WORKSPACE
        because += ", and FlashInfer's workspace"
    if counted and model.delta and deployment.release.counts_warm_up:
        warm_up = deployment.max_num_batched_tokens * _WARM_UP
        drafts = deployment.speculative_tokens > 0  # none showed where whole steps are not captured
        estimate += Estimate(0 if drafts else warm_up, 0 if drafts else warm_up // 2, warm_up * 3 // 2)
        because += f", and what {deployment.max_num_batched_tokens:,} tokens take in the warm-up"
    return Item("CUDA graphs", estimate, because, counted)


def counts_graphs(model: Model, deployment: Deployment) -> bool:
    """Return whether vLLM takes its estimate for CUDA graphs from the KV cache's memory."""
    variables = dict(variable.partition("=")[::2] for variable in deployment.environment)
    counts = bool(int(variables.get(COUNT_GRAPHS, deployment.release.counts_graphs)))
    return counts and not in_second_runner(model, deployment.release)


def _in_flashinfer(deployment: Deployment) -> bool:
    """Return whether the KV cache's type is one that FlashInfer reads: on Hopper, FlashAttention 3 reads FP8."""
    fp8 = deployment.kv_cache_dtype in FP8 and deployment.gpu.major != HOPPER
    return fp8 or deployment.kv_cache_dtype in NVFP4


def _flashinfer(model: Model, deployment: Deployment) -> Iterator[Item]:
    """FlashInfer's workspace, where no graph is counted."""
    if _in_flashinfer(deployment) and (deployment.enforce_eager or not counts_graphs(model, deployment)):
        yield Item("FlashInfer workspace", _WORKSPACE, "made with the first request", counted=False)


def _latent(model: Model, deployment: Deployment, block_size: int) -> Iterator[Item]:
    """The workspace of `MLACommonMetadataBuilder`, for cached tokens of prompts that go on."""
    if model.attention.latent:
        tokens = mla.context(deployment, block_size)
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


def _turboquant(model: Model, deployment: Deployment, stage: range) -> Iterator[Item]:
    """What TurboQuant's attention takes besides its KV cache, by the shapes of its buffers.

    Source: `Attention._init_turboquant_buffers` (0.20), `TurboQuantMetadataBuilder._reserve_workspace` (0.24 on) and
    `TurboQuantAttentionImpl._continuation_prefill`, which dequantizes at once what the cache has of a prompt already.
    """
    if deployment.kv_cache_dtype not in TURBOQUANT:
        return
    attention = model.attention.shard(deployment.tensor_parallel_size)
    decode = deployment.max_num_seqs * attention.heads * (_SPLITS + 1) * (attention.head_size + 1) * _FLOAT
    tile = TILE if deployment.tiles else deployment.max_model_len
    context = ceil((min(deployment.max_model_len, tile) - 1) / CONTEXT_GRANULE) * CONTEXT_GRANULE
    half = attention.kv_heads * context * attention.head_size * _HALF
    if deployment.release.decode_buffers:
        layers = len({*stage} - skipped_layers(model, deployment))
        yield Item("TurboQuant buffers", exactly(layers * decode), f"decode's, in each of {layers} layers")
    reserved = max(decode, 2 * half)
    # With experts, the workspace is the memory of theirs, which is counted.
    workspace = Estimate(reserved, 0 if model.experts else reserved, reserved)
    when = "by turboquant-tiles" if deployment.tiles else "after the KV cache is sized"
    because = f"keys and values of {context:,} tokens dequantised; reserved {when}"
    yield Item("TurboQuant workspace", workspace, because, deployment.tiles)
    copies = Estimate(_TRANSIENTS * half, 0, int(_TRANSIENTS * _KEPT * half))
    because = f"copies of them while a prompt of {deployment.max_model_len:,} tokens goes on"
    yield Item("TurboQuant continuation", copies, because, deployment.tiles)
