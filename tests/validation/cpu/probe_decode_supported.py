"""Print why the kernels of `turboquant-decode` refuse some calls, as JSON; run by `environment.probe`."""

from __future__ import annotations

from typing import Any

from tests.validation.cpu.probe_decode import companion
from tests.validation.cpu.probing import report


def reason(
    *,
    heads: tuple[int, int] = (4, 1),
    size: int = 128,
    bits: tuple[int, int] = (4, 4),
    tokens: int = 4,
    rows: int | None = None,
    window: int = 1,
    dtype: str = "bfloat16",
    page: int = 16,
    slot: int | None = None,
    key_bytes: int | None = None,
    table: Any = None,
    lengths: str = "int32",
) -> Any:
    """Ask about a call on meta tensors, which have shapes, strides and types only."""
    import torch

    count = -(-tokens // window) if rows is None else rows
    packed = size * bits[0] // 8 + 2
    if table is None:
        table = torch.empty(count, 5, dtype=torch.int32, device="meta")
    return companion("turboquant_decode_supported").supported(
        torch.empty(tokens, heads[0], size, dtype=getattr(torch, dtype), device="meta"),
        torch.empty(3, page, heads[1], slot or packed + size * bits[1] // 8 + 4, dtype=torch.uint8, device="meta"),
        table,
        torch.empty(tokens, dtype=getattr(torch, lengths), device="meta"),
        bits[0],
        key_bytes or packed,
        bits[1],
        window=window,
    )


def main(_home: str) -> dict[str, Any]:
    import torch

    def table(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(4, 5, dtype=dtype, device="meta")

    return {
        "supported": reason(),
        "strided block table": reason(table=torch.empty(4, 9, dtype=torch.int32, device="meta")[:, 2:7]),
        "one row for all": reason(table=table(torch.int32)[:1].expand(4, -1)),
        "5-bit keys": reason(bits=(5, 4)),
        "8-bit values": reason(bits=(4, 8)),
        "head size 96": reason(size=96),
        "group 17": reason(heads=(17, 1)),
        "group 1.5": reason(heads=(3, 2)),
        "window 10": reason(tokens=10, window=10),
        "window of fewer tokens": reason(tokens=7, window=3),
        "too few rows": reason(rows=1, window=2),
        "no tokens": reason(tokens=0),
        "float32": reason(dtype="float32"),
        "pages of 8": reason(page=8),
        "other slots": reason(key_bytes=64),
        "odd strides": reason(slot=135),
        "long table": reason(table=table(torch.int64)),
        "float lengths": reason(lengths="float32"),
    }


if __name__ == "__main__":
    report(main)
