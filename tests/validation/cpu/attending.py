"""Attention layers of TurboQuant with vLLM's own metadata builder and workspace, in Triton's interpreter."""

from __future__ import annotations

from base64 import b64encode
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from packaging.version import Version

from tests.validation.cpu import decode_cases
from tests.validation.cpu.probing import engine_config

BLOCK = 16
"""Tokens of a page."""

Options = dict[str, Any]


class Row(NamedTuple):
    """A request: its tokens in the cache, those of this step, and drafts that were rejected unknown to the CPU."""

    cached: int
    new: int
    rejected: int = 0


def prepare(*, flash: bool) -> None:
    """Let vLLM's attention run without a GPU. Without flash attention, which is compiled, it takes PyTorch's."""
    import torch
    from vllm.config import CompilationConfig

    torch.accelerator.empty_cache = lambda: None  # no accelerator here
    torch.cuda.get_device_capability = lambda _device=None: (9, 0)
    CompilationConfig.init_backend = lambda *_, **__: "eager"  # its passes look up compiled operators
    from vllm.v1.attention.backends import turboquant_attn

    turboquant_attn._HAS_FLASH_ATTN = flash


def config(folder: str, model: str, **options: Any) -> Any:
    """Make a config as `vllm serve` does. The values read here do not depend on the KV cache dtype."""
    return engine_config(str(Path(folder, model)), distributed_executor_backend="mp", **options)


def small_config(folder: str, heads: tuple[int, int], size: int, *, splits: int | None = 2, **options: Any) -> Any:
    """Make the config of a model of so many heads (queries, keys and values), with few splits: each takes time."""
    sizes = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": size}
    limits = {"tq_max_kv_splits_for_cuda_graph": splits} if splits else {}
    return config(folder, "dense", hf_overrides=sizes, attention_config=limits, block_size=BLOCK, **options)


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


def builder(
    made: Any, num_kv_heads: int, head_size: int, blocks: tuple[int, int | None], device: str, backend: Any = None
) -> Any:
    """Make the metadata builder as the model runner does; `blocks` are the cache's and the kernels' block size."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.v1 import kv_cache_interface
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend
    from vllm.v1.worker.utils import AttentionGroup

    heads = {"num_kv_heads": num_kv_heads, "head_size": head_size, "head_size_v": head_size}
    if own := getattr(kv_cache_interface, "TQFullAttentionSpec", None):  # up to 0.27
        spec = own(block_size=blocks[0], dtype=torch.uint8, tq_slot_size=102, **heads)
    else:
        spec = kv_cache_interface.FullAttentionSpec(block_size=blocks[0], dtype=torch.uint8, **heads)
    group = AttentionGroup(backend or TurboQuantAttentionBackend, ["layer"], spec, 0)
    with set_current_vllm_config(made):
        group.create_metadata_builders(made, torch.device(device), kernel_block_size=blocks[1])
    return group.get_metadata_builder()


def workspace(device: str, micro_batches: int = 1) -> Any:
    """Install a new workspace in vLLM."""
    import torch
    from vllm.v1.worker import workspace

    workspace.reset_workspace_manager()
    workspace.init_workspace_manager(torch.device(device), micro_batches)
    return workspace.current_workspace_manager()


def size_of(manager: Any) -> int:
    """Return the bytes of the workspace."""
    return sum(map(manager._workspace_size_bytes, manager._current_workspaces))


def spoil(manager: Any) -> None:
    """Fill the workspace with NaN; other layers may leave any values."""
    for held in filter(lambda held: held is not None, manager._current_workspaces):
        held.fill_(0xFF)


def random_cache(*shape: int) -> Any:
    """Return a KV cache of bytes of small numbers: storing real keys and values would take the interpreter long."""
    import torch

    return torch.randint(0x30, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def starts_of(rows: tuple[Row, ...]) -> Any:
    """Return where each request's tokens of this step begin, and where the last one's end."""
    import torch

    return torch.tensor([0, *(row.new for row in rows)], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def batch_of(rows: tuple[Row, ...], tables: Any, slots: Any, *, starts: Any = None, longest: int | None = None) -> Any:
    """Return what the model runner tells a metadata builder of a step; its GPU is where the tables are.

    `longest` is the length up to which a CUDA graph is captured.
    """
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata

    starts = starts_of(rows) if starts is None else starts
    lengths = torch.tensor([row.cached + row.new for row in rows], dtype=torch.int32)
    believed = lengths + torch.tensor([row.rejected for row in rows], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts.to(tables.device),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(tables.device),
        seq_lens_cpu_upper_bound=believed,
        num_reqs=len(rows),
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(starts.diff().max()),
        max_seq_len=longest or int(believed.max()),
        block_table_tensor=tables,
        slot_mapping=slots,
    )


def text_of(tensor: Any) -> str:
    """Return a tensor's numbers in float32 as text."""
    return b64encode(tensor.float().numpy().tobytes()).decode()


