"""Print what TurboQuant's attention computes on one tree, and which kernels it launches, as JSON.

Run by `environment.probe`. One layer, with vLLM's own metadata builder, attention and workspace; its kernels, and those
of `turboquant-decode` if the tree has them, run in Triton's interpreter.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

from packaging.version import Version

from tests.validation.cpu import decode_cases
from tests.validation.cpu.platform import pretend_capability
from tests.validation.cpu.probe_decode import mend_bfloat16
from tests.validation.cpu.probe_workspace import attention, batch_of, builder, config, random_cache, size, workspace
from tests.validation.cpu.probing import logged

SPLITS = 2  # vLLM's are 32; the interpreter is slow for each
BLOCK, BLOCKS, MAX_NUM_SEQS = 16, 12, 3
MAX_MODEL_LEN = BLOCK * BLOCKS  # three splits

Options = dict[str, Any]
Row = tuple[int, int]
"""A request's tokens in the cache, and those of this step."""

DECODES: tuple[Row, ...] = ((0, 1), (37, 1), (140, 1))
CONTINUES: Row = (12, 11)  # two windows: of 8 tokens, and of 3


@dataclass(frozen=True)
class Step:
    """Requests on one layer. `heads` counts the heads of queries, and those of keys and values."""

    rows: tuple[Row, ...] = DECODES
    preset: str = "4bit_nc"
    heads: tuple[int, int] = (2, 1)
    dtype: str = "float16"
    foreign: bool = False  # whether the layer has a rotation of its own
    times: int = 1


STEPS = {
    "decodes": Step(dtype="bfloat16"),
    "continuation": Step((CONTINUES,), preset="3bit_nc"),
    "mixed": Step(((9, 1), (7, 3), (0, 4))),
    "two heads share one": Step(((21, 1), (70, 1), CONTINUES), heads=(4, 2)),
    "fp8": Step(((20, 1), (7, 3)), preset="k8v4"),
    "group 17": Step(((3, 1),), heads=(17, 1), times=2),
    "foreign rotation": Step(((5, 1), (3, 2)), foreign=True, times=2),
}
REFUSED = {
    "group 17": "17 query heads on 1 KV heads",
    "foreign rotation": "keys that are rotated by another matrix than vLLM's",
}
"""Steps that the kernels do not cover, and why."""


class Kernel:
    """A Triton kernel that notes each launch, and then does what it did before, or what `instead` does."""

    def __init__(self, name: str, kernel: Any, launches: list[Any], instead: Callable[[], None] | None = None) -> None:
        self.name, self.kernel, self.launches, self.instead = name, kernel, launches, instead

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            self.launches.append((self.name, grid, self.compiled_for(arguments, options)))
            if self.instead:
                self.instead()
            else:
                self.kernel[grid](*arguments, **options)

        return launch

    def compiled_for(self, arguments: tuple[Any, ...], options: Options) -> tuple[Any, ...]:
        """Return what Triton compiles a kernel anew for: types, alignments, numbers that are 1, and constants."""
        any_number = self.kernel.kwargs.get("do_not_specialize") or ()
        anywhere = self.kernel.kwargs.get("do_not_specialize_on_alignment") or ()
        found: list[Any] = []
        for name, value in zip(self.kernel.arg_names, arguments, strict=False):
            if hasattr(value, "data_ptr"):
                found.append((str(value.dtype), name in anywhere or value.data_ptr() % 16 == 0))
            elif isinstance(value, int) and name not in any_number:
                found.append((value == 1, value % 16 == 0))
        return (*found, *sorted((name, repr(value)) for name, value in options.items()))


def companion(name: str) -> Any:
    """Return a module of the overlay; None if the tree lacks it."""
    try:
        return import_module(f"vllm._vpatch.turboquant_decode{name}")
    except ModuleNotFoundError:
        return None


@contextmanager
def noted(instead: Callable[[], None] | None = None) -> Iterator[list[Any]]:
    """Collect the launches of decode's kernels: their names, grids and what they are compiled for."""
    from vllm.v1.attention.ops import triton_turboquant_decode as ops

    launches: list[Any] = []
    places = [(ops, ("_tq_decode_stage1", "_fwd_kernel_stage2"))]
    if ours := companion(""):
        places.append((ours, ("split_kernel", "combine_kernel")))
    before = [(vars(module), name, vars(module)[name]) for module, names in places for name in names]
    for module, name, kernel in before:
        of_upstream = module is vars(ops)
        module[name] = Kernel(name, kernel, launches, None if of_upstream else instead)
    try:
        yield launches
    finally:
        for module, name, kernel in before:
            module[name] = kernel


