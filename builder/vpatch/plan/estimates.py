"""What a vLLM process takes besides weights and KV cache: estimates, each with its bounds and where it comes from.

They are set by what vLLM 0.20.2 counted on an H200 (docs/gpu, `python -m tests.validation.gpu.planned`), and hold for
an RTX 5090 whose weights and KV cache are printed (tests/plan/test_fit.py). Nothing here is exact, and a plan says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from vpatch.plan.arithmetic import FP8, arithmetic_of
from vpatch.plan.kv_pages import DTYPE_BYTES
from vpatch.plan.model import GIB, LINEAR, MIB, Deployment, Model


@dataclass(frozen=True)
class Estimate:
    """A number of bytes: most likely, at least, at most."""

    likely: int
    least: int
    most: int

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.likely + other.likely, self.least + other.least, self.most + other.most)

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.likely - other.likely, self.least - other.most, self.most - other.least)

    @property
    def exact(self) -> bool:
        """Whether it is no estimate."""
        return self.least == self.most


@dataclass(frozen=True)
class Item:
    """Something that takes memory of a GPU. What is not `counted` comes on top of what vLLM was given."""

    name: str
    size: Estimate
    because: str
    counted: bool = True


def exactly(size: int) -> Estimate:
    """Give what is computed, not estimated."""
    return Estimate(size, size, size)


def within(likely: float, least: float, most: float) -> Estimate:
    """Give an estimate in GiB."""
    return Estimate(int(likely * GIB), int(least * GIB), int(most * GIB))


def runtime_items(model: Model, deployment: Deployment) -> tuple[Item, ...]:
    """Give what the runtime takes: CUDA, libraries, activations, graphs."""
    graphs = () if deployment.enforce_eager else (_graphs(deployment),)
    return (_libraries(deployment), _activations(model, deployment), *graphs, CONTEXT)


def _libraries(deployment: Deployment) -> Item:
    """The libraries' handles and workspaces, and those of NCCL between several GPUs."""
    size, told = within(0.26, 0.15, 0.6), "libraries"
    if deployment.tensor_parallel_size > 1:
        size, told = size + within(0.35, 0.15, 0.8), f"{told}, buffers of NCCL and of all-reduce"
    if deployment.kv_cache_dtype in FP8 and deployment.gpu.capability != (9, 0):  # Hopper has FlashAttention 3
        size, told = size + within(0.39, 0.0, 0.39), f"{told}, FlashInfer's workspace"
    return Item("runtime", size, told)


CONTEXT = Item("CUDA context", within(0.51, 0.3, 0.6), "taken before vLLM begins to count", counted=False)


def _activations(model: Model, deployment: Deployment) -> Item:
    """The largest of what vLLM's profiling goes through: the decoder's longest batch, the sampler's, an image."""
    candidates = {
        f"{deployment.max_num_batched_tokens:,} tokens in the decoder": _decoder(model, deployment),
        f"sampling for {deployment.max_num_seqs:,} requests": deployment.max_num_seqs * model.vocab_size * SAMPLER,
    }
    if model.vision and not deployment.language_model_only:
        candidates["the largest image in the vision tower"] = IMAGE
    told, size = max(candidates.items(), key=lambda item: item[1])
    return Item("activations", Estimate(size, size // 2, size * 3 // 2 + 128 * MIB), told)


COUNT_GRAPHS = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"

IMAGE = int(1.9 * GIB)
"""Qwen3.5's vision tower at the largest image that its processor makes, 65,536 patches."""

SAMPLER = 20
"""Bytes per token of the vocabulary: logits and probabilities in float32, sorted values and their indices."""


def _decoder(model: Model, deployment: Deployment) -> int:
    """Bytes that the widest layer takes for a batch: residuals, projections, experts' intermediate results, all twice.

    Twice is what was seen of text alone at 8,192 tokens, with Qwen3.6-35B-A3B (2.0 times) and 27B (2.0 times).
    """
    ranks, width = deployment.tensor_parallel_size, DTYPE_BYTES[model.dtype]
    mixers = [(2 * model.attention.heads + 2 * model.attention.kv_heads) * model.attention.head_size]
    if LINEAR in model.layers and model.linear:
        values = model.linear.value_heads * model.linear.value_head_size
        mixers.append(2 * model.linear.key_heads * model.linear.key_head_size + 4 * values)
    if experts := model.experts:
        mixers.append(experts.per_token * (3 * experts.intermediate_size + model.hidden_size))
    else:
        mixers.append(3 * model.intermediate_size)
    return deployment.max_num_batched_tokens * width * 2 * (6 * model.hidden_size + ceil(max(mixers) / ranks))


def _graphs(deployment: Deployment) -> Item:
    """CUDA graphs: one for each batch size that is captured, which by default go to twice the largest batch."""
    largest = min(512, 2 * deployment.max_num_seqs)
    sizes = len({1, 2, 4, *range(8, min(largest, 256) + 1, 8), *range(272, largest + 1, 16)})
    size = int((0.045 + sizes * 0.015) * GIB)
    counted = counts_graphs(deployment)
    told = f"{sizes} batch sizes up to {largest}" + ("" if counted else "; this release does not count them")
    return Item("CUDA graphs", Estimate(size, size // 2, size * 3), told, counted)


def counts_graphs(deployment: Deployment) -> bool:
    """Say whether vLLM takes its estimate for CUDA graphs from the KV cache's memory."""
    said = dict(variable.partition("=")[::2] for variable in deployment.environment)
    return bool(int(said.get(COUNT_GRAPHS, arithmetic_of(deployment.vllm).counts_graphs)))
