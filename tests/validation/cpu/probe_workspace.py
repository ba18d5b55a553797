"""TurboQuant attention's use of the workspace on one tree, and the attention that it computes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from threading import get_ident
from types import SimpleNamespace
from typing import Any

from tests.validation.cpu.attending import (
    BLOCK,
    Layer,
    Options,
    Row,
    builder,
    config,
    prepare,
    size_of,
    small_config,
    spoil,
    text_of,
    workspace,
)

THRESHOLD = 2  # vLLM's is 128; the interpreter is slow for each token
CHUNK = THRESHOLD + 1
HEAD_SIZE, MAX_MODEL_LEN, MAX_NUM_SEQS = 64, 64, 3


def serve(model: str, block: int | None = 128, **options: Any) -> tuple[str, int | None, Options]:
    """Return a model, the block size of its kernels (None: that of its cache), and its engine arguments."""
    return model, block, {"max_model_len": 262_144, "max_num_seqs": 64} | options


UNCHUNKED: Options = {"enable_chunked_prefill": False, "enable_prefix_caching": True}
ALONE: Options = {"enable_prefix_caching": False}
RESERVED = {
    **{model: serve(model) for model in ("35B", "27B")},
    **{f"{model} TP{ranks}": serve(model, tensor_parallel_size=ranks) for model in ("35B", "27B") for ranks in (2, 4)},
    "cache's block": serve("35B", block=None, max_model_len=262_000),
    **{
        f"{tokens} tokens": serve("dense", 16, max_model_len=tokens, max_num_seqs=1) for tokens in (1, 1001, 1009, 1010)
    },
    "decode is more": serve("35B", max_model_len=8192, max_num_seqs=1024),
    "chunks of 128": serve("35B", max_num_batched_tokens=128),
    "chunks of 129": serve("35B", max_num_batched_tokens=129),
    "no chunks": serve("dense", 16, max_model_len=1001, max_num_seqs=1, **UNCHUNKED),
    "no chunks, no prefixes": serve("dense", 16, max_model_len=1001, max_num_seqs=1, **UNCHUNKED | ALONE),
    "a connector": serve("dense", 16, max_model_len=1001, max_num_seqs=1, **UNCHUNKED | ALONE, connector=True),
}


@dataclass(frozen=True)
class Run:
    """Requests that continue step by step, each by some tokens, on one layer; `cached` holds each one's earlier tokens.

    `heads` counts the heads of queries, and those of keys and values; `of_model` those of the model, if the layer is of
    its draft model. The workspace is locked and has a part for every micro-batch; the last of `micro_batches`
    runs.
    """

    steps: tuple[dict[str, int], ...]
    cached: dict[str, int] = field(default_factory=dict)
    preset: str = "4bit_nc"
    heads: tuple[int, int] = (2, 1)
    of_model: tuple[int, int] | None = None
    options: Options = field(default_factory=dict)
    micro_batches: int = 1


def continuation(cached: int, **options: Any) -> Run:
    """Return a run of one chunk of a request with `cached` tokens in the cache."""
    return Run(({"a": CHUNK},), {"a": cached}, **options)


NO_CHUNKS: Options = UNCHUNKED | {"max_num_batched_tokens": MAX_MODEL_LEN}
RUNS = {
    **{f"{tokens} cached": continuation(tokens) for tokens in (1, BLOCK - 1, BLOCK, BLOCK + 1, MAX_MODEL_LEN - CHUNK)},
    **{name: continuation(2 * BLOCK + 5, preset=name) for name in ("k3v4_nc", "3bit_nc")},
    "every head its own": continuation(BLOCK + 1, heads=(2, 2)),
    "two heads share one": continuation(BLOCK + 1, heads=(4, 2)),
    "decode": Run(({"a": 1, "b": 1, "c": 1},), {"a": 5, "b": 40}),
    # A first chunk, decodes, a short continuation and long ones, at different lengths.
    "batch": Run(({"a": 4, "b": CHUNK}, {"a": 1, "b": CHUNK, "c": 5}, {"a": 1, "b": 2, "c": CHUNK + 2}), {"b": 45}),
    "shorter": Run(({"a": CHUNK}, {"b": CHUNK}), {"a": 20, "b": 5}),
    # A budget below the prompt wants chunked prefill; without it, a prompt goes on from a cached prefix.
    "budget below the prompt": continuation(BLOCK + 1, options={"max_num_batched_tokens": 2 * CHUNK}),
    "no chunks": continuation(BLOCK + 1, options=NO_CHUNKS),
    "no chunks, the longest": continuation(MAX_MODEL_LEN - CHUNK, options=NO_CHUNKS),
    "no chunks, a connector": continuation(BLOCK + 1, options=NO_CHUNKS | ALONE | {"connector": True}),
    "no chunks, streamed": continuation(BLOCK + 1, options=NO_CHUNKS | ALONE),
    "drafts verified": Run(({"a": THRESHOLD, "b": THRESHOLD},), {"a": 5, "b": 40}, options=NO_CHUNKS),
    "a draft model": Run(
        ({"a": 1, "b": 1, "c": 1},), {"a": 5, "b": 40}, heads=(4, 2), of_model=(2, 1), options=NO_CHUNKS | ALONE
    ),
    "second micro-batch": Run(({"b": 1}, {"a": CHUNK}), {"a": 5, "b": 40}, micro_batches=2),
}


def connected(make: Any, *arguments: Any, connector: bool = False, **options: Any) -> Any:
    """Make a config; with a `connector`, one that says that prompts may come from elsewhere."""
    made = make(*arguments, **options)
    if connector:
        made.kv_transfer_config = SimpleNamespace(kv_connector="any")
    return made


def reserved(folder: str, model: str, block: int | None, options: Options) -> int:
    """Return the bytes that a model's metadata builder reserves, without allocating them."""
    made = connected(config, folder, model, **options)
    num_kv_heads = made.model_config.get_num_kv_heads(made.parallel_config)
    manager = workspace("meta")
    builder(made, num_kv_heads, made.model_config.get_head_size(), (4096, block), "meta")
    return size_of(manager)


