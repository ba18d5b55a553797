"""A deployment: the GPU, the options of `vllm serve`, what the vLLM release does with them, and the presets.

Everywhere else in vpatch the code's shape decides, never the version. A plan is made before anything is installed, so
here the release decides: the tests hold `SINCE` against the releases' own code.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.version import Version

from vpatch.errors import Failure, Problem
from vpatch.plan import GIB
from vpatch.plan.architectures import Model

OLDEST, NEWEST = Version("0.18.0"), Version("0.33.0")
"""The releases whose arithmetic is known."""

FLOATS = ("auto", "bfloat16", "float16")
FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")
TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")


@dataclass(frozen=True)
class Arithmetic:
    """The traits of a release.

    `prints_slots`: it logs blocks // groups * block size as the size of the KV cache; later ones log concurrency times
    length. `default_utilization` is the default of `--gpu-memory-utilization`. `counts_graphs`: it takes the estimate
    for CUDA graphs from the KV cache's memory. `caches_hybrid_prefixes`: prefix caching is on by default for hybrid
    models, too. `batch_holds_block`: with prefix caching, it refuses to start if a block is larger than a batch.
    `admits_all_groups`: to decide whether a request fits, it counts the blocks of all groups of layers, not of one.
    `aligns_skipped`: if a dense model keeps some layers unquantized, the block size makes their pages as large as those
    of the others, were they not packed. `keeps_null_block`: to decide whether a request fits, it takes one block off.
    `block_per_request`: with CUDA graphs, it refuses to start if a model whose layers keep states has fewer blocks than
    a batch has requests. `exports_states`: kernels that export states during a prefill need one more block, and blocks
    of 64 tokens. `decode_buffers`: TurboQuant's decode has its own buffers in each layer. `large_batch` is the default
    of `--max-num-batched-tokens` on GPUs of 160 GiB and more.
    """

    kv_cache_dtypes: tuple[str, ...] = (*FLOATS, *FP8)
    prints_slots: bool = True
    default_utilization: float = 0.9
    counts_graphs: bool = False
    caches_hybrid_prefixes: bool = False
    batch_holds_block: bool = True
    admits_all_groups: bool = False
    aligns_skipped: bool = False
    keeps_null_block: bool = False
    decode_buffers: bool = False
    block_per_request: bool = False
    exports_states: bool = False
    large_batch: int = 8192


SINCE: dict[str, dict[str, Any]] = {
    "0.19.0": {"admits_all_groups": True},
    "0.20.0": {
        "kv_cache_dtypes": (*FLOATS, *FP8, *TURBOQUANT),
        "default_utilization": 0.92,
        "counts_graphs": True,
        "decode_buffers": True,
        "block_per_request": True,
    },
    "0.20.1": {"prints_slots": False},
    "0.21.0": {"decode_buffers": False},
    "0.25.0": {"aligns_skipped": True},
    "0.26.0": {"caches_hybrid_prefixes": True},
    "0.27.0": {"batch_holds_block": False},
    "0.28.0": {"large_batch": 16384},
    "0.29.0": {"keeps_null_block": True},
    "0.33.0": {"exports_states": True},
}
"""Traits by the release that introduced them, read from the source of every release from `OLDEST` to `NEWEST`."""


def arithmetic_of(vllm: Version) -> Arithmetic:
    """Return the traits of a release or of a build of it (rc, dev, local); raise `Failure` if they are not known."""
    release = Version(vllm.base_version)
    if not OLDEST <= release <= NEWEST:
        cause = f"the arithmetic of vLLM {OLDEST} to {NEWEST} is known"
        raise Failure(Problem("unknown release", f"vLLM {vllm}", cause))
    found = Arithmetic()
    for since, traits in SINCE.items():
        if release >= Version(since):
            found = replace(found, **traits)
    return found


@dataclass(frozen=True)
class Gpu:
    """A GPU: the total memory that CUDA reports, in bytes, its compute capability, and the source of the numbers."""

    name: str
    memory: int
    capability: tuple[int, int] | None = None
    source: str = ""


GPUS = tuple(
    Gpu(name, int(gib * GIB), capability, seen)
    for name, gib, capability, seen in (
        ("RTX 3090", 23.69, (8, 6), "23.57 to 23.70 GiB reported"),
        ("RTX 4090", 23.64, (8, 9), "23.52 to 23.65 GiB reported"),
        ("RTX 5090", 31.36, (12, 0), "31.34 to 31.39 GiB reported"),
        ("H100", 79.11, (9, 0), "79.11 to 79.21 GiB reported, 80 GB SXM"),
        ("RTX PRO 6000", 94.97, (12, 0), "94.97 GiB reported"),
        ("H200", 139.80, (9, 0), "139.72 to 139.81 GiB reported, 139.80 measured"),
        ("B200", 178.35, (10, 0), "178.35 to 178.36 GiB reported"),
    )
)
"""GPUs in order of size. vLLM takes its share of the memory that CUDA reports, which is less than is sold.

