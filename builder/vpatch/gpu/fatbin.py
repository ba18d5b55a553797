"""CUDA device code: GPU architectures, the fat binaries of an ELF file, and the drivers that they need.

NVIDIA's container of device code for several architectures is the fat binary. A section holds fat binaries one after
the other; a linker may put zeros between them. Each is a header of 16 bytes and entries; an entry is a header of 64
bytes or more and an image, usually compressed. NVIDIA documents none of it. The layout, and the two flags for suffixes
of architectures, are what `cuobjdump` of CUDA 13.5 reports for every architecture that CUDA 13.5 compiles for:
`tests/image/cuda/headers.json`.

Which code runs on which GPU follows NVIDIA's CUDA Programming Guide: chapter 1.3, "The CUDA platform", on compatibility
of cubins and of PTX, and 5.1.2.1 to 5.1.2.3 on architecture-specific (`a`) and family-specific (`f`) code.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import IO

from vpatch.errors import Failure, Problem, UnknownName

# In programs whose device code is linked separately, the second section has the parts and the first the result.
SECTIONS = (".nv_fatbin", "__nv_relfatbin")

_HEADER = struct.Struct("<IHHQ")  # magic number, version, its own size, the size of the entries
_MAGIC = 0xBA55ED50
_ENTRY = struct.Struct("<H2xIQ8xHHI8xQ16x")  # kind, its own size, the image's, minor and major version, arch, flags
_SUFFIXES = {0x100000: "a", 0x200000: "f"}
_CHUNK = 1 << 20
_MAX_SECTIONS = 1 << 16
# What pyelftools raises, besides its own error, for a damaged file, which it hardly checks.
_DAMAGED = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError, RecursionError)

# CUDA Toolkit 13.2 release notes, tables 2 and 3: any release of a major version runs on the driver of its first one.
_OLDEST = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}
# PTX ISA 9.3, "Release Notes": version of PTX -> CUDA release that introduced it, and driver branch. Unlike machine
# code, PTX needs a driver that knows its version: minor version compatibility does not hold for it.
_PTX = {
    (7, 0): ("11.0", 450), (7, 1): ("11.1", 455), (7, 2): ("11.2", 460), (7, 3): ("11.3", 465),
    (7, 4): ("11.4", 470), (7, 5): ("11.5", 495), (7, 6): ("11.6", 510), (7, 7): ("11.7", 515),
    (7, 8): ("11.8", 520), (8, 0): ("12.0", 525), (8, 1): ("12.1", 530), (8, 2): ("12.2", 535),
    (8, 3): ("12.3", 545), (8, 4): ("12.4", 550), (8, 5): ("12.5", 555), (8, 6): ("12.7", 565),
    (8, 7): ("12.8", 570), (8, 8): ("12.9", 575), (9, 0): ("13.0", 580), (9, 1): ("13.1", 590),
    (9, 2): ("13.2", 595), (9, 3): ("13.3", 610),
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Arch:
    """A compute capability, `Arch(12, 0)`. Code may be bound by a suffix: `a` to that GPU, `f` to its family."""

    major: int
    minor: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def number(self) -> tuple[int, int]:
        """The compute capability without the suffix."""
        return self.major, self.minor


class Form(Enum):
    """The form of an image in a fat binary; the value is its number there."""

    PTX = 1
    CUBIN = 2
    OTHER = 0


@dataclass(frozen=True)
class DeviceCode:
    """One piece of device code: machine code (a cubin), or PTX, which the driver compiles when it loads it."""

    form: Form
    arch: Arch
    isa: tuple[int, int] = (0, 0)  # version of the PTX instruction set

    def __str__(self) -> str:
        return f"{'compute' if self.form is Form.PTX else 'sm'}_{self.arch}"

    def serves(self, gpu: Arch) -> bool:
        """Whether this GPU can run it: a cubin directly, PTX once compiled."""
        if self.arch.suffix == "a":
            fits = self.arch.number == gpu.number
        elif self.arch.suffix == "f" or self.form is Form.CUBIN:
            fits = self.arch.major == gpu.major and self.arch.minor <= gpu.minor
        else:
            fits = self.arch.number <= gpu.number
        return fits and self.form is not Form.OTHER


def names(images: Iterable[DeviceCode]) -> tuple[str, ...]:
    """Return the names of the images' architectures, each once, oldest first."""
    return tuple(map(str, sorted(set(images), key=lambda image: (image.arch, str(image)))))


def parse_gpu(text: str) -> Arch:
    """Parse the architecture of a GPU, `sm_120` or `12.0`. Raises `UnknownName` if it is neither."""
    found = re.fullmatch(r"sm_(\d{1,2})(\d)|(\d{1,2})\.(\d)", text, re.ASCII)
    if not found:
        raise UnknownName(Problem("not a GPU architecture", text, "it reads like sm_120 or 12.0, which is an RTX 5090"))
    major, minor = filter(None, found.groups())
    return Arch(int(major), int(minor))


