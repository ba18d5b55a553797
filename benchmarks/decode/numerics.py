"""How far our kernels and vLLM's are from float64."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from benchmarks.decode.cases import MAX_MODEL_LEN, PRESETS, Numeric
from benchmarks.decode.formats import attention, filled
from benchmarks.decode.kernels import decode, stock, unsupported


def measure(case: Numeric, device: str = "cuda") -> dict[str, Any]:
    """Return the record of a case; what goes wrong is its `error`."""
    record = asdict(case) | {"label": case.label}
    try:
        return record | _errors(case, device)
    except Exception as error:  # a kernel that does not compile or run fails its case, not the benchmark
        return record | {"error": f"{type(error).__name__}: {error}"[:500]}


def _errors(case: Numeric, device: str) -> dict[str, Any]:
    import torch

    torch.manual_seed(case.size + case.group)
    preset, window = PRESETS[case.preset], case.window
    cache, table = filled(case, device)
    if case.splits is None:  # many splits, as an engine has, most of them empty
        wide = torch.full((len(table), MAX_MODEL_LEN // case.page), 1 << 30, dtype=torch.int32, device=device)
        wide[:, : table.shape[1]] = table
        table = wide
    shape = (len(case.lengths) * window, case.kv_heads * case.group, case.size)
    query = (torch.randn(shape, device=device) * 2).to(getattr(torch, case.dtype))
    lengths = seen(case, device)
    given = lengths if case.each else torch.tensor(case.lengths, dtype=torch.int32, device=device)
    reason = unsupported(query, cache, table, given, preset, window)
    if reason:
        return {"error": f"the kernels refuse this case: {reason}"}
    scratch = {}
    if case.splits:
        numbers = case.splits * shape[0] * shape[1] * (case.size + 1)
        scratch = {"scratch": torch.empty(numbers, dtype=torch.float32, device=device)}
    found = decode(query, cache, table, given, preset, window=window, **scratch)
    plain = None
    if device != "cpu":
        plain = decode(query, cache, table, given, preset, window=window, inline_ptx=False, **scratch)
    exact = attention(case, query, cache, table)
    blind = lengths == 0
    # vLLM's kernel takes a window as so many requests, and divides by 0 if one has no tokens.
    rows = table.clamp(max=len(cache) - 1).repeat_interleave(window, 0)[~blind]
    theirs = stock(query[~blind], cache, rows.contiguous(), lengths[~blind], preset)
    return {
        "ours": relative_error(found, exact),
        "stock": relative_error(theirs, exact[~blind]),
        "zero": bool((found[blind] == 0).all()),
        "same_bits": None if plain is None else bool(torch.equal(found, plain)),
    }


def seen(case: Numeric, device: str) -> Any:
    """Return how many cached tokens each token of the windows sees: the last one of a window sees all."""
    import torch

    lengths = torch.tensor(case.lengths, dtype=torch.int32, device=device)
    before = torch.arange(case.window - 1, -1, -1, dtype=torch.int32, device=device)
    return (lengths[:, None] - before).clamp(min=0).flatten().contiguous()


def relative_error(found: Any, exact: Any) -> float:
    """Return the norm of the difference relative to the exact result; 9 if a number is not finite."""
    difference = float((found.double() - exact).norm() / exact.norm())
    return difference if math.isfinite(difference) else 9.0
