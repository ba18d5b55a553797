"""Activations: what vLLM's profiling run takes, estimated from what releases counted."""

from __future__ import annotations

from math import ceil

from vpatch.plan import MIB, Estimate, Model, Tower
from vpatch.plan import latent as mla
from vpatch.plan.deployment import DTYPE_BYTES, HOPPER, Deployment

# What a vision tower takes of the intermediate results of its patches: Qwen3.5 on an H200, which has another kernel,
# and on an RTX 5090; Qwen2.5-VL on an A100.
_TOWER_ON_HOPPER, _TOWER_ELSEWHERE = 1.02, 0.83
# Bytes per request and token of the vocabulary in the sampler, and hidden states that it finds: as vLLM 0.19.0 counted
# for 1,024 requests on an H100, with vocabularies of 32,000 to 262,000 tokens.
_SAMPLER, _HELD = 14, 2.5
_QUANTIZED_EXPERTS = 1.2  # times as much as plain ones: Qwen3.6-35B-A3B in NVFP4 on an RTX 5090 and a GB10


def activations(model: Model, deployment: Deployment, stage: range, block_size: int) -> tuple[Estimate, str]:
    """Return what the largest step of vLLM's profiling run takes on a stage, and which step it is.

    The steps are a batch in the decoder, sampling, the largest images, and the first compilation. `block_size` is that
    of the KV cache, in tokens.
    """
    steps = {f"{deployment.max_num_batched_tokens:,} tokens in the decoder": _decoder(model, deployment)}
    if stage.stop == len(model.layers):
        logits = deployment.max_num_seqs * model.vocab_size * _SAMPLER
        steps[f"sampling for {deployment.max_num_seqs:,} requests"] = logits + _held(model, deployment)
    if model.attention.latent:
        tokens = mla.context(deployment, block_size)
        steps[f"keys and values of {tokens:,} cached tokens"] = _cached(model, deployment, tokens)
    because, size = max(steps.items(), key=lambda item: item[1])
    most = 1.45 if model.experts and model.quantization else 1.25  # kernels for quantized experts need room
    bounds = Estimate(size, size * 7 // 10, int(size * most) + 128 * MIB)
    if model.tower and not deployment.language_model_only:
        tower = _tower(model, deployment)
        because = because if tower.likely <= size else "the largest images in the vision tower"
        bounds = Estimate(max(size, tower.likely), max(bounds.least, tower.least), max(bounds.most, tower.most))
    copied = _compiling(model, deployment) if stage.start == 0 else 0
    if copied > bounds.likely:
        because = "a copy of the embeddings while the model is compiled; less where the code is in vLLM's cache"
    beside = bounds.likely if deployment.release.holds_copy and copied else 128 * MIB
    return Estimate(max(bounds.likely, copied), bounds.least, max(bounds.most, copied + beside)), because


def _decoder(model: Model, deployment: Deployment) -> int:
    """Bytes that the widest layer takes for a batch: residuals, projections, experts' intermediate results."""
    attention, mixers = model.attention, []
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
    widest = ceil(residuals * model.hidden_size) + ceil(max(mixers) / deployment.tensor_parallel_size)
    if model.experts and model.quantization:
        widest = ceil(_QUANTIZED_EXPERTS * widest)
    return deployment.max_num_batched_tokens * DTYPE_BYTES[model.dtype] * widest


def _held(model: Model, deployment: Deployment) -> int:
    """Bytes of a batch that are still there when its requests are sampled: hidden states, the experts' workspace."""
    width = ceil(_HELD * model.hidden_size)
    if experts := model.experts:
        inner = experts.intermediate_size // deployment.tensor_parallel_size
        results = max(2 * inner, model.hidden_size) + max(inner, model.hidden_size)
        width += experts.per_token * results
    return deployment.max_num_batched_tokens * DTYPE_BYTES[model.dtype] * width


def _cached(model: Model, deployment: Deployment, tokens: int) -> int:
    """Bytes that latent attention takes for the keys and values of a number of cached tokens, and a batch's queries."""
    latent, heads = model.attention.latent, model.attention.shard(deployment.tensor_parallel_size).heads
    assert latent  # noqa: S101 - for mypy
    queries = deployment.max_num_batched_tokens * (latent.nope + latent.rope)
    size = heads * (tokens * (latent.nope + latent.value) + queries)
    return size * DTYPE_BYTES[model.dtype] + _held(model, deployment)


def _tower(model: Model, deployment: Deployment) -> Estimate:
    """What the vision tower takes for the largest items, which wait for the decoder as hidden states."""
    assert model.tower  # noqa: S101 - for mypy
    patches, tokens = profiled(model.tower, deployment)
    share = _TOWER_ON_HOPPER if deployment.gpu.major == HOPPER else _TOWER_ELSEWHERE
    size = int(DTYPE_BYTES[model.dtype] * (patches * model.tower.width * share + tokens * model.hidden_size))
    least, most = (0.7, 1.25) if model.tower.measured else (0.4, 1.8)
    return Estimate(size, int(size * least), int(size * most) + 128 * MIB)


def profiled(tower: Tower, deployment: Deployment) -> tuple[int, int]:
    """Return how many patches vLLM profiles the tower with, and the tokens that they become."""
    frames = max(1, min(tower.frames, deployment.max_model_len // tower.tokens))
    tokens = frames * tower.tokens
    items = max(1, deployment.max_num_batched_tokens // tokens)
    return items * frames * tower.patches, items * tokens


def _compiling(model: Model, deployment: Deployment) -> int:
    """What the first start takes to try kernels on: Inductor's `benchmark_combo_kernel` makes arguments of their sizes.

    The largest is the table of embeddings, beside a batch's hidden states twice: 0.20.2 counted this for five models
    on an H200 (docs/gpu). A decoder that gets its embeddings from a vision model does not compile that kernel.
    """
    if deployment.enforce_eager or (model.tower and not deployment.language_model_only):
        return 0
    table = model.vocab_size // deployment.tensor_parallel_size + 2 * deployment.max_num_batched_tokens
    return table * model.hidden_size * DTYPE_BYTES[model.dtype]
