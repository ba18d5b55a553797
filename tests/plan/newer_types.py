"""Which models and GPUs to draw with KV caches of the newer types: not each has kernels for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.plan.drawn import STATEFUL

INT8, FP8, INT4, *NVFP4 = NEWER = (
    *(f"{name}_per_token_head" for name in ("int8", "fp8", "int4")),
    *("nvfp4", "nvfp4_4over6"),
)
"""Types with a scale for each token and head, or for each few elements of one."""

BLACKWELL, CONSUMER = (10, 0), (12, 0)
GPUS = ((8, 0), (8, 9), (9, 0), BLACKWELL, (10, 3), CONSUMER)
# Pages of windows, of 3 heads of 256, do not divide into those of full attention, of one of 512.
UNEQUAL = {"head_dim": 256, "global_head_dim": 512, "num_key_value_heads": 3, "num_attention_heads": 6}
UNEQUAL |= {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
Case = tuple[str, int, dict[str, Any], str, dict[str, Any]]


def newer() -> Iterator[Case]:
    """Yield a kind of model, ranks, fields of its config, the type of its KV cache, and more of the deployment."""
    whole = {"head_dim": 128, "num_hidden_layers": 5}
    for dtype in NEWER:
        yield from ((kind, ranks, {}, dtype, _on(BLACKWELL)) for ranks in (1, 2, 4) for kind in ("hybrid", "dense"))
        yield from (("dense", 1, whole, dtype, _on(gpu)) for gpu in GPUS)
        yield "hybrid", 1, {}, dtype, _on(BLACKWELL) | {"tokens": 2}
        yield "latent", 1, {}, dtype, _on(BLACKWELL)
    for size in (64, 80, 192, 256, 512):
        for dtype, gpu in ((INT4, BLACKWELL), ("nvfp4", BLACKWELL), ("nvfp4", CONSUMER)):
            yield "dense", 1, whole | {"head_dim": size}, dtype, _on(gpu)
    for dtype, gpu in ((INT8, (9, 0)), (INT4, (8, 6)), ("nvfp4", BLACKWELL), ("nvfp4", CONSUMER), ("nvfp4", (9, 0))):
        yield "exaone4", 1, {"head_dim": 128}, dtype, _on(gpu) | {"batch": 2048}
        yield "llama4", 1, {"head_dim": 128}, dtype, _on(gpu) | {"batch": 2048}
        yield "gemma4_text", 1, {"head_dim": 256, "global_head_dim": 512}, dtype, _on(gpu) | {"batch": 2048}
    for dtype, gpu in (("auto", (8, 0)), ("auto", (9, 0)), ("auto", BLACKWELL), ("auto", CONSUMER), ("fp8", (9, 0))):
        yield "gemma4_text", 1, UNEQUAL, dtype, _on(gpu) | {"batch": 2048}
    for number, kind in enumerate(STATEFUL):
        yield from ((kind, 1, {}, dtype, _on(BLACKWELL)) for dtype in (NEWER[number % 3], "nvfp4"))
    yield from ((kind, 1, {}, INT8, _on(BLACKWELL) | {"stages": 2}) for kind in ("hybrid", "dense"))


def _on(gpu: tuple[int, int]) -> dict[str, Any]:
    return {"capability": gpu}
