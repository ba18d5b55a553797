"""A deployment: the GPU, the options of `vllm serve`, what the vLLM release does with them, and the presets.

Everywhere else in vpatch the code's shape decides, never the version. A plan is made before anything is installed, so
here the release decides, by `releases.toml`.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from packaging.version import Version

from vpatch.errors import Problem, UnknownName, closest, did_you_mean, nearest
from vpatch.plan import GIB, Model, inherited, table

MOST = 1 << 50  # of any option: more than anything that is counted here, and exact as a float
DRAFTS = 64  # the most tokens of a draft
STOCK = "vllm/vllm-openai"
FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")
PER_TOKEN_HEAD = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head")
NVFP4 = ("nvfp4", "nvfp4_4over6")
TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")


@dataclass(frozen=True)
class Arithmetic:
    """The traits of a release."""

    prints_slots: bool = True  # logs the KV cache as blocks // groups * block size, not as concurrency times length
    default_utilization: float = 0.9
    counts_graphs: bool = False  # takes the estimate for CUDA graphs from the KV cache's memory
    # Architectures that run in the second model runner, which does not estimate the memory of CUDA graphs: of these the
    # quantized ones, too, and all that have neither experts nor states. From 0.29 on, all run there, and it does.
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


_TABLE = table("releases.toml")
RELEASES = tuple(map(Version, _TABLE["releases"]))
OLDEST, NEWEST = RELEASES[0], RELEASES[-1]


def release_of(vllm: Version) -> Version:
    """Return the release that a version is, or is a build of (rc, dev, local).

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
    return before


def arithmetic_of(vllm: Version) -> Arithmetic:
    """Return the traits of a release; raise `UnknownName` as `release_of` does."""
    release = release_of(vllm)
    changes = [traits for since, traits in _TABLE["since"].items() if release >= Version(since)]
    return Arithmetic(**ChainMap(*reversed(changes)))


def in_second_runner(model: Model, vllm: Version) -> bool:
    """Return whether a model runs in the second model runner, of a release in which that makes a difference.

    Source: `VllmConfig.use_v2_model_runner`.
    """
    traits = arithmetic_of(vllm)
    if model.architecture in traits.second_runner:
        return traits.second_runner_quantized or not model.quantization
    return traits.second_runner_dense and not model.experts and not model.hybrid


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


AMPERE, BLACKWELL, CONSUMER_BLACKWELL = 8, 10, 12
"""Major compute capabilities: the first is Ada's, too, the second that of data centers."""

GPUS = tuple(
    Gpu(name, int(row.pop("gib") * GIB), tuple(row.pop("capability")), **row)
    for name, row in table("gpus.toml").items()
)
# Types of scaling whose factor is in `max_position_embeddings` already.
_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
LARGE, LARGEST = 70 * GIB, 160 * GIB  # from which on vLLM takes larger batches: `EngineArgs.get_batch_defaults`


def gpu(name: str | None, memory: int | None = None) -> Gpu:
    """Return a GPU by its name, however it is spelled; `memory` is its size in bytes, which an unknown one needs."""
    if name is None:
        return Gpu("GPU", memory or 0, None, "--gpu-memory-gib")
    known = {_key(one.name): one for one in GPUS}
    found = known.get(_key(name))
    if memory is not None:
        return replace(found or Gpu(name, 0), memory=memory, source="--gpu-memory-gib")
    if found:
        return found
    names = [one.name for one in GPUS]
    # Another number is another GPU, however alike the names are; a number that goes on may be meant.
    number = "".join(re.findall(r"\d+", name))
    near = [one for one in names if "".join(re.findall(r"\d+", one)).startswith(number)]
    meant = did_you_mean(nearest(name, near, key=_key) if number else (), " ")
    raise UnknownName(
        Problem("no such GPU", name, f"{meant}known: {', '.join(names)}; for any other, give --gpu-memory-gib")
    )


def _key(name: str) -> str:
    letters = "".join(filter(str.isalnum, name.lower()))
    return letters.removeprefix("nvidia").removeprefix("geforce").replace("rtx", "")


@dataclass(frozen=True)
class Deployment:
    """How a model is served: the options of `vllm serve` that memory depends on, under their names there.

    Given `kv_cache_memory_bytes`, the KV cache does not depend on `gpu_memory_utilization`. `speculative_tokens` are
    those of multi-token prediction. `tiles`: vLLM has the overlay turboquant-tiles. `longest` is `--max-model-len
    auto`: the longest that fits, at most `max_model_len`. `cuda` is the suffix of the image, as in "cu130".
    `environment` has variables as NAME=VALUE, `extra` more arguments of the command.
    """

    vllm: Version
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


