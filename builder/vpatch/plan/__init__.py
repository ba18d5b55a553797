"""Compute what a model needs on a GPU, from its config alone: overlays, memory, concurrency and the command.

It uses no GPU, loads no weights and imports no vLLM: it repeats vLLM's own arithmetic, release by release. Here is a
model as values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Estimate:
    """A number of bytes: most likely, at least, at most."""

    likely: int
    least: int
    most: int

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.likely + other.likely, self.least + other.least, self.most + other.most)

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.likely - other.likely, self.least - other.most, self.most - other.least)

    @property
    def exact(self) -> bool:
        """Whether it has no margin."""
        return self.least == self.most


def exactly(size: int) -> Estimate:
    """Return a computed size as an estimate without a margin."""
    return Estimate(size, size, size)


def within(likely: float, least: float, most: float) -> Estimate:
    """Return an estimate given in GiB."""
    return Estimate(int(likely * GIB), int(least * GIB), int(most * GIB))


FULL, LINEAR, SLIDING, CHUNKED = "full_attention", "linear_attention", "sliding_attention", "chunked_attention"
"""Kinds of layers, as `layer_types` in a config.json names them. A linear one keeps a state, of whatever kind."""

BOTH, MLP, MOE = "hybrid", "mlp", "moe"
"""More kinds: attention beside a state, as in Falcon-H1; and layers that keep nothing, as in Nemotron-H."""

ATTENTIVE, LOCAL, STATEFUL = (FULL, BOTH), (SLIDING, CHUNKED), (LINEAR, BOTH)

DELTA, KDA, MAMBA1, MAMBA2, CONVOLUTION = "gated_delta_net", "kda", "mamba1", "mamba2", "convolution"
SHARED = "mamba2_shared"
"""Kinds of states. Zamba2's are those of Mamba-2, beside attention that layers share. Kimi Delta Attention (KDA) has a
state like Gated DeltaNet's, with as many keys as values.
"""


@dataclass(frozen=True)
class Latent:
    """The sizes of multi-head latent attention (MLA), in elements of a token.

    All heads share a vector of `rank` + `rope`, from which each makes its key, of `nope` + `rope`, and its value.
    `queries` is the rank of what makes the queries; 0: one matrix makes them. With sparse attention (DSA), a
    layer has an indexer, with a key of `index` elements and `index_heads` queries, or `shares` that of one before it.
    """

    rank: int
    rope: int
    nope: int
    value: int
    queries: int
    index: int = 0
    index_heads: int = 0
    shares: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Attention:
    """The shape of each full-attention layer, before tensor parallelism.

    With a `latent`, the KV cache has one vector of `head_size` for a token instead of keys and values.
    """

    heads: int
    kv_heads: int
    head_size: int
    latent: Latent | None = None

    def shard(self, ranks: int) -> Attention:
        """Return the part of one of `ranks` GPUs; KV heads that are fewer than GPUs are copied."""
        return replace(self, heads=self.heads // ranks, kv_heads=max(1, self.kv_heads // ranks))


@dataclass(frozen=True)
class LayerState:
    """What a layer keeps for each request, before tensor parallelism.

    It is a state of [`heads`, `head_size`, `state_size`] in `dtype` ("": the release's default for the architecture),
    and the last `kernel` - 1 inputs of a convolution over as many channels as heads have, and twice those of `groups`,
    in the model's dtype. Mamba-1 has no groups, and heads of size 1; a short convolution has no state beside it.
    `chunk`: tokens that the kernels take at once, if old releases keep a state after every so many; else 0.
    """

    kind: str
    heads: int
    head_size: int = 1
    groups: int = 0
    state_size: int = 0
    kernel: int = 0
    dtype: str = ""
    chunk: int = 0

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_size

    def channels(self, ranks: int = 1) -> int:
        """Channels of the convolution on one of `ranks` GPUs; groups that cannot be divided are copied."""
        groups = ranks if self.groups % ranks else self.groups
        return (self.width + 2 * groups * self.state_size) // ranks


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: their number, how many a token is routed to, the width of each, and its matrices."""

    count: int
    per_token: int
    intermediate_size: int
    matrices: int = 3


@dataclass(frozen=True)
class Rope:
    """A scaling of rotary positions: its type, its factor, and the length before it, None if the config has none."""

    kind: str
    factor: float = 1.0
    original: int | None = None


@dataclass(frozen=True)
class Tower:
    """A vision tower, and what vLLM profiles it with: as many of the largest items as fit into a batch.

    `parameters` are those of the projector, too. An item is a picture, or a video of at most `frames` of them. A
    picture has `patches`, becomes `tokens` of the decoder, and takes `width` elements of intermediate results for each
    patch. `measured`: starts of vLLM have shown what it takes.
    """

    parameters: int
    patches: int
    tokens: int
    width: int
    frames: int = 1
    measured: bool = False


@dataclass(frozen=True)
class Weights:
    """Bytes of a checkpoint's tensors, as stored, before any parallelism.

    `layers` has one number per decoder layer. `draft` is multi-token prediction, which vLLM loads for speculative
    decoding only; each pipeline stage holds `other`. `source` names where the numbers come from. `exact`: they are
    sizes of tensors. `summed`: their sum is known, even if the parts are estimates. `guessed`: the shapes are known,
    not how the checkpoint stores them, so that the bytes only serve to split a sum.

    Each rank of tensor parallelism holds `whole` bytes of all layers undivided, which are in `layers`. When it loads,
    vLLM adds `added` bytes to each layer: latent attention's `kv_b_proj` in the model's type, if it is quantized.
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
    guessed: bool = False
    whole: int = 0
    added: int = 0

    @property
    def loaded(self) -> int:
        """Everything but the draft layers."""
        return sum(self.layers) + self.embedding + self.head + self.other + self.vision


@dataclass(frozen=True)
class Model:
    """A model as its config.json describes it, as far as memory and overlays depend on it.

    `layers` has the kind of each decoder layer; those with sliding or chunked attention see `window` tokens, one more
    if `inclusive` in releases that know of it, and are of the shape `local` if it is not that of the others. The last
    `borrowing` layers read the KV cache of earlier ones. If there is anything `unknown`, each counts as full attention;
    that is the most that it can take if `bounded`. `head` is the scheme of the output projection ("fp8-block"), None if
    it is not quantized. `block_fp8`: some weights are FP8 with block scales. `kv_cache_dtype` is what `auto` resolves
    to, if the checkpoint has scales for a KV cache. `tower` is the vision tower, if it has one.
    `own_width` is that of the embeddings that each layer has of its own. `since` is the first release that has it.
    `undrafted`: vLLM does not load the draft layers.
    """

    name: str
    architecture: str
    layers: tuple[str, ...]
    attention: Attention
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    window: int = 0
    local: Attention | None = None
    borrowing: int = 0
    inclusive: bool = False
    own_width: int = 0
    rope: tuple[Rope, ...] = ()
    state: LayerState | None = None
    intermediate_size: int = 0
    experts: Experts | None = None
    dtype: str = "bfloat16"
    tied: bool = False
    tower: Tower | None = None
    draft_layers: int = 0
    undrafted: bool = False
    quantization: str | None = None
    block_fp8: bool = False
    head: str | None = None
    kv_cache_dtype: str | None = None
    weights: Weights | None = None
    revision: str | None = None
    since: str = ""
    unknown: tuple[str, ...] = ()
    bounded: bool = True

    @property
    def hybrid(self) -> bool:
        """Whether it mixes attention with layers that keep a state."""
        return not set(STATEFUL).isdisjoint(self.layers)

    @property
    def delta(self) -> bool:
        """Whether the states are those of Gated DeltaNet."""
        return self.state is not None and self.state.kind == DELTA
