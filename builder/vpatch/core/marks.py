"""The mark: the comment `# vpatch: <overlay>` on every statement that an edit adds or changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

_WORD = b"vpatch:"  # in every mark; files of vLLM rarely have it
_MARK = re.compile(r"#\s*vpatch:\s*([a-z0-9]+(?:-[a-z0-9]+)*)")

_DATA = re.compile(rb"^# (vllm/\S++) has no mark in it; its sha256 is [0-9a-f]{64}$", re.MULTILINE)
_COMMENT = re.compile(rb"(?<![ \t])[ \t]*+" + _MARK.pattern.encode())


def mark(overlay: str) -> str:
    """Return the comment that marks a statement as this overlay's."""
    return f"# vpatch: {overlay}"


def mark_of_data(file: str, digest: str) -> str:
    """Return the line of a companion that stands for the mark of a data file with this sha256."""
    return f"# {file} has no mark in it; its sha256 is {digest}\n"


def data_marked(companion: bytes) -> list[str]:
    """Return the data files that a companion marks."""
    return [found.decode() for found in _DATA.findall(companion)] if begins_marked(companion) else []


def overlays_of(files: Mapping[str, bytes]) -> dict[str, set[str]]:
    """Return the overlays that changed each of some files: those of its marks, and those of companions that mark it."""
    found = {file: {*marks_in(data)} for file, data in files.items()}
    for companion, data in files.items():
        for file in data_marked(data):
            if file in found:
                found[file] |= found[companion]
    return found


def marked_by(text: str) -> list[str]:
    """Return the overlay of every mark in `text`, in order."""
    return _MARK.findall(text)


def marks_in(content: bytes) -> list[str]:
    """Return the overlay of every mark in a file, in order."""
    return marked_by(content.decode("utf-8", "replace")) if _WORD in content else []


def lines_marked(content: bytes, overlay: str) -> list[int]:
    """Return the number of every line of a file that has the mark of an overlay, in order."""
    if _WORD not in content:
        return []
    lines = enumerate(content.splitlines(), 1)
    return [number for number, line in lines if _WORD in line and overlay in marks_in(line)]


def without_marks(content: bytes) -> bytes:
    """Return a module without marks; what only a mark was on stays as an empty line."""
    return _COMMENT.sub(b"", content)


def begins_marked(content: bytes) -> bool:
    """Whether the first line of a module is a mark alone, as vpatch writes it to each module that it adds."""
    return _MARK.fullmatch(content.partition(b"\n")[0].decode("utf-8", "replace")) is not None


def marked_files(overlay: str, files: Iterable[str], read: Callable[[str], bytes | None]) -> tuple[str, ...]:
    """Return the files of a tree that have a mark of an overlay."""
    return tuple(file for file in files if overlay in marks_in(read(file) or b""))


def with_marks(comment: str, overlays: Iterable[str]) -> str:
    """Add marks to a comment, behind its text; they are sorted."""
    names = sorted({*marked_by(comment), *overlays})
    return "  ".join([*filter(None, [_MARK.sub("", comment).strip()]), *map(mark, names)])
