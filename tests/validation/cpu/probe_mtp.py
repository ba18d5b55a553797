"""Print what TurboQuant attends to in steps of several requests, and its CUDA graphs, on one tree, as JSON.

Run by `environment.probe`. The kernels are vLLM's own, in Triton's interpreter. Flash attention is compiled, so PyTorch
stands in for it.
"""

from __future__ import annotations

import importlib.util
import random
from base64 import b64encode
from functools import partial
from importlib.metadata import version
from inspect import signature
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

from packaging.version import Version

from tests.validation.cpu.probe_speculation import (
    FOUR_BIT,
    NGRAM,
    ON_V2,
    STARTS,
    attended,
    graphs,
    started,
    started_on_v2,
)
from tests.validation.cpu.probe_tiles import flash_attention
from tests.validation.cpu.probe_workspace import attention, batch_of, builder, config, random_cache, workspace
from tests.validation.cpu.probing import attempt, one_rank

FIRST_TOKENS, K = 5, 3
MODES = ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE", "NONE")
THRESHOLD = 4  # vLLM's is 128; a longer piece of a prompt goes another way
HEADS, HEAD_SIZE, BLOCK, BLOCKS, SPLITS = (2, 1), 64, 16, 4, 2
MAX_MODEL_LEN = BLOCK * BLOCKS


class Row(NamedTuple):
    """A request: its tokens in the cache, those of this step, and drafts that were rejected unknown to the CPU."""

    cached: int
    new: int
    rejected: int = 0


VERIFIES, REJECTED, PROMPT = Row(7, 1 + K), Row(7, 1 + K, rejected=2), Row(0, 18)
STEPS: dict[str, tuple[Row, ...]] = {
    "verification": (VERIFIES, Row(12, 1 + K)),
    "rejected drafts": (REJECTED, Row(12, 1 + K, rejected=K)),
    "verification beside a new prompt": (VERIFIES, PROMPT),
    "rejected drafts beside a new prompt": (REJECTED, PROMPT),
    "everything": (Row(5, 1), REJECTED, Row(9, THRESHOLD + 1), PROMPT),
    "cached prefix beside a new prompt": (Row(8, 3), PROMPT),
    "long piece beside a new prompt": (Row(11, THRESHOLD + 1), PROMPT),
    "decode and cached prefix beside a new prompt": (Row(9, 1), Row(8, 3), PROMPT),
    "new prompts": (Row(0, FIRST_TOKENS), PROMPT),
    "a decode and new prompts": (Row(9, 1), Row(0, FIRST_TOKENS), PROMPT),
    "one new prompt": (PROMPT,),
    "cached prefixes": (Row(8, 3), Row(9, 2)),
    "decodes": (Row(9, 1), Row(20, 1)),
}


