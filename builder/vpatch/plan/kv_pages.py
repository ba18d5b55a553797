"""What one token takes in the KV cache of one attention layer, and one request in that of a linear-attention layer."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from vpatch.plan.arithmetic import FP8
from vpatch.plan.model import Attention, GatedDeltaNet

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


@dataclass(frozen=True)
class TurboQuant:
    """A preset of TurboQuant: bits per element of keys (8: FP8, nothing else is stored of them) and of values."""

    key_bits: int
    value_bits: int

    def slot(self, head_size: int) -> int:
        """Bytes of one token in one KV head: packed keys with their norm (2), packed values with scale and zero (4).

        Source: `TurboQuantConfig.slot_size_aligned`.
        """
        keys = head_size if self.key_bits == 8 else ceil(head_size * self.key_bits / 8) + 2
        values = ceil(head_size * self.value_bits / 8) + 4
        return keys + values + (keys + values) % 2


PRESETS = {
    "turboquant_k8v4": TurboQuant(8, 4),
    "turboquant_4bit_nc": TurboQuant(4, 4),
    "turboquant_k3v4_nc": TurboQuant(3, 4),
    "turboquant_3bit_nc": TurboQuant(3, 3),
}


def token_bytes(attention: Attention, kv_cache_dtype: str, dtype: str) -> int:
    """Bytes of one token in one layer, keys and values, for `attention` as one GPU has it; `dtype` is the model's."""
    if preset := PRESETS.get(kv_cache_dtype):
        return attention.kv_heads * preset.slot(attention.head_size)
    return 2 * attention.kv_heads * attention.head_size * element_bytes(kv_cache_dtype, dtype)


def element_bytes(kv_cache_dtype: str, dtype: str) -> int:
    """Bytes of an element of an unpacked cache."""
    return DTYPE_BYTES["fp8" if kv_cache_dtype in FP8 else dtype if kv_cache_dtype == "auto" else kv_cache_dtype]


def state_bytes(linear: GatedDeltaNet, dtype: str, ranks: int, speculative_tokens: int) -> int:
    """Bytes of one request's state in one layer on one of `ranks` GPUs: the recurrent state and the convolution's.

    Source: `MambaStateShapeCalculator.gated_delta_net_state_shape`.
    """
    channels = 2 * linear.key_heads * linear.key_head_size + linear.value_heads * linear.value_head_size
    convolution = channels // ranks * (linear.conv_kernel - 1 + speculative_tokens) * DTYPE_BYTES[dtype]
    recurrent = linear.value_heads // ranks * linear.value_head_size * linear.key_head_size
    return convolution + recurrent * DTYPE_BYTES[linear.state_dtype]
