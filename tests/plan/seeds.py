"""What the model cards print of deployments that ran, as data.

Source: the model card of inferRouter/Qwen3.6-35B-A3B-NVFP4, "VRAM and concurrency (RTX 5090 32 GB)" and "Scaling up to
262 K context"; that of ig1/Qwen3.5-35B-A3B-NVFP4, "GPU Memory Utilization Guide".
"""

from __future__ import annotations

from dataclasses import dataclass

CARD = "inferRouter/Qwen3.6-35B-A3B-NVFP4"


@dataclass(frozen=True)
class Printed:
    """A row: the preset that describes it, sizes in GiB, what vLLM printed in tokens and as concurrency."""

    preset: str
    weights: float
    kv_cache: float
    tokens: int
    concurrency: float


# The card calls this figure "GPU KV cache": slots, of all groups together.
AT_32K = (
    Printed("qwen3.6-35b-5090-32k-fp8kv", 21.88, 4.63, 119_472, 12.16),
    Printed("qwen3.6-35b-5090-32k", 21.96, 4.94, 249_856, 22.45),
    Printed("qwen3.6-35b-5090-32k-fp8head-fp8kv", 21.40, 5.10, 132_048, 13.42),
    Printed("qwen3.6-35b-5090-32k-fp8head", 21.48, 5.41, 274_432, 24.55),
)

# Here it is concurrency times length.
FP8_AT_262K = Printed("qwen3.6-35b-5090-262k-fp8kv", 21.88, 4.97, 492_512, 1.88)
TURBOQUANT_AT_262K = Printed("qwen3.6-35b-5090-262k", 21.96, 5.48, 1_022_361, 3.90)

# --gpu-memory-utilization: estimated context.
SHARES = {
    "qwen3.5-35b-5090-desktop-conservative": (0.885, 12_500),
    "qwen3.5-35b-5090-desktop-recommended": (0.905, 19_500),
    "qwen3.5-35b-5090-desktop-aggressive": (0.926, 28_000),
    "qwen3.5-35b-5090-headless": (0.956, 40_000),
}