def buffers(module: Any) -> dict[str, int]:
    """Return the bytes of all tensors that a layer holds, but for its cache."""
    import torch

    held = {name: one for name, one in vars(module).items() if name != "kv_cache"} | dict(module.named_buffers())
    return {name: tensor.nbytes for name, tensor in held.items() if isinstance(tensor, torch.Tensor)}


def ran(folder: str, run: Run) -> dict[str, Any]:
    """Run the steps. Record each step that fails, and repeat it with the workspace unlocked."""
    import torch
    from vllm.v1.worker import ubatching

    limits: Options = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": MAX_NUM_SEQS}
    made = connected(small_config, folder, run.of_model or run.heads, HEAD_SIZE, **limits | run.options)
    manager = workspace("cpu", run.micro_batches)
    pages = MAX_MODEL_LEN // BLOCK
    layer = Layer(made, run.heads, HEAD_SIZE, pages=pages, requests=MAX_NUM_SEQS, preset=run.preset)
    tokens = dict(run.cached)
    ubatching._THREAD_ID_TO_CONTEXT = {get_ident(): run.micro_batches - 1}
    found: dict[str, Any] = {"reserved": size_of(manager), "errors": [], "outputs": []}
    found["buffers"] = [buffers(layer.module)]
    for number, more in enumerate(run.steps):
        rows = tuple(Row(tokens.get(name, 0), new) for name, new in more.items())
        tables = layer.tables_of(MAX_NUM_SEQS)[["abc".index(name) for name in more]]
        spoil(manager)
        manager.lock()
        torch.manual_seed(number)
        try:
            output, _ = layer.attend(rows, tables=tables)
        except AssertionError as error:
            if not str(error).startswith("Workspace is locked"):
                raise
            found["errors"].append(str(error))
            manager.unlock()
            torch.manual_seed(number)
            output, _ = layer.attend(rows, tables=tables)
        tokens |= {name: tokens.get(name, 0) + new for name, new in more.items()}
        found["outputs"].append(text_of(output))
        found["buffers"].append(buffers(layer.module))
    # The companion module logs this once a process; here once a run.
    companion = sys.modules.get("vllm._vpatch.turboquant_workspace")
    if companion:
        found["told"] = companion._say_that_it_is_too_small.cache_info().currsize
        companion._say_that_it_is_too_small.cache_clear()
    return found | {"left": size_of(manager)}


def main(_home: str, folder: str) -> dict[str, Any]:
    """Compute the reserved bytes, and run `RUNS`; `folder` holds the models."""
    from vllm.v1.attention.backends import turboquant_attn

    prepare(flash=False)
    found = {"reserved": {name: reserved(folder, *case) for name, case in RESERVED.items()}}
    turboquant_attn._CONTINUATION_DECODE_THRESHOLD = THRESHOLD
    return found | {"runs": {name: ran(folder, run) for name, run in RUNS.items()}}
