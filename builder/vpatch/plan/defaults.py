"""What the command line knows by name or by default: GPUs, presets, and the options that a release sets by itself."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from ctypes import byref, c_int, c_size_t
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from packaging.version import Version

from vpatch.errors import Problem, UnknownName, closest, did_you_mean, nearest
from vpatch.plan import GIB, Model
from vpatch.plan.deployment import Deployment, Gpu, Release, inherited, release_of, table

GPUS = tuple(
    Gpu(name, int(row.pop("gib") * GIB), tuple(row.pop("capability")), **row)
    for name, row in table("gpus.toml").items()
)
_LARGE, _LARGEST = 70 * GIB, 160 * GIB  # from which on vLLM takes larger batches: `EngineArgs.get_batch_defaults`
# Types of scaling whose factor is in `max_position_embeddings` already.
_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NAME = 256  # characters, more than any name has


def lengths(model: Model, release: Release) -> tuple[int, int]:
    """Return the context length that a release takes by default and the longest that it allows, in tokens.

    Source: `_get_and_verify_max_len`.
    """
    longest, factor = float(model.max_position_embeddings), 1.0
    for rope in () if model.architecture.startswith("Gemma3") else model.rope:
        if rope.kind == "yarn" and release.scales_yarn:
            longest, factor = float(rope.original or longest), rope.factor
        elif rope.kind not in _SCALED:
            factor = rope.factor
    longest *= factor
    original = next((rope.original for rope in model.rope if rope.kind == "longrope"), None)
    return int(original or longest), int(longest)


def defaults(model: Model, release: Release, gpu: Gpu) -> dict[str, Any]:
    """Return the fields of `Deployment` that a release sets by itself."""
    large = gpu.memory >= _LARGE and "A100" not in gpu.name and not (release.small_gb10 and gpu.name == "GB10")
    return {
        "max_model_len": lengths(model, release)[0],
        "max_num_seqs": 1024 if large else 256,
        "max_num_batched_tokens": release.large_batch if gpu.memory >= _LARGEST else 8192 if large else 2048,
        "gpu_memory_utilization": release.default_utilization,
        "enable_prefix_caching": release.caches_hybrid_prefixes or not model.hybrid,
    }


def in_second_runner(model: Model, release: Release) -> bool:
    """Return whether a model runs in the second model runner, of a release in which that makes a difference.

    Source: `VllmConfig.use_v2_model_runner`.
    """
    if model.architecture in release.second_runner:
        return release.second_runner_quantized or not model.quantization
    return release.second_runner_dense and not model.experts and not model.hybrid


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
    if (several := _SEVERAL.fullmatch(name)) and (one := known.get(_key(several[2] or several[3]))):
        hint = f"give one, and how many: --gpu '{one.name}' --tensor-parallel-size {several[1] or several[4]}"
        raise UnknownName(Problem("no such GPU", name, "it is several", hint=hint))
    names = [one.name for one in GPUS]
    # Another number is another GPU, however alike the names are; but one that goes on may be meant, or one whose last
    # digit is wrong, since the names of GPUs end in 0.
    number = _digits(name)
    near = [one for one in names if _digits(one).startswith(number)] or [
        one for one in names if len(number) == 4 and _digits(one) == f"{number[:-1]}0"
    ]
    meant = did_you_mean(nearest(name, near, key=_key) if number else (), " ")
    hint = "for any other, give --gpu-memory-gib"
    raise UnknownName(Problem("no such GPU", name, f"{meant}known: {', '.join(names)}", hint=hint))


_SEVERAL = re.compile(r"(\d{1,2}) ?[xX*] ?(.{1,40})|(.{1,40}?) ?[xX*] ?(\d{1,2})")


def _digits(name: str) -> str:
    return "".join(re.findall(r"\d+", name))


def _key(name: str) -> str:
    letters = "".join(filter(str.isalnum, name.lower()))
    return letters.removeprefix("nvidia").removeprefix("geforce").replace("rtx", "")


def gpu_here(library: str = "libcuda.so.1") -> Gpu | None:
    """Return the first GPU, with the memory that vLLM takes its share of; None if there is no driver or no GPU.

    NVML would say what is built in, of which the driver keeps some 2 %. This creates no context, and takes no memory.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None
    device, memory, major, minor = c_int(), c_size_t(), c_int(), c_int()
    name = ctypes.create_string_buffer(_NAME)
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(byref(device), 0)
        or cuda.cuDeviceGetName(name, _NAME, device)
        or cuda.cuDeviceTotalMem_v2(byref(memory), device)
        or cuda.cuDeviceGetAttribute(byref(major), _MAJOR, device)
        or cuda.cuDeviceGetAttribute(byref(minor), _MINOR, device)
    )
    if failed:
        return None
    called = name.value.decode("utf-8", "replace").removeprefix("NVIDIA ").removeprefix("GeForce ")
    known = gpu(called, memory.value)
    return Gpu(known.name, memory.value, (major.value, minor.value), "the driver of this machine")


@dataclass(frozen=True)
class Preset:
    """A tested configuration from a document: a model, a GPU's name, a release, and other fields of `Deployment`.

    `more` are opt-in overlays that it is with.
    """

    name: str
    summary: str
    source: str
    model: str
    gpu: str
    vllm: Version
    options: Mapping[str, Any]
    revision: str | None = None
    more: tuple[str, ...] = ()

    def deployment(self, gpu: Gpu, given: Mapping[str, Any]) -> Deployment:
        """Return the deployment on a GPU; `given` fields override the preset's."""
        options = dict(self.options)
        release = given.get("release") or release_of(self.vllm)
        if release.vllm != self.vllm:
            options.pop("cuda", None)  # each release has its own images
        if "max_model_len" in given:
            options.pop("longest", None)
        return Deployment(**{"gpu": gpu, **options, **given, "release": release})


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
