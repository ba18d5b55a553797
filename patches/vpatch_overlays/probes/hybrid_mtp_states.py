"""The kernels of states, in a model of Triton: which state they go on from, and how they shift a window.

It needs neither Triton nor a GPU, and does not import vLLM: it takes the kernels from the files of the installed one.
"""

import inspect
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vpatch_overlays.probes.bare import expect
from vpatch_overlays.probes.kernel_threads import WARPS, Machine, Reached, Value, kernels

DRAFTS = 3
COLUMNS = {0: 0, 1: 0, DRAFTS + 1: DRAFTS, 9: DRAFTS}
"""By number of accepted tokens, the column of the request's row that a kernel may read first."""

TOKENS, WIDTH, CHANNELS = DRAFTS + 3, 4, 20
"""Tokens in the window of a convolution of 4 tokens, and what a token is: two bytes for each channel."""

CHUNK = 16
"""Bytes or words that a kernel copies at once; vLLM has 1,024."""

DELTA = "fused_recurrent_gated_delta_rule_fwd_kernel"
SIGMOID = "fused_sigmoid_gating_delta_rule_update_kernel"
CONVOLUTION = ("model_executor/layers/mamba/ops/causal_conv1d.py", "_causal_conv1d_update_kernel")
RECURRENT = (
    *(
        (f"{folder}/{name}.py", kernel)
        for folder in ("model_executor/layers/fla/ops", "third_party/flash_linear_attention/ops")
        for name, kernel in (("fused_recurrent", DELTA), ("fused_sigmoid_gating", SIGMOID))
    ),
    *(
        (f"models/{model}/{vendor}/ops/third_party/kda/fused_recurrent.py", kernel)
        for model, kernel in (("kimi_k3", "fused_recurrent_kda_fwd_kernel"), ("glm5next", DELTA))
        for vendor in ("nvidia", "amd")
    ),
)
"""Files below `vllm/` and their kernels, each in some releases."""

ONES = ("N", "B", "H", "HV", "K", "V", "BK", "BV")
FLAGS = ("USE_INITIAL_STATE", "IS_VARLEN", "IS_CONTINUOUS_BATCHING", "IS_SPEC_DECODING")
_WORDS = {True: "right", False: "overwritten"}

COPIES = "v1/worker/mamba_utils.py"


def _call(machine: Machine, kernel: Callable[..., None], order: Sequence[int], arguments: dict[str, Any]) -> None:
    """Run a kernel with those of the arguments that it takes, and 0 for its other parameters."""
    taken = inspect.signature(kernel).parameters
    machine.run(kernel, order, **{name: arguments.get(name, Value(0)) for name in taken})


def columns(vllm: Path, file: str, name: str) -> list[int]:
    """Return the columns of a request's row that a kernel reads first, for each number of `COLUMNS`."""
    return [(_convolved if (file, name) == CONVOLUTION else _selected)(vllm / file, name, n) for n in COLUMNS]


def _selected(file: Path, name: str, accepted: int) -> int:
    machine = Machine()
    kernel = kernels(file, machine)[name]
    before, after = 8, 12
    table = machine.put([0] * (before + DRAFTS + 1 + after))
    row = Value(int(table) + 4 * before, 4)
    machine.watched = range(int(table), len(machine.data))
    arguments = {
        "T": Value(DRAFTS + 1),
        "cu_seqlens": machine.put([0, DRAFTS + 1]),
        "num_accepted_tokens": machine.put([accepted]),
        "ssm_state_indices": row,
        "state_indices": row,
        "stride_indices_seq": Value(DRAFTS + 1),
        **dict.fromkeys((*ONES, *FLAGS), Value(1)),
    }
    try:
        _call(machine, kernel, (0,), arguments)
    except Reached as reached:
        return (reached.address - int(row)) // 4
    raise AssertionError(f"{name} was to read a column of the request's states")


def _convolved(file: Path, name: str, accepted: int) -> int:
    machine = Machine()
    kernel = kernels(file, machine)[name]
    states = machine.put([0] * 3 * TOKENS * CHANNELS, 1)
    row = int(states) + TOKENS * CHANNELS
    machine.watched = range(int(states), len(machine.data))
    arguments = {
        "conv_state_ptr": states,
        "conv_state_indices_ptr": machine.put([1]),
        "num_accepted_tokens_ptr": machine.put([accepted]),
        "query_start_loc_ptr": machine.put([0, DRAFTS + 1]),
        "dim": Value(CHANNELS),
        "BLOCK_N": CHANNELS,
        "seqlen": Value(DRAFTS + 1),
        "state_len": Value(TOKENS),
        "num_cache_lines": Value(3),
        "stride_conv_state_seq": Value(TOKENS * CHANNELS),
        "stride_conv_state_tok": Value(CHANNELS),
        "KERNEL_WIDTH": Value(WIDTH),
        **dict.fromkeys(("batch", "IS_VARLEN", "IS_SPEC_DECODING", "stride_conv_state_dim"), Value(1)),
    }
    try:
        _call(machine, kernel, (0,), arguments)
    except Reached as reached:
        return (reached.address - row) // CHANNELS
    raise AssertionError(f"{name} was to read the window of the request")


