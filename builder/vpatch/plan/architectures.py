"""A model as values, and a table of the architectures whose memory plan knows layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FULL, LINEAR = "full_attention", "linear_attention"
"""Kinds of layers, as `layer_types` in a config.json names them."""


@dataclass(frozen=True)
class Attention:
    """The shape of each full-attention layer, before tensor parallelism."""

    heads: int
    kv_heads: int
    head_size: int


@dataclass(frozen=True)
class GatedDeltaNet:
    """The shape of each linear-attention layer (Gated DeltaNet), before tensor parallelism.

    In each of them a request has a state of [value heads, value head size, key head size] in `state_dtype`, and the
    last `conv_kernel` - 1 inputs of the convolution in the model's dtype.
    """

    key_heads: int
    value_heads: int
    key_head_size: int
    value_head_size: int
    conv_kernel: int
    state_dtype: str = "float32"


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: their number, how many a token is routed to, and the width of each."""

    count: int
    per_token: int
    intermediate_size: int


@dataclass(frozen=True)
class Head:
    """How the output projection (`lm_head`) is quantized.

    `scheme` is "fp8-block", "fp8-channel", "fp8-tensor", or the name of another format; `target` is the entry of the
    checkpoint's config that names it.
    """

    scheme: str
    target: str


@dataclass(frozen=True)
class Weights:
    """Bytes of a checkpoint's tensors, as stored, before any parallelism.

    `layers` has one number per decoder layer. `draft` is multi-token prediction, which vLLM loads for speculative
    decoding only; `vision` is the vision tower, `other` what each pipeline stage holds besides. `source` names where
    the numbers come from. `exact`: they are sizes of tensors. `summed`: their sum is known, even if the parts are
    estimates.
    """

    layers: tuple[int, ...]
    embedding: int = 0
    head: int = 0
    other: int = 0
    vision: int = 0
    draft: int = 0
    source: str = ""
    exact: bool = True
    summed: bool = True

    @property
    def loaded(self) -> int:
        """Everything but the draft layers."""
        return sum(self.layers) + self.embedding + self.head + self.other + self.vision


@dataclass(frozen=True)
class Model:
    """A model as its config.json describes it, as far as memory and overlays depend on it.

    `layers` has the kind of each decoder layer. `unknown` lists what plan does not model; if it is not empty, each
    layer counts as full attention, which takes the most memory. `kv_cache_dtype` is what `--kv-cache-dtype auto`
    resolves to, if the checkpoint has scales for a KV cache.
    """

    name: str
    architecture: str
    layers: tuple[str, ...]
    attention: Attention
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    linear: GatedDeltaNet | None = None
    intermediate_size: int = 0
    experts: Experts | None = None
    dtype: str = "bfloat16"
    tied: bool = False
    vision: bool = False
    draft_layers: int = 0
    quantization: str | None = None
    head: Head | None = None
    kv_cache_dtype: str | None = None
    weights: Weights | None = None
    revision: str | None = None
    unknown: tuple[str, ...] = ()

    @property
    def hybrid(self) -> bool:
        """Whether it mixes attention with layers that keep a state."""
        return LINEAR in self.layers


@dataclass(frozen=True)
class Architecture:
    """How to read a config of one architecture.

    `defaults` holds for keys that are left out, as in transformers (4.57, 5.20) and in vLLM's own config classes;
    without one for `num_key_value_heads` there are as many as heads, without one for `head_dim` it is hidden size /
    heads, and 0 means that vLLM requires the key. `window` is the default of `sliding_window`, which counts only with
    `use_sliding_window` where that is `switched`. `draft` is the key that counts layers of multi-token prediction.
    `reads_state_dtype`: the state's dtype is `mamba_ssm_dtype`; else it is the model's. `gated`: queries have an
    output gate of their size. `shared` is the key for the width, or the number, of shared experts.
    """

    names: tuple[str, ...]
    model_type: str
    defaults: Mapping[str, int] = field(default_factory=dict)
    hybrid: bool = False
    experts: bool = False
    tied: bool = False
    vision: bool = False
    window: int = 0
    switched: bool = False
    draft: str = ""
    reads_state_dtype: bool = False
    gated: bool = False
    shared: str = ""


