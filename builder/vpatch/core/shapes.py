"""The further shapes of a patch file: what it is on releases whose code has another form.

`fix@0.33.0.vpatch` lies beside `fix.vpatch`, and is that overlay on 0.33.0. They are read as one file: joined, each
begins with its own `Format: 1`, which no line below a head can be. That file is what `vpatch apply` keeps in a tree,
and what the overlay's hash is of: `cat fix.vpatch fix@*.vpatch | sha256sum`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from vpatch.core.patch_file import SUFFIX, PatchFile, parse

_OF_ALL = ("Description", "Upstream", "Drop-When", "Releases")
"""The fields that say something of the overlay, and not of a shape."""
_BEGIN = re.compile(rb"^Format: ", re.MULTILINE)


def shape_name(name: str, vllm: str) -> str:
    """Return the name of the file that has the shape of the patch file `name` for a vLLM."""
    return f"{name.removesuffix(SUFFIX)}@{vllm}{SUFFIX}"


def families(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Group the names of a folder's patch files: each with those of its further shapes.

    A shape without the file that it belongs to is there by itself; it is no patch file, and `main_of` tells.
    """
    found: dict[str, list[str]] = {}
    every = sorted(name for name in names if name.endswith(SUFFIX) and not name.startswith((".", "_")))
    for name in sorted(every, key=lambda name: "@" in name):
        found.setdefault(main if (main := main_of(name)) in every else name, []).append(name)
    return {main: tuple(more[1:]) for main, more in found.items()}


def main_of(name: str) -> str:
    """Return the name of the patch file that a file is, or is a shape of."""
    stem, at, _ = name.partition("@")
    return f"{stem}{SUFFIX}" if at else name


def joined(name: str, more: Sequence[str], read: Callable[[str], bytes]) -> bytes:
    """Read a patch file and its further shapes as one.

    Args:
        name: the patch file.
        more: the files of its further shapes.
        read: reads one of them.

    Raises:
        ValueError: a shape is for another vLLM than its name says.
    """
    data = [read(name)]
    for other in more:
        base = other.partition("@")[2].removesuffix(SUFFIX)
        if not data[-1].endswith(b"\n"):
            raise ValueError(f"{[name, *more][len(data) - 1]}: no newline at its end: it may be truncated")
        data.append(shape := read(other))
        if not re.search(rb"^Base: %s$" % re.escape(base.encode()), shape.partition(b"\n\n")[0], re.MULTILINE):
            raise ValueError(f"{other}: its head has no `Base: {base}`, as its name says")
    return b"".join(data)


def shapes(data: bytes) -> tuple[PatchFile, ...]:
    """Parse a patch file and the further shapes that are joined to it, in their order.

    Raises:
        ValueError: one of them is none; the message is one line that says where and why.
    """
    from packaging.version import Version

    first, *others = _split(data)
    main, found = parse(first), list[PatchFile]()
    for other in others:
        base = next(iter(re.findall(rb"^Base: (.*)$", other, re.MULTILINE)), b"?").decode("utf-8", "replace")
        try:
            found.append(parse(other))
        except ValueError as error:
            raise ValueError(f"its shape for {base}: {error}") from error
        if wrong := [field for field in _OF_ALL if field in found[-1].head]:
            raise ValueError(f"its shape for {base}: {wrong[0]} belongs in the patch file itself")
    bases = [Version(one.head["Base"]) for one in (main, *found)]
    if twice := next((base for k, base in enumerate(bases) if base in bases[:k]), None):
        raise ValueError(f"it has two shapes for {twice}")
    return main, *found


def _split(data: bytes) -> Iterator[bytes]:
    """Split joined patch files; what is before the first head belongs to the first."""
    starts = [found.start() for found in _BEGIN.finditer(data)][1:]
    for start, end in zip([0, *starts], [*starts, len(data)], strict=True):
        yield data[start:end]