def shifted_by_host(
    vllm: Path, tokens: int, order: Sequence[int], chunk: int = CHUNK, channels: int = CHANNELS
) -> tuple[bool, int]:
    """Shift a window to the left, by a copy whose addresses the host computes.

    Args:
        vllm: the package's folder.
        tokens: by how many tokens.
        order: the order in which warps run.
        chunk: bytes that a program copies at once, on 0.28 by the GPU words of 8 bytes.
        channels: channels of 2 bytes that a token has.

    Returns:
        Whether the window is right then, and how many barriers there were.
    """
    machine = Machine()
    kernel = kernels(vllm / COPIES, machine)["batch_memcpy_kernel"]
    window, shift = _window(machine, channels), tokens * channels * 2
    start, size = int(window), TOKENS * channels * 2
    wanted = machine.data[start + shift : start + size] + machine.data[start + size - shift : start + size]
    pointers: dict[str, Any] = {"src_ptrs": machine.put([start + shift], 8), "dst_ptrs": machine.put([start], 8)}
    _call(machine, kernel, order, pointers | {"sizes": machine.put([size - shift]), "BLOCK_SIZE": chunk})
    return machine.data[start : start + size] == wanted, machine.barriers


def shifted_by_gpu(
    vllm: Path, tokens: int, order: Sequence[int], chunk: int = CHUNK, channels: int = CHANNELS, *, rows: bool = False
) -> tuple[bool, int]:
    """Shift a window as `shifted_by_host` does, by the kernel that also decides what to copy (from 0.22 on).

    `rows`: a window has a row of tokens for each channel, instead of a row of channels for each token (from 0.24 on).
    """
    machine, block = Machine(), 8
    kernel = kernels(vllm / COPIES, machine)["postprocess_mamba_fused_kernel"]
    window, size = _window(machine, channels), TOKENS * channels * 2
    start = int(window)
    before = bytes(machine.data[start : start + size])
    length, shift = (TOKENS * 2, tokens * 2) if rows else (size, tokens * channels * 2)
    parts = [before[at : at + length] for at in range(0, size, length)]
    wanted = b"".join(part[shift:] + part[length - shift :] for part in parts)
    table = machine.put([0])
    arguments = {
        "num_accepted_tokens_ptr": machine.put([tokens + 1]),
        "mamba_state_idx_ptr": machine.put([0]),
        "num_scheduled_tokens_ptr": machine.put([DRAFTS + 1]),
        "num_computed_tokens_ptr": machine.put([block - tokens - 1]),
        "num_draft_tokens_ptr": machine.put([DRAFTS]),
        "block_table_ptrs_ptr": machine.put([int(table)], 8),
        "state_base_addrs_ptr": machine.put([start], 8),
        "state_block_strides_ptr": machine.put([size], 8),
        "state_elem_sizes_ptr": machine.put([2]),
        "state_inner_sizes_ptr": machine.put([channels]),
        "state_conv_widths_ptr": machine.put([TOKENS]),
        "state_group_indices_ptr": machine.put([0]),
        "state_dim_row_count_ptr": machine.put([channels]),
        "state_dim_row_stride_ptr": machine.put([TOKENS * 2], 8),
        "num_accepted_tokens_out_ptr": machine.put([0]),
        "num_reqs": Value(1),
        "block_size": Value(block),
        "COPY_BLOCK_SIZE": chunk,
        "CONV_STATE_DIM_FIRST": Value(int(rows)),
        "TEMPORAL_TILES": 1,
    }
    _call(machine, kernel, order, arguments)
    return bytes(machine.data[start : start + size]) == wanted, machine.barriers


def _window(machine: Machine, channels: int) -> Value:
    return machine.put([byte * 37 % 251 - 125 for byte in range(TOKENS * channels * 2)], 1)


def main() -> None:
    """Look at every kernel that this vLLM has."""
    package = find_spec("vllm")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'vllm'", name="vllm")
    vllm = Path(package.origin).parent
    here = [(file, kernel) for file, kernel in (CONVOLUTION, *RECURRENT) if (vllm / file).exists()]
    expect(
        "kernels of Gated DeltaNet that are not where they were", set(), {DELTA, SIGMOID} - {name for _, name in here}
    )
    for file, kernel in here:
        found = columns(vllm, file, kernel)
        expect(f"first column that {kernel} reads, by accepted tokens {list(COLUMNS)}", [*COLUMNS.values()], found)
    shifts = [shifted_by_host]
    if "postprocess_mamba_fused_kernel" in (vllm / COPIES).read_text("utf-8"):
        shifts.append(shifted_by_gpu)
    for shift in shifts:
        for order in (range(WARPS), range(WARPS)[::-1]):
            right, _ = shift(vllm, 1, order)
            expect(f"{shift.__name__}: a window, with warps in the order {list(order)}", "right", _WORDS[right])


if __name__ == "__main__":
    main()