_DELTA = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
}
_QWEN3_5 = _DELTA | {"num_key_value_heads": 4, "intermediate_size": 12_288, "vocab_size": 248_320}
_QWEN3_5_MOE = _DELTA | {
    "num_key_value_heads": 2,
    "vocab_size": 248_320,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_QWEN3_NEXT = _QWEN3_5_MOE | {
    "vocab_size": 151_936,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "intermediate_size": 5632,
}
_SHARED = "shared_expert_intermediate_size"


def _sizes(vocab: int, positions: int, mlp: int, kv_heads: int = 0, head_dim: int = 0) -> dict[str, int]:
    sizes = {"vocab_size": vocab, "max_position_embeddings": positions, "intermediate_size": mlp}
    return sizes | {k: v for k, v in (("num_key_value_heads", kv_heads), ("head_dim", head_dim)) if v}


def _experts(count: int, per_token: int, width: int = 0, shared: int = 0) -> dict[str, int]:
    sizes = {"num_experts": count, "num_experts_per_tok": per_token}
    return sizes | {k: v for k, v in (("moe_intermediate_size", width), (_SHARED, shared)) if v}


_NEXT: dict[str, Any] = {"hybrid": True, "gated": True}
_3_5: dict[str, Any] = {**_NEXT, "draft": "mtp_num_hidden_layers", "reads_state_dtype": True}
_EXPERTS: dict[str, Any] = {"experts": True, "shared": _SHARED}
ARCHITECTURES = (
    Architecture(("Qwen3_5ForConditionalGeneration",), "qwen3_5", _QWEN3_5, vision=True, **_3_5),
    Architecture(("Qwen3_5ForCausalLM",), "qwen3_5_text", _QWEN3_5, **_3_5),
    Architecture(("Qwen3_5MoeForConditionalGeneration",), "qwen3_5_moe", _QWEN3_5_MOE, vision=True, **_3_5, **_EXPERTS),
    Architecture(("Qwen3_5MoeForCausalLM",), "qwen3_5_moe_text", _QWEN3_5_MOE, **_3_5, **_EXPERTS),
    Architecture(
        ("Qwen3NextForCausalLM",), "qwen3_next", _QWEN3_NEXT, draft="num_nextn_predict_layers", **_NEXT, **_EXPERTS
    ),
    Architecture(("LlamaForCausalLM", "LLaMAForCausalLM"), "llama", _sizes(32_000, 2048, 11_008)),
    Architecture(("MistralForCausalLM",), "mistral", _sizes(32_000, 131_072, 14_336, kv_heads=8), window=4096),
    Architecture(("Qwen2ForCausalLM",), "qwen2", _sizes(151_936, 32_768, 22_016, kv_heads=32), switched=True),
    Architecture(
        ("Qwen3ForCausalLM",), "qwen3", _sizes(151_936, 32_768, 22_016, kv_heads=32, head_dim=128), switched=True
    ),
    Architecture(
        ("Qwen2MoeForCausalLM",),
        "qwen2_moe",
        _sizes(151_936, 32_768, 5632, kv_heads=16) | _experts(60, 4, 1408, 5632),
        switched=True,
        **_EXPERTS,
    ),
    Architecture(
        ("Qwen3MoeForCausalLM",),
        "qwen3_moe",
        _sizes(151_936, 32_768, 6144, kv_heads=4) | _experts(128, 8, 768),
        experts=True,
        switched=True,
    ),
    Architecture(
        ("MixtralForCausalLM",),
        "mixtral",
        _sizes(32_000, 131_072, 14_336, kv_heads=8) | _experts(8, 2),
        experts=True,
    ),
    Architecture(("Phi3ForCausalLM",), "phi3", _sizes(32_064, 4096, 8192)),
    Architecture(("Glm4ForCausalLM",), "glm4", _sizes(151_552, 131_072, 13_696, kv_heads=2, head_dim=128)),
    Architecture(
        ("Glm4MoeForCausalLM",),
        "glm4_moe",
        _sizes(151_552, 131_072, 10_944, kv_heads=8)
        | _experts(128, 8, 1408)
        | {"n_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 0},
        experts=True,
        draft="num_nextn_predict_layers",
        shared="n_shared_experts",
    ),
    Architecture(("GemmaForCausalLM",), "gemma", _sizes(256_000, 8192, 24_576, kv_heads=16, head_dim=256), tied=True),
    Architecture(("GraniteForCausalLM",), "granite", _sizes(32_000, 2048, 11_008)),
)
KNOWN = {name: architecture for architecture in ARCHITECTURES for name in architecture.names}
