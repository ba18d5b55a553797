"""What TurboQuant's attention computes on one tree, and which kernels it launches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from types import SimpleNamespace
from typing import Any

from tests.validation.cpu.attending import (
    BLOCK,
    Layer,
    Options,
    Row,
    attention,
    builder,
    config,
    prepare,
    size_of,
    small_config,
    spoil,
    text_of,
    workspace,
)
from tests.validation.cpu.platform import pretend_capability
from tests.validation.cpu.probe_decode import mend_bfloat16
from tests.validation.cpu.probing import logged

SPLITS = 2  # vLLM's are 32; the interpreter is slow for each
PAGES, MAX_NUM_SEQS = 12, 3
MAX_MODEL_LEN = BLOCK * PAGES  # three splits

DECODES = (Row(0, 1), Row(37, 1), Row(140, 1))
CONTINUES = Row(12, 11)  # two windows: of 8 tokens, and of 3


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
    "mixed": Step((Row(9, 1), Row(7, 3), Row(0, 4))),
    "two heads share one": Step((Row(21, 1), Row(70, 1), CONTINUES), heads=(4, 2)),
    "fp8": Step((Row(20, 1), Row(7, 3)), preset="k8v4"),
    "group 17": Step((Row(3, 1),), heads=(17, 1), times=2),
    "foreign rotation": Step((Row(5, 1), Row(3, 2)), foreign=True, times=2),
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


class Decoding(Layer):
    """A layer for a step. With its scale attention to the cached tokens is far from even, although keys are short."""

    def __init__(self, made: Any, step: Step, head_size: int = 64) -> None:
        super().__init__(made, step.heads, head_size, pages=PAGES, requests=MAX_NUM_SEQS, preset=step.preset, scale=1.0)
        self.step = step
        if step.foreign:
            self.module._tq_Pi = self.module._tq_PiT = self.module._tq_Pi.clone()

    def run(self) -> dict[str, Any]:
        """Store and attend; return the output, and how far the farthest row is from float64."""
        import torch

        torch.manual_seed(1)
        output, pieces = self.attend(self.step.rows, self.step.dtype, factors=(20, 0.02))
        return {"output": text_of(output), "wrong by": max(map(self.distance, self.step.rows, pieces))}


def config_of(folder: str, heads: tuple[int, int], head_size: int = 64, **options: Any) -> Any:
    """Make the config of a model with such layers."""
    return small_config(
        folder, heads, head_size, **{"max_model_len": MAX_MODEL_LEN, "max_num_seqs": MAX_NUM_SEQS} | options
    )


def ran(folder: str, step: Step) -> dict[str, Any]:
    """Run a step on one layer; return what it computes, its launches, what is logged, and decode's splits."""
    from vllm.v1.attention.backends import turboquant_attn

    manager = workspace("cpu")
    layer = Decoding(config_of(folder, step.heads), step)
    spoil(manager)
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
    made = config_of(folder, heads, head_size, splits=None, max_num_seqs=max_num_seqs, **longest)
    manager = workspace("meta")
    with set_current_vllm_config(made):
        impl, module = attention(heads, head_size, 1.0, "turboquant_4bit_nc")
        made.compilation_config.static_forward_context["layer"] = SimpleNamespace(impl=impl)
        build = partial(builder, made, heads[1], head_size, (BLOCK, None), "meta")
        build()
        found: dict[str, Any] = {"reserved": size_of(manager)}
        manager = workspace("meta")
        query = torch.empty(4, heads[0] * head_size, dtype=made.model_config.dtype, device="meta")
        impl.forward(module, query, query, query, torch.tensor([]), None, torch.empty_like(query))
        found["profiled"] = size_of(manager)
        build()
        found["both"] = size_of(manager)
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


def main(_home: str, folder: str, switch: str, what: str, *names: str) -> dict[str, Any]:
    """Run steps, size buffers or configure, with the switch "on" or "off"; `folder` holds the models."""
    if switch == "off":
        os.environ["VPATCH_TQ_DECODE"] = "0"
    mend_bfloat16()
    prepare(flash=False)
    if what == "buffers":
        return {number: buffers(folder, int(number)) for number in names}
    if what == "flash":
        return flash(folder)
    return {name: ran(folder, STEPS[name]) for name in names}
