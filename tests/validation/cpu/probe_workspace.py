"""Print TurboQuant attention's use of the workspace on one tree, and the attention that it computes, as JSON.

Run by `environment.probe`. One layer, with vLLM's own metadata builder, attention and workspace; its kernels run in
Triton's interpreter.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_ident
from typing import Any

from tests.validation.cpu.probing import engine_config

THRESHOLD, SPLITS = 2, 2  # vLLM's are 128 and 32; the interpreter is slow for each token
CHUNK = THRESHOLD + 1
HEAD_SIZE, BLOCK, MAX_MODEL_LEN, MAX_NUM_SEQS = 64, 16, 64, 3

Options = dict[str, Any]


def serve(model: str, block: int | None = 128, **options: Any) -> tuple[str, int | None, Options]:
    """Return a model, the block size of its kernels (None: that of its cache), and its engine arguments."""
    return model, block, {"max_model_len": 262_144, "max_num_seqs": 64} | options


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
    "no chunks": serve("35B", max_model_len=8192, enable_chunked_prefill=False),
}


@dataclass(frozen=True)
class Run:
    """Requests that continue step by step, each by some tokens, on one layer; `cached` holds each one's earlier tokens.

    `heads` counts the heads of queries, and those of keys and values. The workspace is locked and has a part for every
    micro-batch; the last of `micro_batches` runs.
    """

    steps: tuple[dict[str, int], ...]
    cached: dict[str, int] = field(default_factory=dict)
    dtype: str = "turboquant_4bit_nc"
    heads: tuple[int, int] = (2, 1)
    options: Options = field(default_factory=dict)
    micro_batches: int = 1


def continuation(cached: int, **options: Any) -> Run:
    """Return a run of one chunk of a request with `cached` tokens in the cache."""
    return Run(({"a": CHUNK},), {"a": cached}, **options)


NO_CHUNKS: Options = {"enable_chunked_prefill": False, "max_num_batched_tokens": MAX_MODEL_LEN}
RUNS = {
    **{f"{tokens} cached": continuation(tokens) for tokens in (1, BLOCK - 1, BLOCK, BLOCK + 1, MAX_MODEL_LEN - CHUNK)},
    **{name: continuation(2 * BLOCK + 5, dtype=f"turboquant_{name}") for name in ("k3v4_nc", "3bit_nc")},
    "every head its own": continuation(BLOCK + 1, heads=(2, 2)),
    "two heads share one": continuation(BLOCK + 1, heads=(4, 2)),
    "decode": Run(({"a": 1, "b": 1, "c": 1},), {"a": 5, "b": 40}),
    # A first chunk, decodes, a short continuation and long ones, at different lengths.
    "batch": Run(({"a": 4, "b": CHUNK}, {"a": 1, "b": CHUNK, "c": 5}, {"a": 1, "b": 2, "c": CHUNK + 2}), {"b": 45}),
    "shorter": Run(({"a": CHUNK}, {"b": CHUNK}), {"a": 20, "b": 5}),
    "no chunks": continuation(BLOCK + 1, options=NO_CHUNKS),
    "second micro-batch": Run(({"b": 1}, {"a": CHUNK}), {"a": 5, "b": 40}, micro_batches=2),
}


def config(folder: str, model: str, **options: Any) -> Any:
    """Make a config as `vllm serve` does. The values read here do not depend on the KV cache dtype."""
    return engine_config(str(Path(folder, model)), distributed_executor_backend="mp", **options)


def attention(heads: tuple[int, int], size: int, scale: float, dtype: str) -> tuple[Any, Any]:
    """Make TurboQuant's attention of so many heads (queries, keys and values), and the layer that holds its buffers."""
    import torch
    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionImpl

    layer = torch.nn.Module()
    layer.num_heads = heads[0]
    if hasattr(Attention, "_init_turboquant_buffers"):
        Attention._init_turboquant_buffers(layer, dtype, size, "")
    made = TurboQuantAttentionImpl(heads[0], size, scale, heads[1], kv_cache_dtype=dtype)
    made._ensure_on_device(layer, torch.device("cpu"))
    return made, layer


