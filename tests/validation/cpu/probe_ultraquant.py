"""What UltraQuant's attention, which inherits from TurboQuant's, does on one tree.

Its kernels are left out: what they are told to attend to is what is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from tests.validation.cpu import attending
from tests.validation.cpu.attending import BLOCK, Row, attention, batch_of, prepare, size_of, workspace
from tests.validation.cpu.probe_mtp import HEAD_SIZE, HEADS, PAGES, STEPS, configured
from tests.validation.cpu.probe_speculation import FOUR_BIT, NGRAM
from tests.validation.cpu.probing import attempt, logged


def layer_of(made: Any, *, ultraquant: bool = True) -> Any:
    """Make an attention layer of UltraQuant, or one of TurboQuant, as the only one of an engine."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.backends.ultraquant_attn import UltraQuantAttentionImpl

    with set_current_vllm_config(made):
        if ultraquant:
            module = torch.nn.Module()
            impl = UltraQuantAttentionImpl(HEADS[0], HEAD_SIZE, 1.0, HEADS[1], kv_cache_dtype="ultraquant_4bit")
            impl._ensure_on_device(module, torch.device("cpu"))
        else:
            impl, module = attention(HEADS, HEAD_SIZE, 1.0, FOUR_BIT)
    module.impl, module.kv_cache = impl, torch.zeros(PAGES, HEADS[1], BLOCK, 36, dtype=torch.uint8)
    made.compilation_config.static_forward_context["layer"] = module
    return module


def builder(made: Any, device: str, *, ultraquant: bool = True) -> Any:
    """Make the metadata builder of the layer as the model runner does."""
    from vllm.v1.attention.backends.ultraquant_attn import UltraQuantAttentionBackend

    backend = UltraQuantAttentionBackend if ultraquant else None
    return attending.builder(made, HEADS[1], HEAD_SIZE, (BLOCK, None), device, backend)


def profiled(found: dict[str, Any], folder: str) -> None:
    """Run the forward pass by which vLLM sizes the KV cache: without a cache and without metadata."""
    import torch
    from vllm.config import set_current_vllm_config

    made = configured(folder)
    manager, layer = workspace("cpu"), layer_of(made)
    query, key = (torch.ones(4, heads * HEAD_SIZE).bfloat16() for heads in HEADS)
    with set_current_vllm_config(made):
        output = layer.impl.forward(layer, query, key, key, torch.tensor([]), None, torch.ones_like(query))
    found |= {"zeros": not output.any(), "workspace": size_of(manager)}


def reserved(found: dict[str, Any], folder: str, *, ultraquant: bool) -> None:
    """Make the metadata builder, which reserves in the workspace."""
    made = configured(folder)
    manager = workspace("meta")
    layer_of(made, ultraquant=ultraquant)
    builder(made, "meta", ultraquant=ultraquant)
    found["bytes"] = size_of(manager)


def drafted(found: dict[str, Any], folder: str) -> None:
    """Ask which steps with drafts are decode steps, and which CUDA graphs hold them."""
    made = configured(folder, kv_cache_dtype=FOUR_BIT, speculative_config=NGRAM)  # the type plays no role here
    workspace("cpu")
    layer_of(made)
    own = builder(made, "cpu")
    found["threshold"] = own.reorder_batch_threshold
    found["graphs"] = type(own).get_cudagraph_support(made, None).name


def warmed(found: dict[str, Any], folder: str) -> None:
    """Run what vLLM runs to warm up kernels; return whether the overlay's kernels were given up."""
    from vllm.model_executor.warmup import kernel_warmup

    made = configured(folder)
    workspace("cpu")
    layer_of(made)
    if warm_up := getattr(kernel_warmup, "warm_up", None):
        with logged() as lines:
            warm_up(SimpleNamespace(vllm_config=made))
        from vllm._vpatch.turboquant_decode_switch import why_off

        found |= {"off": why_off(), "log": lines}


def stepped(found: dict[str, Any], folder: str, rows: tuple[Row, ...]) -> None:
    """Attend to a step; return the lengths to which each request's tokens attend, [] if it reads no cache."""
    import torch
    from vllm.v1.attention.backends import ultraquant_attn

    made = configured(folder)
    workspace("cpu")
    layer = layer_of(made)
    lengths: list[list[int]] = []

    def read(query: Any, seq_lens: Any, **_: Any) -> Any:
        lengths.append(seq_lens.tolist())
        return torch.zeros_like(query)

    def long(query: Any, cached_len: int, **_: Any) -> Any:
        lengths.append([cached_len + 1 + at for at in range(len(query))])
        return torch.zeros_like(query)

    def new(q: Any, cu_seqlens_q: Any, **_: Any) -> Any:
        lengths.extend([] for _ in pairwise(cu_seqlens_q.tolist()))
        return torch.zeros_like(q)

    layer.impl._flash_attn_varlen = new
    layer.impl._ultraquant_continuation_prefill = long
    vars(ultraquant_attn).update(_HAS_FLASH_ATTN=True, ultraquant_unified_attention=read)
    tables, total = torch.zeros(len(rows), PAGES, dtype=torch.int32), sum(row.new for row in rows)
    metadata = builder(made, "cpu").build(0, batch_of(rows, tables, torch.arange(total)))
    query, key = (torch.ones(total, heads * HEAD_SIZE).bfloat16() for heads in HEADS)
    layer.impl.forward(layer, query, key, key, layer.kv_cache, metadata, torch.empty_like(query))
    found["lengths"] = lengths


def main(_home: str, folder: str) -> dict[str, Any]:
    prepare(flash=True)  # it is called nowhere here
    cases: dict[str, Callable[..., None]] = {
        "profiled": profiled,
        "reserved": partial(reserved, ultraquant=True),
        "drafted": drafted,
        "warmed": warmed,
        **{name: partial(stepped, rows=rows) for name, rows in STEPS.items()},
    }
    return {name: attempt(case, folder) for name, case in cases.items()} | {
        "turboquant reserved": attempt(partial(reserved, ultraquant=False), folder)
    }
