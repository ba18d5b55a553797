"""Find known lines in a log of any size, of which the end is read; it may be binary, colored, or of two servers."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from vpatch.errors import shell
from vpatch.known.index import Index, KnownMatch, in_line, signs_in

MOST = 16 << 20  # bytes: what is read in a second
_BLOCK = 1 << 20
_LONGEST = 4096  # bytes of a line that are compared, around the word by which it was found


@dataclass(frozen=True)
class Tail:
    """The end of a stream.

    Attributes:
        blocks: its bytes, in order.
        read: how many they are.
        size: how many the whole stream has.
    """

    blocks: tuple[bytes, ...]
    read: int
    size: int

    @property
    def text(self) -> str:
        """All of it, as text."""
        return b"".join(self.blocks).decode("utf-8", "replace")


def silent() -> str:
    """Return what to do where no error line is known: wrong answers and hangs leave none."""
    found, asked = shell("vpatch", "find", "answers", "are", "garbage"), shell("vpatch", "plan", "--help")
    return f"describe what you see, as by {found}; {asked} shows how to ask what your server's command needs"


def tail(stream: BinaryIO, most: int = MOST) -> Tail:
    """Read the end of a stream: of a file by going there, of a pipe by keeping the last bytes.

    Raises:
        OSError: it cannot be read.
    """
    skipped = 0
    about = os.fstat(stream.fileno())
    if stat.S_ISREG(about.st_mode):
        skipped = max(about.st_size - most, stream.tell())
        stream.seek(skipped)
    kept, held, size = deque[bytes](), 0, skipped
    while block := stream.read(_BLOCK):
        kept.append(block)
        held, size = held + len(block), size + len(block)
        while held - len(kept[0]) >= most:
            held -= len(kept.popleft())
    return Tail(tuple(kept), held, size)


def known_in(index: Index, found: Tail) -> list[KnownMatch]:
    """Return what the end of a log has: for each overlay and each other cause, the first line that has a known one."""
    matches: dict[object, KnownMatch] = {}
    signs: set[str] = set()
    looked: set[bytes] = set()
    for place, line in _candidates(index, found.blocks):
        form = line.translate(None, b"0123456789")  # numbers do not matter, and most lines differ by nothing else
        if form not in looked:
            looked.add(form)
            text = line.decode("utf-8", "replace")
            signs |= signs_in(index, text)
            for match in (replace(one, row=place) for one in in_line(index, text)):
                first = matches.setdefault(match.source.key, match)
                matches[match.source.key] = min(first, match, key=_row)
    return index.with_possible(sorted(matches.values(), key=_row), signs)


def _row(match: KnownMatch) -> int:
    return match.row


def _candidates(index: Index, blocks: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the place of each line of the log that has all pieces of a known one or of a sign, and that line."""
    lines = (*(line for line, _ in index.lines), *index.signs)
    known = dict.fromkeys(line.pieces for line in lines if line.pieces)
    before, begun = b"", 0
    for block in blocks:
        # A line may begin in the block before.
        whole = before[-_LONGEST:] + block
        offset = begun - len(whole) + len(block)
        begun += len(block)
        lowered = whole.lower()
        for rarest, *others in known:
            at = lowered.find(rarest)
            while at >= 0:
                start = max(lowered.rfind(b"\n", 0, at) + 1, at - _LONGEST)
                end = lowered.find(b"\n", at, at + _LONGEST)
                end = at + _LONGEST if end < 0 else end
                if all(lowered.find(piece, start, end) >= 0 for piece in others):
                    yield offset + start, whole[start:end]
                at = lowered.find(rarest, end)
        before = block
