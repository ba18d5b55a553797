"""The fat binaries of an ELF file: NVIDIA's container of device code for several GPU architectures.

A section holds fat binaries one after the other; a linker may put zeros between them. Each is a header of 16 bytes and
entries; an entry is a header of 64 bytes or more and an image, usually compressed. NVIDIA documents none of it. The
layout, and the two flags for the suffixes of architectures, are what `cuobjdump` of CUDA 13.5 says of every
architecture that CUDA 13.5 compiles for: `tests/image/cuda/headers.json`.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import IO

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from vpatch.errors import Failure, Problem
from vpatch.image.cuda.arch import Arch, Image, Kind

# Of programs with device code that is linked apart, the second section has the parts and the first what they became.
SECTIONS = (".nv_fatbin", "__nv_relfatbin")

_HEADER = struct.Struct("<IHHQ")  # magic number, version, its own size, the size of the entries
_MAGIC = 0xBA55ED50
_ENTRY = struct.Struct("<H2xIQ8xHHI8xQ16x")  # kind, its own size, the image's, minor and major version, arch, flags
_SUFFIXES = {0x100000: "a", 0x200000: "f"}
_CHUNK = 1 << 20
_MOST_SECTIONS = 1 << 16

# What pyelftools raises for a file that is damaged: it checks little.
_DAMAGED = (
    ELFError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


def read(name: str, file: IO[bytes]) -> tuple[tuple[tuple[Image, ...], ...], tuple[str, ...]]:
    """Give the fat binaries of a shared object, in file order, and the names of the libraries that it needs.

    `file` must be able to seek; little of it is read.

    Raises:
        Failure: it is no ELF file, is cut short, or has something else where a fat binary should be.
    """
    try:
        size = file.seek(0, io.SEEK_END)
        places, needed = _sections(file)
        chosen = next(filter(None, (places[section] for section in SECTIONS)), [])
        for start, length in chosen:
            if start + length > size:
                raise ValueError(f"it is cut short: its device code ends at byte {start + length} of {size}")
        return tuple(binary for place in chosen for binary in _fat_binaries(file, *place)), needed
    except _DAMAGED as error:
        raise Failure(Problem("cannot read extension", name, _cause(error))) from error


def _sections(file: IO[bytes]) -> tuple[dict[str, list[tuple[int, int]]], tuple[str, ...]]:
    """Give where the sections with fat binaries lie (offset, size; in bytes), and the needed libraries."""
    file.seek(0)
    if file.read(4) != b"\x7fELF":
        raise ValueError("not an ELF file")
    elf = ELFFile(file)
    if elf.num_sections() > _MOST_SECTIONS:
        raise ValueError(f"it says that it has {elf.num_sections()} sections")
    places: dict[str, list[tuple[int, int]]] = {section: [] for section in SECTIONS}
    needed: tuple[str, ...] = ()
    for section in elf.iter_sections():
        if section.name in SECTIONS and section["sh_type"] != "SHT_NOBITS" and section["sh_size"]:
            places[section.name].append((section["sh_offset"], section["sh_size"]))
        elif isinstance(section, DynamicSection):
            needed = tuple(tag.needed for tag in section.iter_tags("DT_NEEDED"))  # type: ignore[attr-defined]
    return places, needed


def _fat_binaries(file: IO[bytes], start: int, size: int) -> Iterator[tuple[Image, ...]]:
    at, stop = start, start + size
    while (at := _after_zeros(file, at, stop)) < stop:
        magic, version, header, room = _HEADER.unpack(_exactly(file, at, _HEADER.size))
        if (magic, version) != (_MAGIC, 1) or header < _HEADER.size or header + room > stop - at:
            raise ValueError(f"no fat binary at byte {at}")
        yield tuple(_images(file, at + header, at + header + room))
        at += header + room


def _images(file: IO[bytes], at: int, stop: int) -> Iterator[Image]:
    while at < stop:
        kind, header, size, minor, major, arch, flags = _ENTRY.unpack(_exactly(file, at, _ENTRY.size))
        if header < _ENTRY.size or header + size > stop - at:
            raise ValueError(f"no entry of a fat binary at byte {at}")
        suffix = "".join(letter for flag, letter in _SUFFIXES.items() if flags & flag)
        known = Kind(kind) if kind in (Kind.PTX.value, Kind.CUBIN.value) else Kind.OTHER
        yield Image(known, Arch(arch // 10, arch % 10, suffix), (major, minor) if known is Kind.PTX else (0, 0))
        at += header + size


def _after_zeros(file: IO[bytes], at: int, stop: int) -> int:
    step = _HEADER.size  # mostly there are none
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


def _cause(error: Exception) -> str:
    return str(error) if type(error) is ValueError else f"a damaged ELF file: {str(error) or type(error).__name__}"