class Layer:
    """One attention layer, with a cache of `BLOCKS` blocks for each request."""

    def __init__(self, made: Any) -> None:
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(made):
            self.impl, self.module = attention(HEADS, HEAD_SIZE, HEAD_SIZE**-0.5, FOUR_BIT)
            made.compilation_config.static_forward_context["layer"] = SimpleNamespace(impl=self.impl)
            self.builder = builder(made, HEADS[1], HEAD_SIZE, (BLOCK, None), "cpu")
        blocks, slot = BLOCKS * max(map(len, STEPS.values())), self.impl.tq_config.slot_size_aligned
        # From 0.26 on, a block stores all of one head together.
        self.cache = random_cache(blocks, HEADS[1], BLOCK, slot).transpose(1, 2)
        self.stored = self.cache.transpose(1, 2) if Version(version("vllm")) >= Version("0.26") else self.cache
        self.calls = 0
        self.impl._flash_attn_varlen = self.flash

    def flash(self, q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **_: Any) -> Any:
        self.calls += 1
        self.read = k, v
        return flash_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, self.impl.scale, causal=True)

    def step(self, rows: tuple[Row, ...]) -> dict[str, Any]:
        """Store and attend as the model runner does; return how far each row is from attention by PyTorch."""
        import torch

        torch.manual_seed(1)
        total, starts = sum(row.new for row in rows), [0]
        query, key, value = (torch.randn(total, heads * HEAD_SIZE).half() for heads in (HEADS[0], HEADS[1], HEADS[1]))
        tables = torch.arange(BLOCKS * len(rows), dtype=torch.int32).view(BLOCKS, len(rows)).T.contiguous()
        slots = []
        for table, row in zip(tables, rows, strict=True):
            at = torch.arange(row.new) + row.cached
            slots.append(table[at // BLOCK].long() * BLOCK + at % BLOCK)
            starts.append(starts[-1] + row.new)
        metadata = self.metadata(rows, torch.tensor(starts, dtype=torch.int32), tables, torch.cat(slots))
        self.impl.do_kv_cache_update(self.module, key, value, self.stored, torch.cat(slots))
        self.calls, output = 0, torch.empty_like(query)
        self.impl.forward(self.module, query, key, value, self.stored, metadata, output)
        found = {"calls": self.calls, "output": b64encode(output.float().numpy().tobytes()).decode()}
        per_head = [part.view(total, -1, HEAD_SIZE) for part in (query, key, value, output)]
        pieces = [[part[a:b] for part in per_head] for a, b in pairwise(starts)]
        return found | {"wrong by": list(map(self.distance, rows, tables, pieces))}

    def metadata(self, rows: tuple[Row, ...], starts: Any, tables: Any, slots: Any) -> Any:
        """Build TurboQuant's metadata by its own builder."""
        import torch

        lengths = torch.tensor([row.cached + row.new for row in rows], dtype=torch.int32)
        believed = lengths + torch.tensor([row.rejected for row in rows], dtype=torch.int32)
        return self.builder.build(0, batch_of(starts, lengths, believed, tables, slots))

    def distance(self, row: Row, table: Any, piece: Any) -> float:
        """Return the largest difference from attention to all tokens of a request, as they are in the cache.

        Tokens of a new prompt, and those of a long piece, are not read from the cache by vLLM either.
        """
        import torch

        query, key, value, output = piece
        length = row.cached + row.new
        if row.cached:
            own, cached = (key, value), self.dequantized(table, length)
            if row.new > THRESHOLD:
                key, value = (torch.cat((a[: row.cached], b)) for a, b in zip(cached, own, strict=True))
            else:
                key, value = cached
        begin = torch.tensor([0, row.new]), torch.tensor([0, length])
        wanted = flash_attention(query, key, value, *begin, self.impl.scale, causal=True)
        return float((wanted.float() - output.float()).abs().max())

    def dequantized(self, table: Any, length: int) -> tuple[Any, Any]:
        """Return the keys and values of a request's first tokens, by the way in which vLLM goes on with a prompt."""
        import torch

        query, key = (torch.zeros(1, heads, HEAD_SIZE).half() for heads in HEADS)
        own = self.module._tq_Pi, self.module._tq_centroids
        self.impl._continuation_prefill(self.module, query, key, key, self.cache, table[None], length, length + 1, *own)
        keys, values = self.read
        return keys[:length], values[:length]


def resolved(folder: str, **options: Any) -> str:
    """Return the CUDA graph mode that the V2 model runner settles on for TurboQuant and drafts."""
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadataBuilder

    made = config(folder, "dense", kv_cache_dtype=FOUR_BIT, speculative_config=NGRAM, **options)
    resolve = made.compilation_config.resolve_cudagraph_mode_and_sizes
    told = {"use_v2_model_runner": True} if "use_v2_model_runner" in signature(resolve).parameters else {}
    support = TurboQuantMetadataBuilder.get_cudagraph_support(made, None)
    return str(resolve(support, "TURBOQUANT", 1 + K, **told).name)


def misjudged() -> list[Any]:
    """Return batches of random requests that the overlay takes for new prompts only, and are not, or the reverse."""
    import torch
    from vllm._vpatch.turboquant_mtp import only_fresh_prompts

    rng, wrong = random.Random(46460), list[Any]()  # noqa: S311 - it is to be repeatable
    for _ in range(500):
        decodes = [Row(rng.randint(1, 9), 1) for _ in range(rng.randint(0, 2))]
        rows = [Row(rng.choice((0, 0, 0, 5)), rng.randint(2, 9), rng.randint(0, 1)) for _ in range(rng.randint(1, 3))]
        rows = [row if row.cached else row._replace(rejected=0) for row in rows]
        padding = [Row(0, 0)] * rng.randint(0, 2)
        batch = [*decodes, *rows, *padding]
        common = SimpleNamespace(
            query_start_loc_cpu=torch.tensor([0, *(row.new for row in batch)]).cumsum(0),
            seq_lens_cpu_upper_bound=torch.tensor([sum(row) for row in batch]),
            max_query_len=max(row.new for row in batch),
        )
        if only_fresh_prompts(common, len(decodes)) is any(row.cached for row in rows):
            wrong.append(batch)
    return wrong


def main(home: str, folder: str, *names: str) -> dict[str, Any]:
    """Run these steps, or without any all that needs no kernels; `folder` holds the models."""
    from vllm.config import CompilationConfig

    if not names:
        CompilationConfig.init_backend = lambda *_, **__: "eager"  # its passes look up compiled operators
        one_rank(home)
        dense = config(folder, "dense")
        return {
            "misjudged": misjudged() if importlib.util.find_spec("vllm._vpatch") else None,
            "resolved": {mode: resolved(folder, **graphs(mode)) for mode in MODES},
            "starts": {name: attempt(started, folder, *case) for name, case in STARTS.items()},
            "on V2": {name: attempt(started_on_v2, folder, *STARTS[name]) for name in ON_V2},
            "attended": {
                "rejected": attended(dense, true=10, believed=12),
                "captured": attended(dense, true=1 + K, believed=1 + K, capture=True),
            },
        }
    prepare()
    made = configured(folder)
    return {name: Layer(made).step(STEPS[name]) for name in names}


def prepare() -> None:
    """Let attention run in the interpreter, beside PyTorch's in place of flash attention, with few splits."""
    import torch
    from vllm.v1.attention.backends import turboquant_attn

    torch.accelerator.empty_cache = lambda: None  # no accelerator here
    torch.cuda.get_device_capability = lambda _device=None: (9, 0)
    decode = partial(turboquant_attn.triton_turboquant_decode_attention, max_num_kv_splits=SPLITS)  # not 32: it is slow
    vars(turboquant_attn).update(
        _HAS_FLASH_ATTN=True, _CONTINUATION_DECODE_THRESHOLD=THRESHOLD, triton_turboquant_decode_attention=decode
    )
    workspace("cpu")


def configured(folder: str, **options: Any) -> Any:
    """Make the config of a model with such layers."""
    limits: dict[str, Any] = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": len(STEPS), "block_size": BLOCK}
    sizes = {"num_attention_heads": HEADS[0], "num_key_value_heads": HEADS[1], "head_dim": HEAD_SIZE}
    splits = {"tq_max_kv_splits_for_cuda_graph": SPLITS}
    return config(folder, "dense", hf_overrides=sizes, attention_config=splits, **limits, **options)
