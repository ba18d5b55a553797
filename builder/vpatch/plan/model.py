"""The words of `vpatch plan` as values: a model, what it is to run on and how. Sizes are bytes, lengths tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from packaging.version import Version

GIB = 1 << 30
MIB = 1 << 20

FULL, LINEAR = "full_attention", "linear_attention"
"""Kinds of layer, as `layer_types` in a config.json says them."""


@dataclass(frozen=True)
class Attention:
    """The shape of every full-attention layer, before tensor parallelism."""

    heads: int
    kv_heads: int
    head_size: int


@dataclass(frozen=True)
class GatedDeltaNet:
    """The shape of every linear-attention layer (Gated DeltaNet), before tensor parallelism.

    A request has one state in each: [value heads, value head size, key head size] in `state_dtype`, and the last
    `conv_kernel` - 1 inputs of the convolution in the model's dtype.
    """

    key_heads: int
    value_heads: int
    key_head_size: int
    value_head_size: int
    conv_kernel: int
    state_dtype: str = "float32"


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: how many are routed to, how many of them a token takes, and how wide each is."""

    count: int
    per_token: int
    intermediate_size: int


@dataclass(frozen=True)
class Head:
    """How the output projection (`lm_head`) is quantised, where it is.

    `scheme` is "fp8-block", "fp8-channel", "fp8-tensor", or another format by its name; `target` is what the
    checkpoint's config names it by.
    """

    scheme: str
    target: str


@dataclass(frozen=True)
class Weights:
    """Bytes of a checkpoint's tensors, as stored, before any parallelism.

    `layers` has one number per decoder layer. `draft` are the layers of multi-token prediction, which are loaded for
    speculative decoding only; `vision` is the vision tower, `other` what each pipeline stage holds besides. `source`
    says in words where the numbers come from, `exact` whether they are sizes of tensors, `summed` whether their sum is
    known, be the parts estimates.
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
        """All of it but the draft layers."""
        return sum(self.layers) + self.embedding + self.head + self.other + self.vision


@dataclass(frozen=True)
class Model:
    """What a config.json says of a model, as far as memory and overlays depend on it.

    `layers` has the kind of every decoder layer. `unknown` lists what could not be read from the config; where it is
    not empty, every layer is taken for full attention, which is the most memory that a layer can take.
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
    """What `--kv-cache-dtype auto` comes to, where the checkpoint brings scales for a KV cache."""
    weights: Weights | None = None
    revision: str | None = None
    unknown: tuple[str, ...] = ()

    @property
    def hybrid(self) -> bool:
        """Whether it mixes attention with layers that keep a state."""
        return LINEAR in self.layers


@dataclass(frozen=True)
class Gpu:
    """A GPU: the memory that CUDA reports as its total, in bytes, and its compute capability."""

    name: str
    memory: int
    capability: tuple[int, int] | None = None
    source: str = ""


@dataclass(frozen=True)
class Deployment:
    """How a model is served: the options of `vllm serve` that memory depends on, under their names there.

    `vllm` is the release whose arithmetic holds. `kv_cache_memory_bytes` sets the size of the KV cache and leaves
    `gpu_memory_utilization` without effect on it. `speculative_tokens` are those of multi-token prediction, 0 for none.
    """

    vllm: Version
    gpu: Gpu
    max_model_len: int
    kv_cache_dtype: str = "auto"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    speculative_tokens: int = 0
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    language_model_only: bool = False
    kv_cache_memory_bytes: int | None = None
    desktop: bool = False
    longest: bool = False
    """`--max-model-len auto`: vLLM takes the longest that fits, `max_model_len` at most."""
    cuda: str = ""
    """Which image of the release, where not the one without a suffix: "cu130"."""
    environment: tuple[str, ...] = ()
    """Environment variables that it wants, as NAME=VALUE."""
    extra: tuple[str, ...] = field(default=())
    """More arguments for the command, as they are: parsers of tool calls and the like."""


@dataclass(frozen=True)
class Layout:
    """The KV cache of a deployment as vLLM lays it out, per GPU.

    A block holds `block_size` tokens of one group of layers. `page_bytes` is what one attention layer takes of it,
    `state_bytes` what one linear-attention layer takes (0 without any) before it is padded to a page. `groups` has the
    number of layers of each group, those of attention first; `attention_groups` is how many of them grow with the
    context. `bytes_per_block` has what a block takes on a GPU of each pipeline stage. `state_blocks` is what one
    request takes in each of the groups that do not grow.
    """

    block_size: int
    page_bytes: int
    state_bytes: int
    groups: tuple[int, ...]
    attention_groups: int
    bytes_per_block: tuple[int, ...]
    state_blocks: int = 0


@dataclass(frozen=True)
class Capacity:
    """What a KV cache of a size holds. `slots` and `tokens` are the two figures that vLLM prints, by release."""

    blocks: int
    blocks_per_request: int
    slots: int
    tokens: int
    concurrency: float