The sizes are from PyTorch's messages ("GPU 0 has a total capacity of ... GiB") in public reports, where drivers differ
by some 0.1 GiB; that of the H200 was measured (docs/gpu).
"""
LARGE, LARGEST = 70 * GIB, 160 * GIB
"""Memory from which on `vllm serve` takes larger batches. Source: `EngineArgs.get_batch_defaults`."""


def gpu(name: str | None, memory: int | None = None) -> Gpu:
    """Return a GPU by its name, in any case and without spaces, hyphens or "RTX"; `memory` overrides its size in bytes.

    Raises:
        Failure: no GPU has the name, and its memory is not given.
    """
    if name is None:
        return Gpu("GPU", memory or 0, None, "--gpu-memory-gib")
    known = {_key(one.name): one for one in GPUS}
    found = known.get(_key(name))
    if memory is not None:
        return replace(found or Gpu(name, 0), memory=memory, source="--gpu-memory-gib")
    if found:
        return found
    near = difflib.get_close_matches(_key(name), known, 1, 0.6)
    hint = f"did you mean {known[near[0]].name}? " if near else ""
    names = ", ".join(one.name for one in GPUS)
    raise Failure(Problem("no such GPU", name, f"{hint}known: {names}; any other with --gpu-memory-gib"))


def _key(name: str) -> str:
    letters = "".join(filter(str.isalnum, name.lower()))
    return letters.removeprefix("nvidia").removeprefix("geforce").replace("rtx", "")


@dataclass(frozen=True)
class Deployment:
    """How a model is served: the options of `vllm serve` that memory depends on, under their names there.

    `vllm` is the release. `kv_cache_memory_bytes` sets the size of the KV cache, so that `gpu_memory_utilization` has
    no effect on it. `speculative_tokens` are those of multi-token prediction, 0 for none. `longest` is
    `--max-model-len auto`: vLLM takes the longest that fits, at most `max_model_len`. `cuda` is the suffix of the
    image, if it has one ("cu130"). `environment` has variables as NAME=VALUE, `extra` more arguments of the command.
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
    cuda: str = ""
    environment: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


def defaults(model: Model, vllm: Version, gpu: Gpu) -> dict[str, Any]:
    """Return the fields of `Deployment` that a release sets by itself; raise `Failure` if the release is not known."""
    traits = arithmetic_of(vllm)
    large = gpu.memory >= LARGE
    batch = traits.large_batch if gpu.memory >= LARGEST else 8192 if large else 2048
    return {
        "max_model_len": model.max_position_embeddings,
        "max_num_seqs": 1024 if large else 256,
        "max_num_batched_tokens": batch,
        "gpu_memory_utilization": traits.default_utilization,
        "enable_prefix_caching": traits.caches_hybrid_prefixes or not model.hybrid,
    }


@dataclass(frozen=True)
class Preset:
    """A tested configuration: a model on a GPU with a release. `source` is a document's title and section.

    `gpu` is the name of a GPU, `options` are the other fields of `Deployment` by their names.
    """

    name: str
    summary: str
    source: str
    model: str
    gpu: str
    vllm: Version
    revision: str | None
    options: Mapping[str, Any]

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
    text = files("vpatch.plan").joinpath("presets.toml").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = {}
    for entry in tomllib.loads(text)["preset"]:
        entries[entry["name"]] = (entries[entry.pop("like")] if "like" in entry else {}) | entry
    return tuple(map(_preset, entries.values()))


def _preset(entry: Mapping[str, Any]) -> Preset:
    options: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    own = {key: options.pop(key) for key in ("name", "summary", "source", "model", "gpu")}
    vllm, revision = Version(options.pop("vllm")), options.pop("revision", None)
    return Preset(**own, vllm=vllm, revision=revision, options=options)


def preset(name: str) -> Preset:
    """Return the preset with a name; raise `Failure` with the closest names if there is none."""
    named = {one.name: one for one in presets()}
    if name in named:
        return named[name]
    near = difflib.get_close_matches(name, named, 3, 0.5) or [one for one in named if name in one][:3]
    cause = f"do you mean {', '.join(near)}?" if near else "`vpatch plan --list` prints those that there are"
    raise Failure(Problem("no such preset", name, cause))
