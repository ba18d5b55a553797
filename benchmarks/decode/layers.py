"""Layers to time: caches larger than L2, their block tables, and calls of the kernels on each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.decode.cases import MAX_MODEL_LEN, PAGE, PRESETS, Speed, layers
from benchmarks.decode.formats import store
from benchmarks.decode.kernels import STOCK_SPLITS, decode, flash, ours, stock, unsupported

Calls = list[Callable[[], Any]]
GIB = 2**30


def quantized_bytes(case: Speed) -> int:
    """Return the bytes of a layer's cache that a case reads."""
    return case.batch * case.context * case.kv_heads * PRESETS[case.preset].slot(case.size)


def flash_bytes(case: Speed) -> int:
    """Return the bytes of a layer's bf16 cache that a case reads."""
    return case.batch * case.context * case.kv_heads * case.size * 4


def pages_of(case: Speed) -> int:
    """Return the pages of all layers' quantized caches."""
    return layers(quantized_bytes(case)) * case.batch * case.context // PAGE


def flash_pages_of(case: Speed) -> int:
    """Return the pages of all layers' bf16 caches."""
    return layers(flash_bytes(case)) * case.batch * case.context // PAGE


def needed(case: Speed) -> int:
    """Return about how many bytes of GPU memory a case takes."""
    caches = sum(layers(size) * size for size in (quantized_bytes(case), flash_bytes(case)))
    partial_results = 2 * case.tokens * case.heads * STOCK_SPLITS * (case.size + 1) * 4
    return caches + partial_results + GIB


def free_memory() -> int:
    """Return the bytes of GPU memory that this process can still use."""
    import torch

    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def heads_first() -> bool:
    """Return whether this vLLM puts the heads of a page before its tokens in memory, as from 0.26 on."""
    import vllm
    from packaging.version import InvalidVersion, Version

    try:
        return Version(vllm.__version__).release >= (0, 26)
    except InvalidVersion:
        return True


def quantized_pool(case: Speed, pages: int, device: str = "cuda", *, first: bool = True) -> Any:
    """Return a cache of `pages` pages. vLLM's kernel writes the first ones; the others are copies.

    Args:
        case: has the preset, head size and KV heads.
        pages: of the cache.
        device: of the cache.
        first: whether heads come before tokens in memory.
    """
    import torch

    slot, written = PRESETS[case.preset].slot(case.size), min(pages, 512)
    some = torch.zeros(written, PAGE, case.kv_heads, slot, dtype=torch.uint8, device=device)
    shape = (written * PAGE, case.kv_heads, case.size)
    keys, values = (torch.randn(shape, device=device).to(torch.bfloat16) for _ in range(2))
    store(keys, values, some, torch.arange(written * PAGE, device=device), PRESETS[case.preset])
    if first:
        memory = torch.empty(pages, case.kv_heads, PAGE, slot, dtype=torch.uint8, device=device)
        cache = memory.transpose(1, 2)
    else:
        cache = torch.empty(pages, PAGE, case.kv_heads, slot, dtype=torch.uint8, device=device)
    for start in range(0, pages, written):
        cache[start : start + written] = some[: pages - start]
    return cache


def flash_pool(case: Speed, pages: int) -> tuple[Any, Any]:
    """Return bf16 keys and values of `pages` pages."""
    import torch

    shape = (pages, PAGE, case.kv_heads, case.size)
    keys, values = (torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(2))
    return keys, values


class Layers:
    """The layers of a case on a quantized cache, with everything preallocated that an engine preallocates."""

    def __init__(self, case: Speed, cache: Any, device: str = "cuda", *, count: int | None = None) -> None:
        import torch

        self.case, self.cache, self.preset = case, cache, PRESETS[case.preset]
        self.count = count or layers(quantized_bytes(case))
        used = case.context // PAGE
        order = torch.randperm(self.count * case.batch * used, device=device).int()
        self.tables = torch.zeros(self.count, case.batch, MAX_MODEL_LEN // PAGE, dtype=torch.int32, device=device)
        self.tables[:, :, :used] = order.view(self.count, case.batch, used)
        self.query = torch.randn(case.tokens, case.heads, case.size, device=device).to(torch.bfloat16)
        self.lengths = torch.full((case.batch,), case.context, dtype=torch.int32, device=device)
        self.output = torch.empty_like(self.query)

    def ours(self) -> Calls:
        """Return calls of our kernels, one for each layer."""
        import torch

        case = self.case
        reason = unsupported(self.query, self.cache, self.tables[0], self.lengths, self.preset, case.window)
        if reason:
            raise ValueError(f"the kernels refuse this case: {reason}")
        kernels = ours()
        launch = kernels.choose(*case.chosen_by)
        processors = kernels.multiprocessors(self.query.device)
        splits = kernels.split_count(launch, case.batch, case.kv_heads, MAX_MODEL_LEN, processors)
        scratch = torch.empty(
            splits * case.tokens * case.heads * (case.size + 1), dtype=torch.float32, device=self.query.device
        )
        call = partial(decode, self.query, self.cache)
        options = {"correct": case.correct, "window": case.window, "scratch": scratch, "output_buf": self.output}
        return [partial(call, table, self.lengths, self.preset, **options) for table in self.tables]

    def stock(self) -> Calls:
        """Return calls of vLLM's kernels, one for each layer; they take the tokens of a window as requests."""
        import torch

        case, device = self.case, self.query.device
        buffers = {
            "mid_o_buf": torch.empty(case.tokens, case.heads, STOCK_SPLITS, case.size + 1, device=device),
            "output_buf": torch.empty_like(self.query),
            "lse_buf": torch.empty(case.tokens, case.heads, device=device),
        }
        before = torch.arange(case.window - 1, -1, -1, dtype=torch.int32, device=device)
        lengths = (self.lengths[:, None] - before).flatten()
        call = partial(stock, self.query, self.cache)
        tables = (table.repeat_interleave(case.window, 0) if case.window > 1 else table for table in self.tables)
        return [partial(call, table, lengths, self.preset, correct=case.correct, **buffers) for table in tables]


def flash_calls(case: Speed, pool: tuple[Any, Any], version: int) -> Calls:
    """Return calls of flash attention on a bf16 cache, one for each layer."""
    import torch

    count, used = layers(flash_bytes(case)), case.context // PAGE
    keys, values = pool
    order = torch.randperm(count * case.batch * used, device="cuda").int().view(count, case.batch, used)
    query = torch.randn(case.tokens, case.heads, case.size, device="cuda").to(torch.bfloat16)
    output = torch.empty_like(query)
    starts = torch.arange(case.batch + 1, dtype=torch.int32, device="cuda") * case.window
    lengths = torch.full((case.batch,), case.context, dtype=torch.int32, device="cuda")
    attend = flash(version)
    return [
        partial(attend, query, keys, values, table, lengths, starts, case.window, case.context, output)
        for table in order
    ]
