"""How well vLLM's compiled extensions serve a GPU.

A GPU does not need every file. FlashAttention 3 is for Hopper and FlashMLA for sm_90a and sm_100f by design; an RTX
5090 (sm_120) uses neither. So a file that carries only code bound to other GPUs (`a`) or families (`f`) is listed and
passes. The files that vLLM needs on any GPU fail if they lack the architecture or are missing:

- `_C` and `_C_stable_libtorch` (releases have the one, the other or both): `vllm/platforms/cuda.py` imports them;
- `_moe_C`, later `_moe_C_stable_libtorch`: routing of every mixture of experts;
- `_vllm_fa2_C`: FLASH_ATTN is the first choice of backend except for compute capability 10 (`_get_backend_priorities`),
  and takes FlashAttention 2 wherever that is not 9 or 10 (`get_flash_attn_version`). It requires 8.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.parser import HeaderParser
from enum import Enum
from typing import IO, Any

from packaging.requirements import InvalidRequirement, Requirement

from vpatch.errors import Code, Failure, Problem
from vpatch.gpu import fatbin
from vpatch.gpu.fatbin import Arch, DeviceCode, Form, compiling_driver, names, parse_gpu


@dataclass(frozen=True)
class Extension:
    """One shared object."""

    name: str
    binaries: tuple[tuple[DeviceCode, ...], ...] = ()  # fat binaries, usually one for each CUDA source file
    needed: tuple[str, ...] = ()  # libraries
    problem: Problem | None = None  # why it could not be read

    @property
    def images(self) -> tuple[DeviceCode, ...]:
        """The images of all fat binaries."""
        return tuple(image for binary in self.binaries for image in binary)

    def named(self, form: Form) -> tuple[str, ...]:
        """The architectures that it has machine code (`sm_120`) or PTX (`compute_80`) for, oldest first."""
        return names(image for image in self.images if image.form is form)


@dataclass(frozen=True)
class Survey:
    """What an image's extensions carry and need. A version is "" if unknown; drivers are version specifiers."""

    extensions: tuple[Extension, ...]
    cuda: str  # release that they were compiled with: "13.0"; "13" if only the library that they need shows it
    image_cuda: str  # the image's `CUDA_VERSION`
    torch: str  # release that vLLM requires
    driver: str  # Linux drivers for machine code of that CUDA: ">=580.65.06"
    ptx_driver: str  # driver branches that compile all of the PTX: ">=580"

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the command line's contract."""
        extensions = [
            {
                "name": one.name,
                "architectures": list(one.named(Form.CUBIN)),
                "ptx": list(one.named(Form.PTX)),
                "fat_binaries": len(one.binaries),
                "problem": one.problem and str(one.problem),
            }
            for one in self.extensions
        ]
        versions = {key: getattr(self, key) for key in ("cuda", "image_cuda", "torch", "driver", "ptx_driver")}
        return {**versions, "extensions": extensions}

    def lines(self) -> Iterator[str]:
        """Yield a line of text for each extension with device code, and one for what they need."""
        for one in self.extensions:
            if one.problem:
                yield f"{one.name}: {one.problem.cause}"
            elif one.images:
                yield f"{one.name}: {', '.join((*one.named(Form.CUBIN), *one.named(Form.PTX)))}"
        image = f" (the image says {self.image_cuda})" if self.image_cuda else ""
        more = self.ptx_driver and not self.driver.startswith(self.ptx_driver)
        driver = (self.driver or "unknown") + (f", {self.ptx_driver} where it compiles PTX" if more else "")
        yield f"CUDA {self.cuda or 'unknown'}{image}, torch {self.torch or 'unknown'}, driver {driver}"


class Served(Enum):
    """How well a file serves a GPU."""

    OK = "ok"
    JIT = "jit"  # the driver must compile PTX first
    LACKS = "lacks"
    OTHERS = "others"  # it is for other GPUs by design
    NOTHING = "nothing"  # no device code: it serves any GPU


@dataclass(frozen=True)
class Fitness:
    """How well one file serves a GPU, and why."""

    name: str  # or the pattern of a needed file that no file matches
    level: Served
    because: str

    def __str__(self) -> str:
        return f"{self.name}: {self.level.value}: {self.because}"


# The files that every GPU of an architecture or a newer one needs: their pattern, and what they are.
_NEEDS = {
    "vllm/_C*.so": ("vLLM's kernels", Arch(0, 0)),
    "vllm/_moe_C*.so": ("the kernels of mixtures of experts", Arch(0, 0)),
    "vllm/vllm_flash_attn/_vllm_fa2_C*.so": ("FlashAttention 2", Arch(8, 0)),
}


def _matches(pattern: str, name: str) -> bool:
    stem = re.escape(pattern.removesuffix("*.so"))
    return bool(re.fullmatch(rf"(.*/)?{stem}(_stable_libtorch)?\.([^/]*\.)?so", name))


