"""Print how far the rotated keys of vLLM and of `turboquant-decode` are from float64, and what caches hold, as JSON.

Run by `environment.probe`; the kernels run in Triton's interpreter.
"""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

from tests.validation.cpu.decode_cases import Case, codebook, codes, hadamard
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

    middles = midpoints(case)
    differing = torch.bucketize(ours, middles, right=True) != torch.bucketize(stock, middles, right=True)
    return {"differing": int(differing.sum()), "distance": farthest(ours[differing], middles)}


def farthest(numbers: Any, middles: Any) -> float:
    """Return the largest distance of a number to the midpoint next to it, 0 if there are no numbers."""
    return float((numbers[:, None] - middles).abs().amin(1).max()) if len(numbers) else 0.0


def midpoints(case: Case) -> Any:
    """Return the numbers between which vLLM's codes lie."""
    numbers = codebook(case)
    return (numbers[:-1] + numbers[1:]) / 2


def caches(preset: str, size: int) -> dict[str, Any]:
    """Run vLLM's whole store with its own rotated keys, and with ours; count what differs in the caches.

    Returns the number of codes, of those that differ, and how far from the midpoint they are at most; the largest
    difference of a norm in units of its last place; the number of bytes that differ elsewhere; and the number of bytes
    that differ from vLLM's if its kernel reads the values in their own type.
    """
    import torch

    case, tokens, heads = Case(preset, size), 12, 2
    key = keys_of(size, "bfloat16", tokens, heads, 1.0, sliced=True)
    value = torch.randn(tokens, heads, size).bfloat16()
    middles = midpoints(case)
    rotated, norms = companion("turboquant_decode_store").rotated_keys(key)
    stock = stored(case, key, value, middles, None)
    ours = stored(case, key, value, middles, (rotated, norms))
    data = case.key_bytes - 2
    before, after = (codes(cache[..., :data], case.bits[0], size) for cache in (stock, ours))
    differing = before != after
    reached = rotated.view(tokens, heads, size)[differing]
    places = [cache[..., data : data + 2].contiguous().view(torch.int16).int() for cache in (stock, ours)]
    return {
        "codes": before.numel(),
        "differing": int(differing.sum()),
        "steps": int((before - after).abs().max()),
        "distance": farthest(reached, middles),
        "norm": int((places[0] - places[1]).abs().max()),
        "elsewhere": int((stock[..., case.key_bytes :] != ours[..., case.key_bytes :]).sum()),
        "own values": int((stored(case, key, value, middles, None, narrow=True) != stock).sum()),
    }


def stored(case: Case, key: Any, value: Any, middles: Any, rotated: Any, *, narrow: bool = False) -> Any:
    """Return the slots that vLLM's store writes; with rotated keys and norms, or values of their own type, if given."""
    import torch
    from vllm.v1.attention.ops import triton_turboquant_store as ops

    tokens, heads, _ = key.shape
    cache = torch.zeros(3, 16, heads, case.slot, dtype=torch.uint8)
    kernel = ops._tq_fused_store_mse

    class Launcher:
        """The kernel with other inputs."""

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def launch(y: Any, norms: Any, values: Any, *rest: Any, **options: Any) -> None:
                if rotated is not None:
                    y, norms = rotated[0], rotated[1].squeeze(1)
                if narrow:
                    values = value.reshape(values.shape)
                kernel[grid](y, norms, values, *rest, **options)

            return launch

    with patch.object(ops, "_tq_fused_store_mse", Launcher()):
        ops.triton_turboquant_store(
            key,
            value,
            cache,
            torch.arange(tokens),
            hadamard(case.size).float(),
            middles,
            case.bits[0],
            case.key_bytes,
            case.bits[1],
        )
    return cache.flatten(0, 1)[:tokens]


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
    presets = ("4bit_nc", "k3v4_nc", "3bit_nc")
    return {
        "errors": [errors(*case) for case in json.loads(cases)],
        "caches": [caches(preset, size) for preset, size in zip(presets, (128, 256, 64), strict=True)],
        "reasons": reasons(),
        "overflowing": overflowing(),
    }