def batch_of(starts: Any, lengths: Any, believed: Any, tables: Any, slots: Any) -> Any:
    """Return what the model runner tells a metadata builder of a batch; the CPU may believe in longer requests."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=believed,
        num_reqs=len(lengths),
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(starts.diff().max()),
        max_seq_len=int(believed.max()),
        block_table_tensor=tables,
        slot_mapping=slots,
    )


def random_cache(*shape: int) -> Any:
    """Return a KV cache of bytes of small numbers: storing real keys and values would take the interpreter long."""
    import torch

    return torch.randint(0x30, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def workspace(device: str, micro_batches: int = 1) -> Any:
    """Install a new workspace in vLLM."""
    import torch
    from vllm.v1.worker import workspace

    workspace.reset_workspace_manager()
    workspace.init_workspace_manager(torch.device(device), micro_batches)
    return workspace.current_workspace_manager()


def size(manager: Any) -> int:
    """Return the bytes of the workspace."""
    return sum(map(manager._workspace_size_bytes, manager._current_workspaces))


def builder(vllm_config: Any, num_kv_heads: int, head_size: int, blocks: tuple[int, int | None], device: str) -> Any:
    """Make the metadata builder as the model runner does; `blocks` are the cache's and the kernels' block size."""
    import torch
    from vllm.v1 import kv_cache_interface
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend
    from vllm.v1.worker.utils import AttentionGroup

    heads = {"num_kv_heads": num_kv_heads, "head_size": head_size, "head_size_v": head_size}
    if own := getattr(kv_cache_interface, "TQFullAttentionSpec", None):  # up to 0.27
        spec = own(block_size=blocks[0], dtype=torch.uint8, tq_slot_size=102, **heads)
    else:
        spec = kv_cache_interface.FullAttentionSpec(block_size=blocks[0], dtype=torch.uint8, **heads)
    group = AttentionGroup(TurboQuantAttentionBackend, ["layer"], spec, 0)
    group.create_metadata_builders(vllm_config, torch.device(device), kernel_block_size=blocks[1])
    return group.get_metadata_builder()


def reserved(folder: str, model: str, block: int | None, options: Options) -> int:
    """Return the bytes that a model's metadata builder reserves, without allocating them."""
    made = config(folder, model, **options)
    num_kv_heads = made.model_config.get_num_kv_heads(made.parallel_config)
    manager = workspace("meta")
    builder(made, num_kv_heads, made.model_config.get_head_size(), (4096, block), "meta")
    return size(manager)