class Layer:
    """One attention layer, with a cache of `BLOCKS` pages for each request, and a metadata builder."""

    def __init__(self, made: Any, step: Step, head_size: int = 64) -> None:
        from vllm.config import set_current_vllm_config

        self.step, self.head_size = step, head_size
        with set_current_vllm_config(made):
            # With this scale attention to the cached tokens is far from even, although keys are short.
            self.impl, self.module = attention(step.heads, head_size, 1.0, f"turboquant_{step.preset}")
            self.builder = builder(made, step.heads[1], head_size, (BLOCK, None), "cpu")
        pages, slot = BLOCKS * MAX_NUM_SEQS, self.impl.tq_config.slot_size_aligned
        if Version(version("vllm")) >= Version("0.26"):  # a page stores all of one head together
            self.stored = random_cache(pages, step.heads[1], BLOCK, slot)
            self.cache = self.stored.transpose(1, 2)
        else:
            self.cache = self.stored = random_cache(pages, BLOCK, step.heads[1], slot)
        self.module.impl, self.module.kv_cache = self.impl, self.stored
        if step.foreign:
            self.module._tq_Pi = self.module._tq_PiT = self.module._tq_Pi.clone()

    def run(self) -> dict[str, Any]:
        """Store and attend as the model runner does; return the output, and how far each row is from float64."""
        import torch

        torch.manual_seed(1)
        rows, dtype = self.step.rows, getattr(torch, self.step.dtype)
        starts = torch.tensor([0, *(new for _, new in rows)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        total, (heads, kv_heads) = int(starts[-1]), self.step.heads
        query, key, value = (torch.randn(total, n * self.head_size) for n in (heads, kv_heads, kv_heads))
        query, key, value = (part.to(dtype) for part in (query * 20, key * 0.02, value))
        tables = torch.arange(BLOCKS * len(rows), dtype=torch.int32).view(BLOCKS, len(rows)).T.contiguous()
        places = [torch.arange(new) + cached for cached, new in rows]
        slots = torch.cat(
            [table[at // BLOCK].long() * BLOCK + at % BLOCK for table, at in zip(tables, places, strict=True)]
        )
        self.impl.do_kv_cache_update(self.module, key, value, self.stored, slots)
        output = torch.empty_like(query)
        metadata = self.metadata(starts, tables, slots)
        self.impl.forward(self.module, query, key, value, self.stored, metadata, output)
        per_head = [part.view(total, heads, self.head_size) for part in (query, output)]
        pieces = [[part[a:b] for part in per_head] for a, b in pairwise(starts)]
        found = {"output": b64encode(output.float().numpy().tobytes()).decode()}
        return found | {"wrong by": max(map(self.distance, rows, tables, pieces))}

    def metadata(self, starts: Any, tables: Any, slots: Any) -> Any:
        """Build TurboQuant's metadata by its own builder."""
        import torch

        lengths = torch.tensor([sum(row) for row in self.step.rows], dtype=torch.int32)
        return self.builder.build(0, batch_of(starts, lengths, lengths, tables, slots))

    def distance(self, row: Row, table: Any, piece: Any) -> float:
        """Return the relative distance of a row from attention in float64; 0 for new prompts, which read no cache."""
        import torch

        query, output = (part.double() for part in piece)
        cached, new = row
        if not cached and new > 1:
            return 0.0
        stored = self.cache[table.long()].flatten(0, 1)[: cached + new]
        keys, values = decode_cases.numbers_of(decode_cases.Case(self.step.preset, self.head_size), stored)
        exact = torch.empty_like(query)
        for token in range(new):
            seen = cached + token + 1
            heads = query[token].unflatten(0, (self.step.heads[1], -1))
            weights = torch.einsum("hgd,nhd->hgn", heads, keys[:seen]).mul(self.impl.scale).softmax(-1)
            exact[token] = torch.einsum("hgn,nhd->hgd", weights, values[:seen]).flatten(0, 1)
        return float((output - exact).norm() / exact.norm())


def config_of(folder: str, heads: tuple[int, int], head_size: int = 64, **options: Any) -> Any:
    """Make the config of a model with such layers."""
    sizes = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": head_size}
    limits: Options = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": MAX_NUM_SEQS, "block_size": BLOCK}
    limits["attention_config"] = {"tq_max_kv_splits_for_cuda_graph": SPLITS}
    return config(folder, "dense", hf_overrides=sizes, **limits | options)


def ran(folder: str, step: Step) -> dict[str, Any]:
    """Run a step on one layer; return what it computes, its launches, what is logged, and decode's splits."""
    from vllm.v1.attention.backends import turboquant_attn

    manager = workspace("cpu")
    layer = Layer(config_of(folder, step.heads), step)
    for held in filter(lambda held: held is not None, manager._current_workspaces):
        held.fill_(0xFF)  # NaN; other layers may leave any values
    splits: list[int] = []
    decode = turboquant_attn.triton_turboquant_decode_attention

    def attend(*arguments: Any, **options: Any) -> Any:
        buffer = options.get("mid_o_buf")
        splits.extend([] if buffer is None else [buffer.shape[2]])
        return decode(*arguments, **{"max_num_kv_splits": SPLITS} | options)  # pieces of prompts would have 32

    turboquant_attn.triton_turboquant_decode_attention = attend
    try:
        with noted() as launches, logged() as lines:
            for _ in range(step.times):
                found = layer.run()
    finally:
        turboquant_attn.triton_turboquant_decode_attention = decode
    said = [line for line in lines if line.startswith("TurboQuant decodes by")]
    seen = [[name, *grid] for name, grid, _ in launches]
    return found | {"launches": seen, "said": said, "splits": splits}


def buffers(folder: str, max_num_seqs: int) -> dict[str, Any]:
    """Return what decode has of the workspace for a model of 16 heads on 8 KV heads of 128, and what it asks for.

    Nothing is allocated, no kernel runs. Prompts take none of the workspace.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.backends import turboquant_attn

    heads, head_size = (16, 8), 128
    longest: Options = {"max_model_len": 8192, "max_num_batched_tokens": 8192, "enable_chunked_prefill": False}
    limits: Options = {"max_num_seqs": max_num_seqs, "attention_config": {}}
    made = config_of(folder, heads, head_size, **longest | limits)
    manager = workspace("meta")
    with set_current_vllm_config(made):
        impl, module = attention(heads, head_size, 1.0, "turboquant_4bit_nc")
        made.compilation_config.static_forward_context["layer"] = SimpleNamespace(impl=impl)
        build = partial(builder, made, heads[1], head_size, (BLOCK, None), "meta")
        build()
        found: dict[str, Any] = {"reserved": size(manager)}
        manager = workspace("meta")
        query = torch.empty(4, heads[0] * head_size, dtype=made.model_config.dtype, device="meta")
        impl.forward(module, query, query, query, torch.tensor([]), None, torch.empty_like(query))
        found["profiled"] = size(manager)
        build()
        found["both"] = size(manager)
    splits: list[int] = []

    def attend(mid_o_buf: Any = None, **_: Any) -> None:
        splits.append(mid_o_buf.shape[2] if mid_o_buf is not None else 0)

    turboquant_attn.triton_turboquant_decode_attention = attend
    if found["both"]:
        manager.lock()
    locked = []
    for batch in range(1, max_num_seqs + 1):
        query = torch.empty(batch, heads[0], head_size, dtype=made.model_config.dtype, device="meta")
        try:
            impl._decode_attention(query, None, SimpleNamespace(block_table=None, seq_lens=range(batch)), None, None)
        except AssertionError as error:
            locked.append([batch, str(error)])
    return found | {"splits": splits, "locked": locked}


def flash(folder: str) -> dict[str, Any]:
    """Return the version of flash attention that configs have, and by GPU which versions would be replaced by 2."""
    from vllm.config import CompilationConfig

    CompilationConfig.init_backend = lambda *_, **__: "eager"  # its passes look up compiled operators
    found: dict[str, Any] = {"configs": {}}
    for dtype, asked_for in product(("turboquant_4bit_nc", "auto"), (None, 2, 3, 4)):
        asked: Options = {} if asked_for is None else {"flash_attn_version": asked_for}
        made = config(folder, "dense", kv_cache_dtype=dtype, attention_config=asked)
        found["configs"][f"{dtype} {asked_for}"] = made.attention_config.flash_attn_version
    if switch := companion("_switch"):
        for capability in ((9, 0), (10, 0), (12, 0), (8, 9)):
            pretend_capability(*capability)
            found[".".join(map(str, capability))] = [*map(switch.needs_flash_attention_2, (None, 2, 3, 4))]
    return found


def prepare() -> None:
    """Let vLLM's attention run in the interpreter."""
    import torch

    torch.accelerator.empty_cache = lambda: None  # no accelerator here
    torch.cuda.get_device_capability = lambda _device=None: (9, 0)
    from vllm.v1.attention.backends import turboquant_attn

    mend_bfloat16()
    turboquant_attn._HAS_FLASH_ATTN = False  # flash attention is compiled; vLLM falls back to PyTorch's


def main(_home: str, folder: str, switch: str, what: str, *names: str) -> dict[str, Any]:
    """Run steps, size buffers or configure, with the switch "on" or "off"; `folder` holds the models."""
    if switch == "off":
        os.environ["VPATCH_TQ_DECODE"] = "0"
    prepare()
    if what == "buffers":
        return {number: buffers(folder, int(number)) for number in names}
    if what == "flash":
        return flash(folder)
    return {name: ran(folder, STEPS[name]) for name in names}
