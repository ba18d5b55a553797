"""Whether bytecode is of a source, found out without loading it: what lies in a tree may be hostile.

`marshal.loads` makes room for as many items as the data says, which takes 16 GB for 21 bytes, and a damaged code object
may crash the interpreter. So the data is read here, item by item, and becomes no code.

The interpreters of images run this file as text: it imports the standard library only.
Source of the format: `Python/marshal.c` of CPython 3.10 to 3.14.
"""

from __future__ import annotations

import importlib.util
import marshal
import re
import sys
import warnings
from _imp import source_hash
from typing import Any

HEADER = 16
"""Bytes of a `.pyc` before the code (PEP 552)."""

_HASH_BASED, _CHECKED = 0b01, 0b10  # of the flags
_SINGLETONS = b"0NFTS."
_FIXED = {b"i": 4, b"I": 8, b"g": 8, b"y": 16}  # the bytes of a number
_TEXTS = {b"z": 1, b"Z": 1, b"a": 4, b"A": 4, b"t": 4, b"u": 4, b"s": 4}  # the bytes of a length
_SEQUENCES = {b")": 1, b"(": 4, b"[": 4, b"<": 4, b">": 4}
# Of a code object: its numbers; the objects that follow, with the file's name among them; then the first line's number,
# and tables, of which the first has the lines of a traceback.
_NUMBERS, _OBJECTS, _FILE, _TABLES = (5, 8, 5, 2) if sys.version_info >= (3, 11) else (6, 8, 6, 1)

_Key = Any  # a kind with bytes or with the numbers of other items


def is_trusted(head: bytes, stamp: tuple[int, int] | None) -> bool:
    """Whether Python runs a `.pyc`, of which this is the header, without a look at its code or its source.

    Args:
        head: the header.
        stamp: the source's modification time, in whole seconds, and its size in bytes; None: they say nothing.
    """
    flags = int.from_bytes(head[4:8], "little")
    if len(head) < HEADER or flags & ~(_HASH_BASED | _CHECKED) or flags & _CHECKED:
        return False  # Python refuses it, or compares it with the source
    expected = b"".join((word & 0xFFFFFFFF).to_bytes(4, "little") for word in stamp or ())
    return is_hash_based(head) or stamp is None or head[8:HEADER] == expected


def is_hash_based(head: bytes) -> bool:
    """Whether a `.pyc` names its source by a hash, in place of a time and a size."""
    return bool(head[4] & _HASH_BASED)


def is_of(content: bytes, name: str, source: bytes, *, comparable: bool = True) -> bool | None:
    """Whether it does no harm that a `.pyc` lies beside a source: Python does not run it, or it is of this source.

    Args:
        content: of the `.pyc`.
        name: of the `.pyc`.
        source: the source.
        comparable: whether this interpreter may compile the source, which takes long for a hostile one.

    Returns:
        None if only another interpreter can tell.
    """
    if not is_trusted(content[:HEADER], None):
        return True
    if is_hash_based(content) and content[8:HEADER] != source_hash(int.from_bytes(content[:4], "little"), source):
        return False
    if comparable and content[:4] == importlib.util.MAGIC_NUMBER:
        return is_compiled_from(content, source, name)
    return True if is_hash_based(content) else None


def is_compiled_from(content: bytes, source: bytes, name: str) -> bool:
    """Whether a `.pyc` of this interpreter, called `name`, has the code of a source; file names do not count.

    False, too, for a source that cannot be compiled.
    """
    level = re.search(r"\.opt-([12])\.pyc$", name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fresh = compile(source, "", "exec", dont_inherit=True, optimize=int(level[1]) if level else 0)
        ours, known = marshal.dumps(fresh), dict[_Key, int]()
        # The same code differs in size by a file's name, and by what it refers to instead of writing it again.
        if len(content) > 4 * len(ours) + 10_000:
            return False
        return _Items(content[HEADER:], known).item() == _Items(ours, known).item()
    except (SyntaxError, ValueError, IndexError, TypeError, RecursionError, MemoryError):
        return False


class _Items:
    """Marshalled data; equal items have equal numbers, also those of other data with the same table `known`."""

    def __init__(self, data: bytes, known: dict[_Key, int]) -> None:
        self._data, self._at = data, 0
        self._known = known
        self._shared: list[int | None] = []  # the items that others refer to; None while one is being read

    def item(self) -> int:
        """Read an item; raise ValueError, IndexError or RecursionError if the data is damaged."""
        (first,) = self._bytes(1)
        kind = bytes([first & 0x7F])
        if kind == b"r":
            if (there := self._shared[self._length(4)]) is None:
                raise ValueError("an item is in itself")
            return there
        place = len(self._shared)
        if first & 0x80:
            self._shared.append(None)
        key = self._content(kind)
        found = self._known.setdefault(key, len(self._known))
        if first & 0x80:
            self._shared[place] = found
        return found

    def _content(self, kind: bytes) -> _Key:
        if kind in _FIXED:
            return kind, self._bytes(_FIXED[kind])
        if kind in _TEXTS:
            text = self._bytes(self._length(_TEXTS[kind]))
            return kind if kind == b"s" else b"u", text  # whether a text is interned differs from run to run
        if kind in _SEQUENCES:
            items = [self.item() for _ in range(self._length(_SEQUENCES[kind]))]
            return b"(" if kind == b")" else kind, *(sorted(items) if kind in b"<>" else items)
        if kind == b"l":
            return kind, self._bytes(2 * abs(int.from_bytes(self._bytes(4), "little", signed=True)))
        if kind == b":":
            return kind, self.item(), self.item(), self.item()
        if kind == b"c":
            return kind, *self._code()
        if kind in _SINGLETONS:
            return (kind,)
        raise ValueError("no item of bytecode")

    def _code(self) -> list[_Key]:
        numbers = [self._bytes(4) for _ in range(_NUMBERS)]
        objects = [self.item() for _ in range(_OBJECTS)]
        line = self._bytes(4)
        tables = [self.item() for _ in range(_TABLES)]
        del objects[_FILE], tables[0]
        return [*numbers, *objects, line, *tables]

    def _length(self, size: int) -> int:
        length = int.from_bytes(self._bytes(size), "little")
        if length > len(self._data):  # each item takes a byte, and a reference leads to an earlier one
            raise ValueError("longer than the data")
        return length

    def _bytes(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise ValueError("cut short")
        self._at += count
        return found
