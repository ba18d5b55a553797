"""What TurboQuant's attention takes besides its KV cache, by the shapes of its buffers.

Source: `Attention._init_turboquant_buffers` (0.20), `TurboQuantMetadataBuilder._reserve_workspace` (0.24 on) and
`TurboQuantAttentionImpl._continuation_prefill`. A continuation is a prompt of which a part is in the cache already: it
is dequantised at once, as long as it is.
"""

from __future__ import annotations

from math import ceil

from vpatch.plan.arithmetic import arithmetic_of
from vpatch.plan.estimates import Estimate, Item, exactly
from vpatch.plan.kv_pages import PRESETS
from vpatch.plan.model import Deployment, Model

SPLITS = 32
"""Parts that decode divides a context into: `tq_max_kv_splits_for_cuda_graph`."""

FLOAT, HALF = 4, 2
KERNEL_BLOCK = 128
TRANSIENTS = 4
"""Copies of the dequantised keys that a continuation makes while it runs."""

KEPT = 2.3
"""How much more of them the allocator keeps, for they grow with every chunk: 1.9 and 2.3 times, on an H200."""


def turboquant_items(model: Model, deployment: Deployment, layers: int) -> tuple[Item, ...]:
    """Give what TurboQuant takes on a GPU with so many of its layers; nothing for another KV cache."""
    if deployment.kv_cache_dtype not in PRESETS:
        return ()
    attention, ranks = model.attention, deployment.tensor_parallel_size
    heads, kv_heads = attention.heads // ranks, max(1, attention.kv_heads // ranks)
    decode = deployment.max_num_seqs * heads * (SPLITS * (attention.head_size + 1) + attention.head_size + 1) * FLOAT
    context = ceil((deployment.max_model_len - 1) / KERNEL_BLOCK) * KERNEL_BLOCK
    half = kv_heads * context * attention.head_size * HALF
    reserved = max(decode, 2 * half)
    workspace = Item(
        "TurboQuant workspace",
        # The mixture of experts' workspace is the same memory, and counted.
        Estimate(reserved, 0 if model.experts else reserved, reserved),
        f"keys and values of {context:,} tokens dequantised; reserved after the KV cache is sized",
        counted=False,
    )
    copies = Item(
        "TurboQuant continuation",
        Estimate(TRANSIENTS * half, 0, int(TRANSIENTS * KEPT * half)),
        f"copies of them while a prompt of {context:,} tokens goes on",
        counted=False,
    )
    if arithmetic_of(deployment.vllm).decode_buffers:
        buffers = Item("TurboQuant buffers", exactly(layers * decode), f"decode's, in each of {layers} layers")
        return (buffers, workspace, copies)
    return (workspace, copies)
