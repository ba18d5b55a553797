"""How far the rotated keys of vLLM and of `turboquant-decode` are from float64, and which codes differ."""

from __future__ import annotations

import json
from typing import Any

from tests.validation.cpu.decode_cases import Case, codebook, hadamard
from tests.validation.cpu.probe_decode import companion, mend_bfloat16

SCALES = {"plain": 1.0, "huge": 2.0**12, "tiny": 2.0**-22}


def keys_of(size: int, dtype: str, tokens: int, heads: int, scale: float, *, sliced: bool) -> Any:
    """Return keys of varied norms; the last is 0. Sliced ones are part of a tensor of queries, keys and values."""
    import torch

    torch.manual_seed(size + tokens)
    shape = (tokens, heads * size)
    numbers = torch.randn(shape) * (1 + torch.rand(tokens, 1)) * scale
    numbers[-1, -size:] = 0
    if sliced:
        fused = torch.full((tokens, 3 * heads * size), float("nan"), dtype=getattr(torch, dtype))
        fused[:, heads * size : 2 * heads * size] = numbers
        return fused.split(heads * size, dim=1)[1].view(tokens, heads, size)
    return numbers.to(getattr(torch, dtype)).view(tokens, heads, size)


def stock_keys(key: Any) -> tuple[Any, Any]:
    """Rotate with vLLM's statements, those of `triton_turboquant_store`."""
    flat = key.float().reshape(-1, key.shape[2])
    norms = flat.norm(dim=1, keepdim=True)
    return (flat / (norms + 1e-8)) @ hadamard(key.shape[2]).float(), norms


def exact_keys(key: Any) -> tuple[Any, Any]:
    """Rotate in float64."""
    flat = key.double().reshape(-1, key.shape[2])
    norms = flat.norm(dim=1, keepdim=True)
    return (flat / (norms + 1e-8)) @ hadamard(key.shape[2]), norms


def errors(size: int, dtype: str, tokens: int, heads: int, scale: str, sliced: bool) -> dict[str, Any]:  # noqa: FBT001 - from JSON
    """Return the largest errors of both, that of the norms relative to the norm."""
    store = companion("turboquant_decode_store")
    key = keys_of(size, dtype, tokens, heads, SCALES[scale], sliced=sliced)
    reason = store.unrotated(key)
    if reason:
        return {"reason": reason}
    exact, exact_norms = exact_keys(key)
    found: dict[str, Any] = {}
    both = {"ours": store.rotated_keys(key), "stock": stock_keys(key)}
    for name, (rotated, norms) in both.items():
        apart = (norms.double() - exact_norms).abs() / exact_norms.clamp(min=1e-300)
        assert rotated.shape == exact.shape
        assert norms.shape == exact_norms.shape
        found[name] = [float((rotated.double() - exact).abs().max()), float(apart.max())]
        found[f"{name} zero"] = not rotated[-1].any() and not norms[-1].any()
    return found | crossings(Case(size=size), *(rotated for rotated, _ in both.values()))


def crossings(case: Case, ours: Any, stock: Any) -> dict[str, Any]:
    """Count codes that differ, found as vLLM's kernel does, and return how far from a midpoint they are at most."""
    import torch

    numbers = codebook(case)
    middles = (numbers[:-1] + numbers[1:]) / 2  # between which vLLM's codes lie
    differing = torch.bucketize(ours, middles, right=True) != torch.bucketize(stock, middles, right=True)
    apart = (ours[differing][:, None] - middles).abs()
    return {"differing": int(differing.sum()), "distance": float(apart.amin(1).max()) if len(apart) else 0.0}


def reasons() -> dict[str, Any]:
    """Return what is refused, of tensors without memory."""
    import torch

    def reason(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return companion("turboquant_decode_store").unrotated(torch.empty(*shape, dtype=dtype, device="meta"))

    return {
        "supported": reason(100_000, 64, 256),
        "no tokens": reason(0, 8, 128),
        "head size 96": reason(4, 8, 96),
        "float32": reason(4, 8, 128, dtype=torch.float32),
        "transposed": companion("turboquant_decode_store").unrotated(
            torch.empty(4, 128, 8, dtype=torch.float16, device="meta").transpose(1, 2)
        ),
    }


def overflowing() -> list[float]:
    """Return the largest rotated number of keys whose squares, or whose sums too, are beyond float32."""
    import torch

    rotate = companion("turboquant_decode_store").rotated_keys
    return [float(rotate(torch.full((1, 1, 64), size).bfloat16())[0].abs().max()) for size in (1e25, 3e38)]


def main(_home: str, cases: str) -> dict[str, Any]:
    mend_bfloat16()
    return {
        "errors": [errors(*case) for case in json.loads(cases)],
        "reasons": reasons(),
        "overflowing": overflowing(),
    }