def lengths(model: Model, vllm: Version) -> tuple[int, int]:
    """Return the context length that a release takes by default and the longest that it allows, in tokens.

    Source: `_get_and_verify_max_len`.
    """
    longest, factor = float(model.max_position_embeddings), 1.0
    for rope in () if model.architecture.startswith("Gemma3") else model.rope:
        if rope.kind == "yarn" and arithmetic_of(vllm).scales_yarn:
            longest, factor = float(rope.original or longest), rope.factor
        elif rope.kind not in _SCALED:
            factor = rope.factor
    longest *= factor
    original = next((rope.original for rope in model.rope if rope.kind == "longrope"), None)
    return int(original or longest), int(longest)


def defaults(model: Model, vllm: Version, gpu: Gpu) -> dict[str, Any]:
    """Return the fields of `Deployment` that a release sets by itself; raise `UnknownName` for an unknown release."""
    traits = arithmetic_of(vllm)
    large = gpu.memory >= LARGE and "A100" not in gpu.name and not (traits.small_gb10 and gpu.name == "GB10")
    batch = traits.large_batch if gpu.memory >= LARGEST else 8192 if large else 2048
    return {
        "max_model_len": lengths(model, vllm)[0],
        "max_num_seqs": 1024 if large else 256,
        "max_num_batched_tokens": batch,
        "gpu_memory_utilization": traits.default_utilization,
        "enable_prefix_caching": traits.caches_hybrid_prefixes or not model.hybrid,
    }


@dataclass(frozen=True)
class Preset:
    """A tested configuration from a document: a model, a GPU's name, a release, and other fields of `Deployment`."""

    name: str
    summary: str
    source: str
    model: str
    gpu: str
    vllm: Version
    options: Mapping[str, Any]
    revision: str | None = None

    def deployment(self, gpu: Gpu, given: Mapping[str, Any]) -> Deployment:
        """Return the deployment on a GPU; `given` fields override the preset's."""
        options = dict(self.options)
        if given.get("vllm", self.vllm) != self.vllm:
            options.pop("cuda", None)  # each release has its own images
        if "max_model_len" in given:
            options.pop("longest", None)
        return Deployment(**{"vllm": self.vllm, "gpu": gpu, **options, **given})


@cache
def presets() -> tuple[Preset, ...]:
    """Return every preset of `presets.toml`."""
    own = {field.name for field in fields(Preset)}
    found = []
    for row in inherited(table("presets.toml")["preset"], "name"):
        options: dict[str, Any] = {key: tuple(it) if isinstance(it, list) else it for key, it in row.items()}
        named = {key: options.pop(key) for key in own & options.keys()}
        found.append(Preset(**named | {"vllm": Version(row["vllm"])}, options=options))
    return tuple(found)


def preset(name: str) -> Preset:
    """Return a preset by its name; raise `UnknownName`, with the closest names, for an unknown one."""
    named = {one.name: one for one in presets()}
    if name in named:
        return named[name]
    raise UnknownName(Problem("no such preset", name, f"{closest(name, named)}; `vpatch plan --list` lists them"))


@dataclass(frozen=True)
class Image:
    """An image with `overlays`, and its base without any; `built` if you must build it first."""

    base: str
    name: str
    overlays: tuple[str, ...] = ()
    built: bool = False


_IMAGES = table("images.toml")
IMAGES = tuple(Image(one["base"], one["name"], tuple(one["overlays"])) for one in _IMAGES["image"])
PUBLISHED: bool = _IMAGES["published"]  # whether a registry has them


def image(deployment: Deployment, overlays: Collection[str]) -> Image:
    """Return the image to run, with at least these overlays: vLLM's, a published one, or one to build."""
    tag = f"v{deployment.vllm.public}{deployment.cuda and '-'}{deployment.cuda}"
    base = f"{STOCK}:{tag}"
    if not overlays:
        return Image(base, base)
    for one in IMAGES if PUBLISHED else ():
        if one.base == base and set(overlays) <= set(one.overlays):
            return one
    # In no registry: an image that is not built yet must not be pulled from a stranger who took the name.
    return Image(base, f"localhost/vllm-openai:{tag}-vpatch", tuple(sorted(overlays)), built=True)
