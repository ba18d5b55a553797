"""Compile the kernels of `turboquant-decode` for GPUs that are not here, and return what they use.

Run by `decode_record`. Triton's own `ptxas` assembles, and counts registers and spills.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.validation.cpu.probe_decode import companion

POINTERS = {
    "query": "*bf16",
    "cache": "*u8",
    "table": "*i32",
    "lengths": "*i32",
    "codebook": "*fp32",
    "partial": "*fp32",
    "logs": "*fp32",
    "output": "*bf16",
    "key": "*bf16",
    "rotated": "*fp32",
    "norms": "*fp32",
}
SCALARS = {"scale": "fp32"}
UNALIGNED = ("table", "lengths", "table_stride")


def compiled(kernel: Any, constants: dict[str, Any], options: dict[str, Any], capability: int) -> dict[str, int]:
    """Compile a kernel; return its shared memory, registers and spilled bytes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    types = {
        name: "constexpr" if name in constants else POINTERS.get(name) or SCALARS.get(name, "i32") for name in names
    }
    # As at run time: what is not specialized, and not a number of splits, is a multiple of 16.
    aligned = [i for i, name in enumerate(names) if name in POINTERS or name.endswith("_stride")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned if names[i] not in UNALIGNED}
    source = ASTSource(kernel, types, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return {"shared": made.metadata.shared, **assembled(made.asm["ptx"], capability, options.get("maxnreg"))}


def assembled(ptx: str, capability: int, registers: int | None) -> dict[str, int]:
    """Return the registers of a thread, and the bytes that it spills, as `ptxas` counts them."""
    from triton import knobs

    tool = knobs.nvidia.ptxas_blackwell if capability >= 100 else knobs.nvidia.ptxas
    source = Path(os.environ["TMPDIR"], "kernel.ptx")
    source.write_text(ptx)
    suffix = "a" if capability >= 90 else ""
    limit = [f"--maxrregcount={registers}"] if registers else []
    command = [tool.path, "-v", *limit, f"--gpu-name=sm_{capability}{suffix}", str(source), "-o", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    counts = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    used = re.search(r"Used (\d+) registers", said)
    assert counts, said
    assert used, said
    return {"registers": int(used[1]), "spilled": int(counts[1]) + int(counts[2])}


def both(
    capability: int,
    preset: tuple[int, int],
    size: int,
    kv_heads: int,
    group: int,
    window: int,
    requests: int,
    *,
    ptx: bool,
) -> list[dict[str, int]]:
    """Compile both kernels for a batch, with pages of 16 tokens, heads first in memory."""
    decode, kernels = companion("turboquant_decode"), companion("turboquant_decode_kernels")
    launch = decode.choose(requests, kv_heads, size, group * window, preset)
    key_bits, value_bits = preset
    slot = size * (key_bits + value_bits) // 8 + (4 if key_bits == 8 else 6)
    constants = {
        **decode.constants(launch, kv_heads, group, window, size, 16, key_bits, value_bits, each=window > 1),
        "PAGE_BYTES": kv_heads * 16 * slot,
        "TOKEN_BYTES": slot,
        "HEAD_BYTES": 16 * slot,
        "E4B15": key_bits == 8 and capability < 89,
        "CORRECT": key_bits != 8,
        **decode.texts(key_bits, value_bits, size, inline_ptx=ptx),
        "PREFETCH": launch.prefetch and ptx,
    }
    combining = decode.combine_constants(launch, kv_heads * group, window, size, value_bits, each=window > 1)
    return [
        compiled(kernels.split_kernel, constants, decode.options(launch), capability),
        compiled(kernels.combine_kernel, combining, decode.COMBINE_OPTIONS, capability),
    ]


def store(capability: int, size: int, rows: int) -> list[dict[str, int]]:
    """Compile the kernel for new keys, for so many of them, of 8 KV heads."""
    module = companion("turboquant_decode_store")
    return [compiled(module.rotate_kernel, module.store_constants(rows, 8, size), module.STORE_OPTIONS, capability)]


def main(_home: str, cases: str) -> list[Any]:
    return [store(*case[1:]) if case[0] == "store" else both(*case[:-1], ptx=case[-1]) for case in json.loads(cases)]
