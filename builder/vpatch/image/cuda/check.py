"""Whether an image can serve on a GPU, as far as the device code of its compiled extensions decides it.

The door to this package. Where the extra `vpatch[image]` is not installed, importing this module raises the `Failure`
that says so: import it where it is used.

A GPU does not need every file. FlashAttention 3 is for Hopper and FlashMLA for sm_90a and sm_100f by design; an RTX
5090 (sm_120) uses neither. So a file that carries nothing but code bound to other GPUs (`a`) or families (`f`) is named
and passes. What vLLM cannot do without on any GPU is listed, and fails where it lacks the architecture or is not there:

- `_C` and `_C_stable_libtorch` (releases have the one, the other or both): `vllm/platforms/cuda.py` imports them;
- `_moe_C`, later `_moe_C_stable_libtorch`: routing of every mixture of experts;
- `_vllm_fa2_C`: FLASH_ATTN is the first choice of backend but for compute capability 10 (`_get_backend_priorities`),
  and takes FlashAttention 2 wherever that is not 9 or 10 (`get_flash_attn_version`). It wants 8.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from vpatch.errors import Failure, Problem

try:
    from vpatch.image.cuda.arch import Arch, Image, Kind, parse_gpu
    from vpatch.image.cuda.drivers import compiling_driver
    from vpatch.image.cuda.survey import Extension, Survey, as_json, lines, names, survey
except ModuleNotFoundError as error:
    raise Failure(Problem("cannot look", str(error.name), "not installed: pip install 'vpatch[image]'")) from error

__all__ = ["Extension", "Says", "Survey", "Verdict", "as_json", "judge", "lines", "survey", "verdicts"]


class Says(Enum):
    """What a file says to a GPU."""

    OK = "ok"
    JIT = "jit"  # the driver must compile PTX first
    LACKS = "lacks"
    OTHERS = "others"  # it is for other GPUs by design
    NOTHING = "nothing"  # no device code: any GPU will do


@dataclass(frozen=True)
class Verdict:
    """What one file says. `name` is the pattern of a needed file where there is none such."""

    name: str
    says: Says
    because: str

    def __str__(self) -> str:
        return f"{self.name}: {self.says.value}: {self.because}"


@dataclass(frozen=True)
class _Need:
    pattern: str
    what: str
    since: Arch

    def meets(self, name: str) -> bool:
        stem = re.escape(self.pattern.removesuffix("*.so"))
        return bool(re.fullmatch(rf"(.*/)?{stem}(_stable_libtorch)?\.([^/]*\.)?so", name))


_NEEDS = (
    _Need("vllm/_C*.so", "vLLM's kernels", Arch(0, 0)),
    _Need("vllm/_moe_C*.so", "the kernels of mixtures of experts", Arch(0, 0)),
    _Need("vllm/vllm_flash_attn/_vllm_fa2_C*.so", "FlashAttention 2", Arch(8, 0)),
)


def judge(found: Survey, arch: str) -> tuple[Problem, ...]:
    """Give why the GPU of architecture `arch` (`sm_120`, `12.0`) cannot be served; nothing where it can.

    Raises:
        Failure: `arch` is no architecture.
    """
    gpu = parse_gpu(arch)
    return tuple(
        Problem(f"lacks sm_{gpu}", one.name, one.because) for one in verdicts(found, arch) if one.says is Says.LACKS
    )


def verdicts(found: Survey, arch: str) -> tuple[Verdict, ...]:
    """Give what each file says to the GPU of architecture `arch`, and each needed file that is not there.

    Raises:
        Failure: `arch` is no architecture.
    """
    gpu = parse_gpu(arch)
    needs = [need for need in _NEEDS if need.since <= gpu]
    there = [_verdict(one, gpu, needed=any(need.meets(one.name) for need in needs)) for one in found.extensions]
    missing = [need for need in needs if not any(need.meets(one.name) for one in found.extensions)]
    return (*there, *(Verdict(need.pattern, Says.LACKS, f"no such file: {need.what}") for need in missing))


def _verdict(one: Extension, gpu: Arch, *, needed: bool) -> Verdict:
    if one.problem:
        return Verdict(one.name, Says.LACKS, one.problem.cause)
    if not one.images:
        return Verdict(one.name, Says.LACKS if needed else Says.NOTHING, "no device code in it")
    telling = _telling(one, gpu)
    worst = max((_best(binary, gpu) for binary in telling), key=_WORSE.index)
    if worst is not Says.LACKS:
        return Verdict(one.name, worst, "; ".join(_reasons(one, gpu)))
    if not needed and all(image.arch.suffix or image.arch > gpu for image in one.images):
        return Verdict(one.name, Says.OTHERS, f"for {', '.join(names(one.images))} only")
    without = [binary for binary in telling if _best(binary, gpu) is Says.LACKS]
    have = ", ".join(names(image for binary in without for image in binary))
    return Verdict(one.name, worst, f"nothing for it in {len(without)} of {len(one.binaries)} fat binaries: {have}")


_WORSE = (Says.OK, Says.JIT, Says.LACKS)


def _best(binary: tuple[Image, ...], gpu: Arch) -> Says:
    kinds = {image.kind for image in binary if image.serves(gpu)}
    return Says.OK if Kind.CUBIN in kinds else Says.JIT if kinds else Says.LACKS


def _telling(one: Extension, gpu: Arch) -> list[tuple[Image, ...]]:
    """Give the fat binaries that tell whether the file was built for a GPU.

    Kernels that every GPU needs are compiled for each architecture of the build, others for those that have a use for
    them: that many fat binaries hold nothing for a GPU says little, and so does one that holds something. But the
    former are all among those that were built for the newest architecture up to the GPU's own.
    """
    cubins = [image.arch for image in one.images if image.kind is Kind.CUBIN]
    plain = [arch for arch in cubins if not arch.suffix] or cubins
    newest = max((arch.number for arch in plain if arch.number <= gpu.number), default=None)
    built = {arch for arch in plain if arch.number == newest}
    telling = [
        binary for binary in one.binaries if any(image.kind is Kind.CUBIN and image.arch in built for image in binary)
    ]
    return telling or list(one.binaries)


def _reasons(one: Extension, gpu: Arch) -> Iterator[str]:
    """Say how many of the fat binaries run, and how many the driver must compile."""
    for says, kind in ((Says.OK, Kind.CUBIN), (Says.JIT, Kind.PTX)):
        binaries = [binary for binary in one.binaries if _best(binary, gpu) is says]
        used = [image for binary in binaries for image in binary if image.kind is kind and image.serves(gpu)]
        if used:
            driver = compiling_driver(image.isa for image in used)
            how = "run" if says is Says.OK else f"by JIT (driver {driver or 'any'})"
            yield f"{len(binaries)} of {len(one.binaries)} fat binaries {how}: {', '.join(names(used))}"
