"""ELF files with fat binaries, made by hand, for the reader's tests."""

from __future__ import annotations

import importlib.util
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

MAGIC = 0xBA55ED50
SUFFIXES = {"": 0, "a": 0x100000, "f": 0x200000}
PTX, CUBIN = 1, 2
SECTION = struct.Struct("<IIQQQQIIQQ")  # a section's header
COUNT, HEADERS = 60, 40  # where the ELF header has the number of sections, and the place of their headers


def entry(image: str, payload: bytes = bytes(8), *, kind: int | None = None, isa: tuple[int, int] = (9, 0)) -> bytes:
    """Return the entry for `sm_120f` or `compute_80`, with a payload."""
    found = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", image)
    assert found
    virtual, number, suffix = found.groups()
    kind = kind or (PTX if virtual == "compute" else CUBIN)
    minor, major = (isa[1], isa[0]) if kind == PTX else (8, 1)
    start = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(payload), 0, 0, minor, major, int(number))
    return start + struct.pack("<IIQQQ", 0, 0, 0x11 | SUFFIXES[suffix], 0, 0) + payload


def box(entries: bytes, *, magic: int = MAGIC, version: int = 1, header: int = 16, size: int | None = None) -> bytes:
    """Return a fat binary of some entries."""
    return struct.pack("<IHHQ", magic, version, header, len(entries) if size is None else size) + entries


def boxes(*binaries: str) -> bytes:
    """Return fat binaries, each written as `sm_80 compute_80`."""
    return b"".join(box(b"".join(map(entry, images.split()))) for images in binaries)


def elf(sections: Mapping[str, bytes], needed: Iterable[str] = (), *, empty: Iterable[str] = ()) -> bytes:
    """Return a shared object that needs some libraries, with these sections; those in `empty` have no content."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    tags = b"".join(struct.pack("<QQ", 1, strings.index(name.encode())) for name in needed) + bytes(16)
    every = {**sections, **dict.fromkeys(empty, b""), ".dynstr": strings, ".dynamic": tags, ".shstrtab": b""}
    names = every[".shstrtab"] = b"\0" + b"".join(name.encode() + b"\0" for name in every)
    body, headers = bytearray(64), bytearray(64)
    for name, data in every.items():
        size = 4096 if name in empty else len(data)  # as where the content was moved to a file of its own
        kind = {".dynstr": 3, ".shstrtab": 3, ".dynamic": 6}.get(name, 8 if name in empty else 1)
        link = [*every].index(".dynstr") + 1 if name == ".dynamic" else 0
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        headers += SECTION.pack(at, kind, 0, 0, len(body), size, link, 0, 8, 16 * (kind == 6))
        body += data + bytes(-len(data) % 8)
    count = len(every) + 1
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, len(body), 0, 64, 0, 0, 64, count, count - 1)
    body[:64] = b"\x7fELF\x02\x01\x01" + bytes(9) + header
    return bytes(body + headers)


def extension(*binaries: str, needed: Iterable[str] = ("libcudart.so.13",)) -> bytes:
    """Return a shared object with fat binaries, each written as `sm_80 compute_80`."""
    return elf({".text": bytes(32), ".nv_fatbin": boxes(*binaries)}, needed)


def without_device_code() -> bytes:
    """Return a real shared object without device code."""
    spec = importlib.util.find_spec("libcst.native")
    assert spec
    return Path(str(spec.origin)).read_bytes()