def oldest_driver(cuda: str) -> str:
    """Return the Linux drivers that run code of a CUDA release ("13.0" or "13"): ">=580.65.06"; "" if unknown."""
    oldest = _OLDEST.get(cuda.partition(".")[0])
    return f">={oldest}" if oldest else ""


def release_of(isas: Iterable[tuple[int, int]]) -> str:
    """Return the CUDA release that introduced the newest of some PTX versions; "" if unknown."""
    return _PTX.get(max(isas, default=(0, 0)), ("", 0))[0]


def compiling_driver(isas: Iterable[tuple[int, int]]) -> str:
    """Return the driver branches that compile PTX of these versions: ">=580"; "" if all drivers in use do."""
    newest = max(isas, default=(0, 0))
    if newest > max(_PTX):
        return f">{_PTX[max(_PTX)][1]}"
    return f">={_PTX[newest][1]}" if newest in _PTX else ""


def read(name: str, file: IO[bytes]) -> tuple[tuple[tuple[DeviceCode, ...], ...], tuple[str, ...]]:
    """Return the fat binaries of a shared object, in file order, and the names of the libraries that it needs."""
    from elftools.common.exceptions import ELFError

    try:
        size = file.seek(0, io.SEEK_END)
        places, needed = _sections(file)
        chosen = next(filter(None, (places[section] for section in SECTIONS)), [])
        for start, length in chosen:
            if start + length > size:
                raise ValueError(f"it is cut short: its device code ends at byte {start + length} of {size}")
        return tuple(binary for place in chosen for binary in _fat_binaries(file, *place)), needed
    except (ELFError, *_DAMAGED, TypeError, ValueError) as error:
        ours = type(error) is ValueError
        cause = str(error) if ours else f"a damaged ELF file: {str(error) or type(error).__name__}"
        raise Failure(Problem("cannot read extension", name, cause)) from error


def _sections(file: IO[bytes]) -> tuple[dict[str, list[tuple[int, int]]], tuple[str, ...]]:
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    file.seek(0)
    if file.read(4) != b"\x7fELF":
        raise ValueError("not an ELF file")
    elf = ELFFile(file)
    if elf.num_sections() > _MAX_SECTIONS:
        raise ValueError(f"it says that it has {elf.num_sections()} sections")
    places: dict[str, list[tuple[int, int]]] = {section: [] for section in SECTIONS}
    needed: tuple[str, ...] = ()
    for section in elf.iter_sections():
        if section.name in SECTIONS and section["sh_type"] != "SHT_NOBITS" and section["sh_size"]:
            places[section.name].append((section["sh_offset"], section["sh_size"]))
        elif isinstance(section, DynamicSection):
            needed = tuple(tag.needed for tag in section.iter_tags("DT_NEEDED"))  # type: ignore[attr-defined]
    return places, needed


def _fat_binaries(file: IO[bytes], start: int, size: int) -> Iterator[tuple[DeviceCode, ...]]:
    at, stop = start, start + size
    while (at := _after_zeros(file, at, stop)) < stop:
        magic, version, header, room = _HEADER.unpack(_exactly(file, at, _HEADER.size))
        if (magic, version) != (_MAGIC, 1) or header < _HEADER.size or header + room > stop - at:
            raise ValueError(f"no fat binary at byte {at}")
        yield tuple(_images(file, at + header, at + header + room))
        at += header + room


def _images(file: IO[bytes], at: int, stop: int) -> Iterator[DeviceCode]:
    while at < stop:
        kind, header, size, minor, major, arch, flags = _ENTRY.unpack(_exactly(file, at, _ENTRY.size))
        if header < _ENTRY.size or header + size > stop - at:
            raise ValueError(f"no entry of a fat binary at byte {at}")
        suffix = "".join(letter for flag, letter in _SUFFIXES.items() if flags & flag)
        known = Form(kind) if kind in (Form.PTX.value, Form.CUBIN.value) else Form.OTHER
        yield DeviceCode(known, Arch(arch // 10, arch % 10, suffix), (major, minor) if known is Form.PTX else (0, 0))
        at += header + size


def _after_zeros(file: IO[bytes], at: int, stop: int) -> int:
    step = _HEADER.size  # usually there are no zeros
    while at < stop:
        rest = _exactly(file, at, min(step, stop - at)).lstrip(b"\0")
        at = min(at + step, stop) - len(rest)
        if rest:
            break
        step = min(2 * step, _CHUNK)
    return at


def _exactly(file: IO[bytes], at: int, size: int) -> bytes:
    file.seek(at)
    data = file.read(size)
    if len(data) < size:
        raise ValueError(f"it is cut short at byte {at + len(data)}")
    return data
