"""A deployment as values: what the release does, by `releases.toml`, the GPU, and the options of `vllm serve`."""

from __future__ import annotations

import tomllib
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import accumulate, pairwise
from typing import Any

from packaging.version import Version

from vpatch.errors import Problem, UnknownName

MOST = 1 << 50  # of any option: more than anything that is counted here, and exact as a float
DRAFTS = 64  # the most tokens of a draft
AMPERE, HOPPER, BLACKWELL, CONSUMER_BLACKWELL = 8, 9, 10, 12
"""Major compute capabilities: the first is Ada's, too, the third that of data centers."""

FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")
PER_TOKEN_HEAD = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head")
NVFP4 = ("nvfp4", "nvfp4_4over6")
TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
KERNEL_BLOCK = 16  # tokens: vLLM's default, and the smallest that every attention kernel for NVIDIA's GPUs accepts


@dataclass(frozen=True)
class Release:
    """What a release does, by `releases.toml`. `vllm` is the version as it was named, `number` the release it is of.

    Everywhere else in vpatch the code's shape decides, never the version. A plan is made before anything is installed.
    """

    vllm: Version
    number: Version
    prints_slots: bool = True  # logs the KV cache as blocks // groups * block size, not as concurrency times length
    default_utilization: float = 0.9
    counts_graphs: bool = False  # takes the estimate for CUDA graphs from the KV cache's memory
    # Architectures that run in the second model runner, which does not estimate the memory of CUDA graphs: of these the
    # quantized ones, too, and all that have neither experts nor states. In later releases all run there, and it does.
    second_runner: Sequence[str] = ()
    second_runner_quantized: bool = False
    second_runner_dense: bool = False
    holds_copy: bool = False  # what the first compilation copied may still be there when the profiling run goes on
    retains_in_flight: bool = False  # a sliding window keeps the tokens of all batches that are on their way
    includes_last: bool = False  # Command R7B's window has one token more than its config says
    nvfp4_heads: Sequence[int] = (64, 128, 256)  # sizes of heads that FlashInfer takes
    pads_pages: bool = False  # of attention, whose size does not divide that of the largest
    tiles_fp8_heads: bool = False  # on Hopper, in kernels for heads of 512
    overlaps_stages: bool = False  # one batch more than stages is on its way, in every runner
    counts_warm_up: bool = False  # of a hybrid model, as if its CUDA graphs kept that memory
    caches_hybrid_prefixes: bool = False  # by default
    keeps_every_state: bool = True  # with prefix caching, of Mamba's: one for each block of a request
    aligns_drafts: bool = False  # with speculation, it does not
    keeps_states_of_drafts: bool = False  # in addition to these
    state_dtype: str = "float16"  # of a Nemotron-H whose config has none
    state_dtypes: Sequence[str] = ("auto", "float32", "float16")
    batch_holds_block: bool = True  # with prefix caching, refuses blocks that are larger than a batch
    # To decide whether a request fits, the release counts the blocks of all groups of layers, not of one, and one more.
    admits_all_groups: bool = False
    keeps_null_block: bool = False
    # If a dense model keeps layers unquantized, the block size makes all pages equal, were they not packed.
    aligns_skipped: bool = False
    decode_buffers: bool = False  # in each layer, for TurboQuant
    block_per_request: bool = False  # with CUDA graphs, a model with states needs a block for each request of a batch
    exports_states: Sequence[str] = ()  # kinds of states that are kept during a prefill, too, in one more block
    scales_yarn: bool = True  # multiplies the original length by YaRN's factor
    # Latent attention: sizes of vectors that have other kernels than Triton's, parts of keys without positions that
    # FlashInfer takes, and whether it asks if the GPU has what Triton's kernel for FP8 needs.
    latent_sizes: Sequence[int] = (320, 576)
    flashinfer_nopes: Sequence[int] = (64, 128)
    checks_latent_fp8: bool = False
    latent_heads: Sequence[Sequence[int]] = ()  # `nope`, `rope` and `value` that its prompts' kernels take; empty: all
    latent_blocks: bool = True  # there is room for the keys and values of a block for each request
    latent_granule: int = 64  # tokens, of which a hybrid's block has a multiple
    flashinfer_sparse_heads: int = 16  # of a rank, up to which sparse attention is FlashInfer's on Blackwell; 0: any
    shares_indexers: bool = False  # sparse attention has indexers in some layers only
    whole_rows: bool = False  # on Blackwell, blocks of sparse attention end with a whole token of a layer
    fp8_on_blackwell: Sequence[str] = ()  # architectures whose KV cache is FP8 there, unless the type is given
    small_gb10: bool = False  # takes the batches of small cards for it
    large_batch: int = 8192  # default of `--max-num-batched-tokens` on GPUs of 160 GiB and more
    # A model with states whose stage has no attention: "refused", or "unaligned": laid out in a way that plan lacks.
    bare_stages: str = ""
    drafts_on_stages: bool = False  # layers of multi-token prediction can be on a stage
    # Stages of a dense model in TurboQuant have blocks of different sizes: "refused", or "larger".
    uneven_stages: str = ""
    flashinfer_beside_turboquant: bool = False  # on Blackwell, for layers that TurboQuant leaves alone
    checks_fp8: bool = False  # refuses FP8 before Ada where only Triton is left
    one_float_type: bool = False  # the KV cache's float type is the model's
    mixed_nvfp4_heads: bool = False  # FlashInfer takes layers of two sizes of heads, with NVFP4
    any_int4_heads: bool = False  # INT4 is not for heads of a power of two only
    int4_windows: bool = False  # sliding windows have the size that INT4's kernel has
    overlong_hits: bool = False  # with speculation, a hit in a hybrid's prefix cache may exceed what attention cached
    decode_in_graphs: bool = False  # the overlay turboquant-decode is for it


