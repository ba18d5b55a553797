"""GPU architectures, and which code runs on which.

The rules are those of NVIDIA's CUDA Programming Guide: chapter 1.3, "The CUDA platform", on the compatibility of cubins
and of PTX, and 5.1.2.1 to 5.1.2.3 on architecture-specific (`a`) and family-specific (`f`) code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from vpatch.errors import Failure, Problem


@dataclass(frozen=True, order=True)
class Arch:
    """A compute capability, `Arch(12, 0)`; of code also what it is bound to: `a` that GPU, `f` its family."""

    major: int
    minor: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def number(self) -> tuple[int, int]:
        """It without the suffix."""
        return self.major, self.minor


class Kind(Enum):
    """What an image in a fat binary is; the value is its number there."""

    PTX = 1
    CUBIN = 2
    OTHER = 0


@dataclass(frozen=True)
class Image:
    """One piece of device code: machine code (a cubin) or PTX, which the driver compiles when it loads it.

    `isa` is the version of the PTX instruction set, (0, 0) for what is no PTX.
    """

    kind: Kind
    arch: Arch
    isa: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return f"{'compute' if self.kind is Kind.PTX else 'sm'}_{self.arch}"

    def serves(self, gpu: Arch) -> bool:
        """Say whether this GPU can run it: a cubin as it is, PTX once compiled."""
        if self.arch.suffix == "a":
            fits = self.arch.number == gpu.number
        elif self.arch.suffix == "f" or self.kind is Kind.CUBIN:
            fits = self.arch.major == gpu.major and self.arch.minor <= gpu.minor
        else:
            fits = self.arch.number <= gpu.number
        return fits and self.kind is not Kind.OTHER


def parse_gpu(text: str) -> Arch:
    """Read the architecture of a GPU, `sm_120` or `12.0`.

    Raises:
        Failure: it is neither.
    """
    found = re.fullmatch(r"sm_(\d{1,2})(\d)|(\d{1,2})\.(\d)", text, re.ASCII)
    if not found:
        raise Failure(Problem("not a GPU architecture", text, "it reads like sm_120 or 12.0, which is an RTX 5090"))
    major, minor = filter(None, found.groups())
    return Arch(int(major), int(minor))