class Layer:
    """One attention layer, with a cache of `pages` for each of so many requests, and a metadata builder.

    `own` is the number of new tokens from which on vLLM attends to their keys as they are, not as they are stored.
    """

    own = 1 << 30

    def __init__(
        self,
        made: Any,
        heads: tuple[int, int],
        size: int,
        *,
        pages: int,
        requests: int,
        preset: str = "4bit_nc",
        scale: float = 0.125,
    ) -> None:
        from vllm.config import set_current_vllm_config

        self.heads, self.size, self.pages = heads, size, pages
        self.case = decode_cases.Case(preset, size)
        with set_current_vllm_config(made):
            self.impl, self.module = attention(heads, size, scale, f"turboquant_{preset}")
            made.compilation_config.static_forward_context["layer"] = SimpleNamespace(impl=self.impl)
        self.builder = builder(made, heads[1], size, (BLOCK, None), "cpu")
        total, slot = pages * requests, self.impl.tq_config.slot_size_aligned
        if Version(version("vllm")) >= Version("0.26"):  # a page stores all of one head together
            self.stored = random_cache(total, heads[1], BLOCK, slot)
            self.cache = self.stored.transpose(1, 2)
        else:
            self.cache = self.stored = random_cache(total, BLOCK, heads[1], slot)
        self.module.impl, self.module.kv_cache = self.impl, self.stored

    def tables_of(self, requests: int) -> Any:
        """Return block tables in which the pages of requests alternate."""
        import torch

        return torch.arange(self.pages * requests, dtype=torch.int32).view(self.pages, requests).T.contiguous()

    def attend(
        self, rows: tuple[Row, ...], dtype: str = "float16", tables: Any = None, factors: tuple[float, float] = (1, 1)
    ) -> tuple[Any, list[Any]]:
        """Store and attend as the model runner does, with queries and keys times these factors.

        Returns the output, and for each request its table, queries, keys, values and output.
        """
        import torch

        tables, starts = self.tables_of(len(rows)) if tables is None else tables, starts_of(rows)
        total = int(starts[-1])
        query, key, value = (torch.randn(total, n * self.size) for n in (self.heads[0], self.heads[1], self.heads[1]))
        kind = getattr(torch, dtype)
        query, key, value = (query * factors[0]).to(kind), (key * factors[1]).to(kind), value.to(kind)
        places = [torch.arange(row.new) + row.cached for row in rows]
        slots = torch.cat(
            [table[at // BLOCK].long() * BLOCK + at % BLOCK for table, at in zip(tables, places, strict=True)]
        )
        metadata, output = self.builder.build(0, batch_of(rows, tables, slots)), torch.empty_like(query)
        self.impl.do_kv_cache_update(self.module, key, value, self.stored, slots)
        self.impl.forward(self.module, query, key, value, self.stored, metadata, output)
        per_head = [part.view(total, -1, self.size) for part in (query, key, value, output)]
        pieces = [[part[a:b] for part in per_head] for a, b in pairwise(starts)]
        return output, [[table, *piece] for table, piece in zip(tables, pieces, strict=True)]

    def distance(self, row: Row, piece: list[Any]) -> float:
        """Return the relative distance of a request's output from attention in float64 to what the cache holds.

        Tokens of a new prompt, and those of a long piece of one, are not read from the cache by vLLM either.
        """
        import torch

        table, *tensors = piece
        query, key, value, output = (tensor.double() for tensor in tensors)
        stored = self.cache[table.long()].flatten(0, 1)[: row.cached + row.new]
        keys, values = decode_cases.numbers_of(self.case, stored)
        if (not row.cached and row.new > 1) or row.new > self.own:
            keys, values = (torch.cat((a[: row.cached], b)) for a, b in ((keys, key), (values, value)))
        exact = torch.empty_like(query)
        for token in range(row.new):
            seen = row.cached + token + 1
            heads = query[token].unflatten(0, (self.heads[1], -1))
            weights = torch.einsum("hgd,nhd->hgn", heads, keys[:seen]).mul(self.impl.scale).softmax(-1)
            exact[token] = torch.einsum("hgn,nhd->hgd", weights, values[:seen]).flatten(0, 1)
        return float((output - exact).norm() / exact.norm())