def survey(files: Iterable[tuple[str, IO[bytes]]], metadata: str | None, env: Mapping[str, str]) -> Survey:
    """Survey the shared objects of an image, each a name and a seekable file, with vLLM's METADATA and the `env`."""
    extensions: list[Extension] = []
    for name, file in files:
        try:
            extensions.append(Extension(name, *fatbin.read(name, file)))
        except Failure as failure:  # a damaged file matters only if an architecture is required
            extensions.append(Extension(name, problem=failure.problems[0]))
    extensions.sort(key=lambda one: one.name)
    isas = [image.isa for one in extensions for image in one.images if image.form is Form.PTX]
    needed = "\n".join(library for one in extensions for library in one.needed)
    linked = re.findall(r"^libcudart\.so\.(\d{1,3})(?!\d)", needed, re.MULTILINE)
    cuda = fatbin.release_of(isas) or max(linked, key=int, default="")
    image_cuda = env.get("CUDA_VERSION", "")
    driver = fatbin.oldest_driver(cuda or image_cuda)
    return Survey(tuple(extensions), cuda, image_cuda, _torch(metadata or ""), driver, compiling_driver(isas))


def lacking(found: Survey, arch: str) -> tuple[Problem, ...]:
    """Return why the GPU of architecture `arch` (`sm_120`, `12.0`) is not served; nothing if it is."""
    lacks = [one for one in fitness(found, arch) if one.level is Served.LACKS]
    what = f"lacks sm_{parse_gpu(arch)}"
    return tuple(Problem(what, one.name, one.because, code=Code.GPU_UNSERVED) for one in lacks)


def fitness(found: Survey, arch: str) -> tuple[Fitness, ...]:
    """Return how well each file serves the GPU of architecture `arch`, and each needed file that is missing."""
    gpu = parse_gpu(arch)
    needs = {pattern: what for pattern, (what, since) in _NEEDS.items() if since <= gpu}
    there = [_fitness(one, gpu, needed=any(_matches(need, one.name) for need in needs)) for one in found.extensions]
    missing = [need for need in needs if not any(_matches(need, one.name) for one in found.extensions)]
    return (*there, *(Fitness(need, Served.LACKS, f"no such file: {needs[need]}") for need in missing))


def _fitness(one: Extension, gpu: Arch, *, needed: bool) -> Fitness:
    if one.problem:
        return Fitness(one.name, Served.LACKS, one.problem.cause)
    if not one.images:
        return Fitness(one.name, Served.LACKS if needed else Served.NOTHING, "no device code in it")
    decisive = _decisive(one, gpu)
    worst = max((_best(binary, gpu) for binary in decisive), key=(Served.OK, Served.JIT, Served.LACKS).index)
    if worst is not Served.LACKS:
        return Fitness(one.name, worst, "; ".join(_reasons(one, gpu)))
    if not needed and all(image.arch.suffix or image.arch > gpu for image in one.images):
        return Fitness(one.name, Served.OTHERS, f"for {', '.join(names(one.images))} only")
    without = [binary for binary in decisive if _best(binary, gpu) is Served.LACKS]
    have = ", ".join(names(image for binary in without for image in binary))
    return Fitness(one.name, worst, f"nothing for it in {len(without)} of {len(one.binaries)} fat binaries: {have}")


def _best(binary: tuple[DeviceCode, ...], gpu: Arch) -> Served:
    kinds = {image.form for image in binary if image.serves(gpu)}
    return Served.OK if Form.CUBIN in kinds else Served.JIT if kinds else Served.LACKS


def _decisive(one: Extension, gpu: Arch) -> list[tuple[DeviceCode, ...]]:
    # Kernels that every GPU needs are compiled for each architecture of the build, others only for those that use them.
    # So it means little that many fat binaries hold nothing for a GPU, or that one holds something. But all kernels of
    # the first sort are among those built for the newest architecture up to the GPU's own.
    cubins = [image.arch for image in one.images if image.form is Form.CUBIN]
    plain = [arch for arch in cubins if not arch.suffix] or cubins
    newest = max((arch.number for arch in plain if arch.number <= gpu.number), default=None)
    built = {(Form.CUBIN, arch) for arch in plain if arch.number == newest}
    decisive = [binary for binary in one.binaries if any((image.form, image.arch) in built for image in binary)]
    return decisive or list(one.binaries)


def _reasons(one: Extension, gpu: Arch) -> Iterator[str]:
    for level, kind in ((Served.OK, Form.CUBIN), (Served.JIT, Form.PTX)):
        binaries = [binary for binary in one.binaries if _best(binary, gpu) is level]
        used = [image for binary in binaries for image in binary if image.form is kind and image.serves(gpu)]
        if used:
            driver = compiling_driver(image.isa for image in used)
            how = "run" if level is Served.OK else f"by JIT (driver {driver or 'any'})"
            yield f"{len(binaries)} of {len(one.binaries)} fat binaries {how}: {', '.join(names(used))}"


def _torch(metadata: str) -> str:
    """Return the one release of torch that a METADATA file requires, or the range."""
    for line in HeaderParser().parsestr(metadata).get_all("Requires-Dist", ()):
        with suppress(InvalidRequirement):
            if (wanted := Requirement(line)).name == "torch" and not wanted.marker:
                return str(wanted.specifier).removeprefix("==")
    return ""
