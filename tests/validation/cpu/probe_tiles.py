"""What TurboQuant's continuation prefill computes and allocates on one tree, in one piece or in tiles.

Flash attention is compiled, so PyTorch stands in for it, in float32 and with its log-sum-exp.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from typing import Any

from packaging.version import Version

from tests.validation.cpu.attending import attention, config, prepare, random_cache, size_of, text_of, workspace
from tests.validation.cpu.probe_workspace import RESERVED, reserved

BLOCK, TILE, CHUNK, THRESHOLD, MAX_NUM_SEQS, SPLITS = 8, 16, 5, 2, 3, 2  # small, since the interpreter is slow
MEASURED_TILE = 2 * TILE  # for memory, so that what does not grow with it is little
MAX_MODEL_LEN = 5 * MEASURED_TILE


@dataclass(frozen=True)
class Case:
    """A chunk of a prompt with `cached` tokens. `heads` counts the heads of queries, and those of keys and values."""

    cached: int
    heads: tuple[int, int] = (2, 1)
    head_size: int = 64
    dtype: str = "turboquant_4bit_nc"
    chunk: int = CHUNK


BORDERS = (1, BLOCK + 1, TILE - 1, TILE, TILE + 1, 2 * TILE + 1)
CASES = {
    **{f"{tokens} cached": Case(tokens) for tokens in BORDERS},
    **{f"heads {heads}": Case(TILE + 7, heads=heads) for heads in ((2, 2), (4, 2), (6, 1))},
    **{f"head size {size}": Case(TILE + 7, (4, 2), size) for size in (128, 256)},
    **{dtype: Case(TILE + 7, dtype=f"turboquant_{dtype}") for dtype in ("k3v4_nc", "3bit_nc")},
    "few tokens": Case(TILE + 7, chunk=THRESHOLD),
    "long": Case(MAX_MODEL_LEN - CHUNK),
}
PEAKS = (2 * MEASURED_TILE, 2 * MEASURED_TILE + 1, MAX_MODEL_LEN - MEASURED_TILE)


def flash_attention(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, softmax_scale: float, *, causal: bool, **more: Any
) -> Any:
    """Compute the same as `flash_attn_varlen_func`; the causal mask is aligned to the last key.

    Works on one head at a time, so that its own memory is small next to attention's inputs and outputs.
    """
    import torch

    output, sums = torch.empty_like(q), torch.empty(q.shape[1], len(q))
    for (q_start, q_end), (k_start, k_end) in zip(pairwise(cu_seqlens_q), pairwise(cu_seqlens_k), strict=True):
        hidden = torch.ones(q_end - q_start, k_end - k_start, dtype=torch.bool).triu(
            k_end - k_start - q_end + q_start + 1
        )
        for head in range(q.shape[1]):
            keys, values = (part[k_start:k_end, head * k.shape[1] // q.shape[1]].float() for part in (k, v))
            scores = q[q_start:q_end, head].float() @ keys.T * softmax_scale
            if causal:
                scores.masked_fill_(hidden, float("-inf"))
            output[q_start:q_end, head] = scores.softmax(-1) @ values
            sums[head, q_start:q_end] = scores.logsumexp(-1)
    return (output, sums) if more.get("return_softmax_lse") else output


def merge_attn_states(
    output: Any, prefix: Any, prefix_lse: Any, suffix: Any, suffix_lse: Any, output_lse: Any, *_: object
) -> None:
    """Compute the same as vLLM's, whose arguments Triton's interpreter would hold until the next call."""
    import torch

    torch.logaddexp(prefix_lse, suffix_lse, out=output_lse)
    for token in range(len(output)):
        shares = [(lse[:, token] - output_lse[:, token]).exp()[:, None] for lse in (prefix_lse, suffix_lse)]
        output[token] = prefix[token] * shares[0] + suffix[token] * shares[1]


class Layer:
    """One attention layer, with a cache for one request of the longest length."""

    def __init__(self, case: Case) -> None:
        self.case, self.blocks = case, MAX_MODEL_LEN // BLOCK
        # With this scale attention to the cached tokens is far from even, although keys are short.
        self.impl, self.module = attention(case.heads, case.head_size, 1.0, case.dtype)
        slot = self.impl.tq_config.slot_size_aligned
        # From 0.26 on, a block stores all of one head together.
        self.cache = random_cache(self.blocks, case.heads[1], BLOCK, slot).transpose(1, 2)

    def chunk(self) -> tuple[Any, Any, Any]:
        """Return queries, keys and values of a chunk: (tokens, heads, head size)."""
        import torch

        torch.manual_seed(1)
        heads, num_kv_heads = self.case.heads
        shapes = ((self.case.chunk, n, self.case.head_size) for n in (heads, num_kv_heads, num_kv_heads))
        query, key, value = (torch.randn(shape).half() for shape in shapes)
        return query * 20, key * 0.02, value

    def continuation(self) -> Callable[[], Any]:
        """Return a function that continues a request and returns attention's output."""
        import torch
        from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadata

        length, context = self.case.chunk, self.case.cached + self.case.chunk
        metadata = TurboQuantMetadata(
            seq_lens=torch.tensor([context]),
            slot_mapping=torch.zeros(length),
            block_table=torch.randperm(self.blocks, generator=torch.Generator().manual_seed(2)).int()[None],
            query_start_loc=torch.tensor([0, length]),
            num_actual_tokens=length,
            max_query_len=length,
            max_seq_len=context,
            is_prefill=True,
        )
        held = self.module
        fixed = (self.cache, metadata, held._tq_Pi, held._tq_centroids, held._tq_PiT)
        return partial(self.impl._prefill_attention, *self.chunk(), *fixed, layer=held)

    def beside_a_decode(self) -> Callable[[], Any]:
        """Return a batch of as many tokens as a chunk has, the first of which is another request's decode."""
        import torch
        from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadata

        tokens, context = self.case.chunk, self.case.cached + self.case.chunk - 1
        metadata = TurboQuantMetadata(
            seq_lens=torch.tensor([2, context]),
            slot_mapping=torch.zeros(tokens),
            block_table=torch.arange(self.blocks, dtype=torch.int32).expand(2, -1).contiguous(),
            query_start_loc=torch.tensor([0, 1, tokens]),
            num_actual_tokens=tokens,
            max_query_len=tokens - 1,
            max_seq_len=context,
            is_prefill=True,
            num_decodes=1,
            num_decode_tokens=1,
        )
        query, key, value = (part.flatten(1) for part in self.chunk())
        stored = self.cache.transpose(1, 2) if Version(version("vllm")) >= Version("0.26") else self.cache
        return partial(self.impl.forward, self.module, query, key, value, stored, metadata, torch.zeros_like(query))

    def idle(self, cache: Any, *, shares: bool = False) -> Callable[[], Any]:
        """Return a forward pass without attention, like the one by which vLLM sizes a cache that does not exist yet.

        Layers that share another's cache get no keys.
        """
        import torch

        query, *stored = (part.flatten(1) for part in self.chunk())
        key, value = (None, None) if shares else stored
        return partial(self.impl.forward, self.module, query, key, value, cache, None, torch.full_like(query, 7))