class Layer:
    """One attention layer with its KV cache, and how many tokens of each request are in it."""

    def __init__(self, run: Run, builder: Any) -> None:
        from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend

        self.run, self.builder, self.tokens = run, builder, dict(run.cached)
        self.impl, self.module = attention(run.heads, HEAD_SIZE, HEAD_SIZE**-0.5, run.dtype)
        self.blocks = MAX_MODEL_LEN // BLOCK
        sizes = (self.blocks * MAX_NUM_SEQS, BLOCK, run.heads[1], HEAD_SIZE)
        self.kv_cache = random_cache(*TurboQuantAttentionBackend.get_kv_cache_shape(*sizes, run.dtype))

    def step(self, more: dict[str, int]) -> Any:
        """Continue requests; return attention's output, (tokens, heads * head size)."""
        import torch
        from vllm.v1.attention.backend import CommonAttentionMetadata

        total, (heads, num_kv_heads) = sum(more.values()), self.run.heads
        query, key, value = (torch.randn(total, n * HEAD_SIZE).half() for n in (heads, num_kv_heads, num_kv_heads))
        tables = [torch.arange(self.blocks, dtype=torch.int32) * MAX_NUM_SEQS + "abc".index(name) for name in more]
        slots = []
        for table, (name, count) in zip(tables, more.items(), strict=True):
            at = torch.arange(count) + self.tokens.get(name, 0)
            slots.append(table[at // BLOCK].long() * BLOCK + at % BLOCK)
        lengths = torch.tensor([self.tokens.get(name, 0) + count for name, count in more.items()], dtype=torch.int32)
        starts = torch.tensor([0, *more.values()], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths,
            num_reqs=len(more),
            num_actual_tokens=total,
            max_query_len=max(more.values()),
            max_seq_len=int(lengths.max()),
            block_table_tensor=torch.stack(tables),
            slot_mapping=torch.cat(slots),
        )
        self.impl.do_kv_cache_update(self.module, key, value, self.kv_cache, torch.cat(slots))
        output = torch.empty_like(query)
        made = self.builder.build(0, common)
        self.impl.forward(self.module, query, key, value, self.kv_cache, made, output)
        self.tokens |= zip(more, lengths.tolist(), strict=True)
        return output

    def buffers(self) -> dict[str, int]:
        """Return the bytes of all tensors that the layer holds."""
        import torch

        held = vars(self.module) | dict(self.module.named_buffers())
        return {name: tensor.nbytes for name, tensor in held.items() if isinstance(tensor, torch.Tensor)}


def ran(folder: str, run: Run) -> dict[str, Any]:
    """Run the steps. Record each step that fails, and repeat it with the workspace unlocked."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.v1.worker import ubatching

    size_of_model = {"num_attention_heads": run.heads[0], "num_key_value_heads": run.heads[1], "head_dim": HEAD_SIZE}
    limits: Options = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": MAX_NUM_SEQS, "block_size": BLOCK}
    limits["attention_config"] = {"tq_max_kv_splits_for_cuda_graph": SPLITS}
    made = config(folder, "dense", hf_overrides=size_of_model, **limits | run.options)
    manager = workspace("cpu", run.micro_batches)
    with set_current_vllm_config(made):
        layer = Layer(run, builder(made, run.heads[1], HEAD_SIZE, (BLOCK, None), "cpu"))
    ubatching._THREAD_ID_TO_CONTEXT = {get_ident(): run.micro_batches - 1}
    found: dict[str, Any] = {"reserved": size(manager), "errors": [], "outputs": [], "buffers": [layer.buffers()]}
    for number, more in enumerate(run.steps):
        for held in filter(lambda held: held is not None, manager._current_workspaces):
            held.fill_(0xFF)  # NaN; other layers may leave any values
        manager.lock()
        torch.manual_seed(number)
        try:
            output = layer.step(more)
        except AssertionError as error:
            if not str(error).startswith("Workspace is locked"):
                raise
            found["errors"].append(str(error))
            manager.unlock()
            torch.manual_seed(number)
            output = layer.step(more)
        found["outputs"].append(b64encode(output.float().numpy().tobytes()).decode())
        found["buffers"].append(layer.buffers())
    # The companion module logs this once a process; here once a run.
    companion = sys.modules.get("vllm._vpatch.turboquant_workspace")
    if companion:
        found["told"] = companion._say_that_it_is_too_small.cache_info().currsize
        companion._say_that_it_is_too_small.cache_clear()
    return found | {"left": size(manager)}


def main(home: str, folder: str) -> dict[str, Any]:
    """Compute the reserved bytes, and run `RUNS`; `folder` holds the models."""
    import torch

    torch.accelerator.empty_cache = lambda: None  # no accelerator here
    torch.cuda.get_device_capability = lambda _device=None: (9, 0)
    from vllm.v1.attention.backends import turboquant_attn

    found = {"reserved": {name: reserved(folder, *case) for name, case in RESERVED.items()}}
    turboquant_attn._CONTINUATION_DECODE_THRESHOLD = THRESHOLD
    turboquant_attn._HAS_FLASH_ATTN = False  # flash attention is compiled; vLLM falls back to PyTorch's
    return found | {"runs": {name: ran(folder, run) for name, run in RUNS.items()}}