def table(name: str) -> dict[str, Any]:
    """Read a TOML file that ships with plan."""
    return tomllib.loads(files("vpatch.plan").joinpath(name).read_text(encoding="utf-8"))


def inherited(rows: Iterable[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Merge each row of a table over the earlier row that it is `like`, which it names by `key`; tables merge, too."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        base = found.get(row.pop("like", ""), {})
        merged = {name: base.get(name, {}) | value for name, value in row.items() if isinstance(value, dict)}
        found[row[key]] = base | row | merged
    return list(found.values())


_TABLE = table("releases.toml")
RELEASES = tuple(map(Version, _TABLE["releases"]))
OLDEST, NEWEST = RELEASES[0], RELEASES[-1]


def release_of(vllm: Version) -> Release:
    """Return the release that a version is, or is a build of (rc, dev, local), with its traits.

    Development goes on under the number of the next patch release, which may never come: such a build is taken for the
    release before it.

    Raises:
        UnknownName: the version is of no release, or of one that plan does not know.
    """
    named = Version(vllm.base_version)
    if not OLDEST <= named <= NEWEST:
        cause = f"plan knows the arithmetic of vLLM {OLDEST} to {NEWEST}"
        raise UnknownName(Problem("unknown release", f"vLLM {vllm}", cause))
    before = max(release for release in RELEASES if release <= named)
    after = min(release for release in RELEASES if release >= named)
    if before != after and not vllm.is_prerelease:
        raise UnknownName(Problem("no such release", f"vLLM {vllm}", f"the nearest are {before} and {after}"))
    changes = [traits for since, traits in _TABLE["since"].items() if before >= Version(since)]
    return Release(vllm, before, **ChainMap(*reversed(changes)))


def changes_of(trait: str) -> list[str]:
    """Return the releases that changed a trait, as people call them: without a zero at the end."""
    return [since.removesuffix(".0") for since, traits in _TABLE["since"].items() if trait in traits]


def release_before(release: str) -> str:
    """Return the release before one that `changes_of` names, in the same way."""
    return str(max(one for one in RELEASES if one < Version(release))).removesuffix(".0")


@dataclass(frozen=True)
class KvType:
    """A type of KV cache: the first release with its name, and the first with kernels for it on some GPUs.

    `cards` has the latter by the compute capability from which on it is, up to the next major one. Without any, no GPU
    is refused. Source: `CacheDType`, and what attention backends say of themselves. For scales of each token and head
    there is Triton's kernel, for NVFP4 FlashInfer's. Up to 0.21, vLLM takes FlashAttention for all of them on Hopper,
    which knows none.
    """

    since: str = str(OLDEST)
    cards: Mapping[str, str] = field(default_factory=dict)

    def first_on(self, capability: tuple[int, int]) -> Version | None:
        """Return the first release with kernels for a GPU, None if no release has any."""
        if not self.cards:
            return OLDEST
        for card, release in self.cards.items():
            major, minor = map(int, card.split("."))
            if capability[0] == major and capability[1] >= minor:
                return Version(release)
        return None

    def spans(self) -> str:
        """Describe which GPUs have kernels, and since when."""
        cards: dict[str, list[str]] = {}
        for card, release in self.cards.items():
            cards.setdefault(release, []).append(f"{card.removesuffix('.0')}.x" if card.endswith(".0") else card)
        return "; ".join(f"on {', '.join(some)} from {release} on" for release, some in cards.items())


KV_TYPES = {name: KvType(**row) for name, row in _TABLE["kv_cache_dtypes"].items()}


def types_of(release: Release) -> list[str]:
    """Return the types that a release has, on any GPU."""
    return [name for name, one in KV_TYPES.items() if Version(one.since) <= release.number]


@dataclass(frozen=True)
class Gpu:
    """A GPU: the total memory that CUDA reports, in bytes, its compute capability, the source of the
    numbers, whether several are usually joined by NVLink, and whether the memory is that of the system.
    """

    name: str
    memory: int
    capability: tuple[int, int] | None = None
    source: str = ""
    nvlink: bool = False
    unified: bool = False

    @property
    def major(self) -> int:
        """The first number of its compute capability; 0 if that is not known."""
        return self.capability[0] if self.capability else 0


@dataclass(frozen=True)
class Deployment:
    """How a model is served: the options of `vllm serve` that memory depends on, under their names there.

    Given `kv_cache_memory_bytes`, the KV cache does not depend on `gpu_memory_utilization`. `speculative_tokens` are
    those of multi-token prediction. `tiles`: vLLM has the overlay turboquant-tiles. `longest` is `--max-model-len
    auto`: the longest that fits, at most `max_model_len`. `cuda` is the suffix of the image, as in "cu130".
    `environment` has variables as NAME=VALUE, secrets as NAME; `extra` has more arguments of the command.
    """

    release: Release
    gpu: Gpu
    max_model_len: int
    kv_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
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
    tiles: bool = False
    desktop: bool = False
    longest: bool = False
    cuda: str = ""
    environment: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def vllm(self) -> Version:
        """The version of vLLM, as it was named."""
        return self.release.vllm

    def stages(self, layers: int) -> list[range]:
        """Divide layers among stages as vLLM's `get_pp_indices`: the remainder goes to the stages before the last."""
        each, rest = divmod(layers, self.pipeline_parallel_size)
        counts = [each] * self.pipeline_parallel_size
        for stage in range(rest):
            counts[-2 - stage] += 1
        return [range(*pair) for pair in pairwise([0, *accumulate(counts)])]
