"""What TurboQuant attends to in steps that verify drafts, if these are decode steps, on one tree."""

from __future__ import annotations

import os
from typing import Any

from tests.validation.cpu.attending import batch_of
from tests.validation.cpu.probe_decode_layer import companion, noted
from tests.validation.cpu.probe_mtp import HEAD_SIZE, HEADS, STEPS, VERIFIES, K, Verifying, configured, few_splits
from tests.validation.cpu.probe_speculation import NGRAM


def padded(layer: Verifying) -> dict[str, Any]:
    """Verify drafts of one request in a batch that a CUDA graph has padded to two; return the step and what it found.

    The padding has no tokens in the KV cache, and its output is not read.
    """
    import torch

    alone = layer.step((VERIFIES,))
    query = torch.randn(2 * (1 + K), HEADS[0], HEAD_SIZE).half()
    starts = torch.tensor([0, 1 + K, 1 + K], dtype=torch.int32)
    rows = (VERIFIES, VERIFIES._replace(cached=0, new=0))
    metadata = layer.builder.build(0, batch_of(rows, layer.tables_of(2), torch.arange(1 + K), starts=starts))
    own = layer.module._tq_Pi, layer.module._tq_centroids, layer.module._tq_PiT
    with noted() as launches:
        output = layer.impl._decode_attention(query, layer.cache, metadata, *own)
    return {
        "wrong by": alone["wrong by"],
        "padding": float(output[1 + K :].abs().max()),
        "finite": bool(output.isfinite().all()),
        "launches": seen(launches),
    }


def failed(layer: Verifying) -> dict[str, Any]:
    """Verify drafts after the warm-up has failed, when vLLM's kernels do all the work, and CUDA graphs are the same."""
    companion("_switch").turn_off("test")
    with noted() as launches:
        step = layer.step(STEPS["rejected drafts"])
    companion("_switch")._reasons.clear()
    return {"wrong by": step["wrong by"], "launches": seen(launches)}


def seen(launches: list[Any]) -> list[Any]:
    """Return the launches of attention's first kernel: its name, and the third dimension of its grid."""
    return [[name, grid[-1]] for name, grid, _ in launches if name in ("split_kernel", "_tq_decode_stage1")]


def supported(folder: str, drafts: int) -> dict[str, Any]:
    """Return what the metadata builder says of its batches, with so many drafts."""
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadataBuilder

    made = configured(folder, speculative_config=NGRAM | {"num_speculative_tokens": drafts})
    layer = Verifying(made)
    return {
        "graphs": TurboQuantMetadataBuilder.get_cudagraph_support(made, None).name,
        "threshold": layer.builder.reorder_batch_threshold,
    }


def main(_home: str, folder: str, switch: str) -> dict[str, Any]:
    if switch == "off":
        os.environ["VPATCH_TQ_DECODE"] = "0"
    few_splits()
    made = configured(folder, speculative_config=NGRAM)
    found: dict[str, Any] = {"steps": {}}
    for name, rows in STEPS.items():
        layer = Verifying(made)
        with noted() as launches:
            step = layer.step(rows)
        found["steps"][name] = step | {"launches": seen(launches)}
    found["padded"] = padded(Verifying(made)) if companion("") and switch == "on" else None
    found["failed"] = failed(Verifying(made)) if companion("") and switch == "on" else None
    found["supported"] = {str(drafts): supported(folder, drafts) for drafts in (1, K, 8, 9)}
    return found