def peak(do: Callable[[], Any]) -> int:
    """Call a function; return the most bytes that it held at once."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        do()
    held: dict[int, int] = {}
    most = 0
    for _, size, where in sorted(_allocations(seen.profiler.kineto_results.experimental_event_tree())):
        if size > 0:
            held[where] = size
            most = max(most, sum(held.values()))
        else:
            held.pop(where, None)  # or it was there before
    return most


def _allocations(events: Any) -> Iterator[tuple[int, int, int]]:
    """Yield the time of each allocation or release in ns, its bytes (negative if released) and its address."""
    from torch._C._profiler import _EventType

    for event in events:
        if event.tag == _EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.ptr
        yield from _allocations(event.children)


def others(manager: Any) -> dict[str, Any]:
    """Return the output of passes without a cache, the workspace after them, and peak bytes.

    These are of continuations, by number of cached tokens, and what profiling counts.
    """
    import torch
    from vllm import _custom_ops

    _custom_ops.merge_attn_states = merge_attn_states
    heads, size_of_head = (6, 1), 128  # queries and outputs are large next to keys and values

    def layer(cached: int) -> Layer:
        return Layer(Case(cached, heads, size_of_head, chunk=MEASURED_TILE))

    longest, outputs = layer(0), list[Any]()
    first, second = (longest.idle(torch.tensor([]), shares=shares) for shares in (False, True))
    peaks = {"counted": peak(lambda: outputs.append(first()))}
    outputs.append(second())
    found: dict[str, Any] = {"zeros": [bool((one == 0).all()) for one in outputs], "workspace": size_of(manager)}
    peaks["idle"] = peak(longest.idle(longest.cache))
    peaks["beside a decode"] = peak(layer(PEAKS[-1]).beside_a_decode())
    return found | {"peaks": peaks | {str(cached): peak(layer(cached).continuation()) for cached in PEAKS}}


def main(_home: str, folder: str) -> dict[str, Any]:
    """Run `CASES`, then measure memory; `folder` holds the models."""
    from vllm import _custom_ops
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.backends import turboquant_attn
    from vllm.v1.attention.ops import triton_merge_attn_states

    tiles = vars(sys.modules["vllm._vpatch.turboquant_tiles"]) if "vllm._vpatch.turboquant_tiles" in sys.modules else {}
    prepare(flash=True)
    turboquant_attn.flash_attn_varlen_func = flash_attention
    turboquant_attn._CONTINUATION_DECODE_THRESHOLD = THRESHOLD
    limits = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": MAX_NUM_SEQS, "block_size": BLOCK}
    made = config(folder, "dense", attention_config={"tq_max_kv_splits_for_cuda_graph": SPLITS}, **limits)
    with set_current_vllm_config(made):
        tiles.update(TILE=MEASURED_TILE, BLOCK=BLOCK)
        found: dict[str, Any] = others(workspace("cpu"))
        tiles.update(TILE=TILE)
        _custom_ops.merge_attn_states = triton_merge_attn_states.merge_attn_states
        outputs = {name: Layer(case).continuation()() for name, case in CASES.items()}
    found["outputs"] = {name: text_of(output) for name, output in outputs.items()}
    found["reserved"] = {name: reserved(folder, *RESERVED[name]) for name in ("35B", "decode is more")}
    return found
