"""Line diffs: what one changes in each file, and the text of a file after it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import TYPE_CHECKING

from vpatch.installation import needing
from vpatch.porting.paths import NOWHERE, moved, placed

if TYPE_CHECKING:
    from unidiff.patch import Hunk as RawHunk
    from unidiff.patch import PatchedFile

_LONGEST = 20_000  # characters; unidiff takes the square of it for some lines
_NO_NEWLINE = "\\ No newline at end of file\n"
_SIGNATURE = re.compile(r"-- ?\n")  # the last lines of a mail
_EPOCH = re.compile(r"19(?:70-01-01|69-12-31)")  # what `diff -N` says of a file that is not there
_MODES = {"120000": "it is a symbolic link", "160000": "it is a submodule"}
_ERRORS = {
    "Unexpected hunk": "a hunk has no lines `--- PATH` and `+++ PATH` above it",
    "Target without source": "`+++` has no matching `---` above it",
}


@dataclass(frozen=True)
class LineHunk:
    """Lines of a file and their replacements, each with its line end.

    Attributes:
        header: its header, without the code behind it.
        line: the number of the header's line in the diff.
        start: the number of its first line in the file, from 1; 0 for a file without lines.
        old: the lines before, with those around the change.
        new: the lines after.
    """

    header: str
    line: int
    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FileDiff:
    """What a diff does to a file, of any kind.

    Attributes:
        path: its path below site-packages, or below the repository if it lies beside `vllm/`.
        line: the number of the diff's line where it begins.
        new: whether the diff adds it.
        odd: why no overlay can have the change, "" if one can: it is deleted, renamed, binary or the like.
        hunks: its hunks.
    """

    path: str
    line: int
    new: bool
    odd: str
    hunks: tuple[LineHunk, ...]


@dataclass(frozen=True)
class LineChange:
    """What a patch does to a module of vLLM.

    Attributes:
        path: the module, relative to site-packages.
        new: whether the patch adds it.
        passes: its hunks; more than one tuple if the patch has the module more than once, each for the text that the
            one before leaves.
    """

    path: str
    new: bool
    passes: tuple[tuple[LineHunk, ...], ...]

    @property
    def hunks(self) -> tuple[LineHunk, ...]:
        """All hunks, in their order."""
        return tuple(hunk for hunks in self.passes for hunk in hunks)


@dataclass(frozen=True)
class Carried:
    """A patch as its carrier keeps it.

    Attributes:
        name: an id for the overlay.
        subject: one line.
        description: why it exists, "" if nothing says so.
        upstream: the pull requests of vLLM that it names, as `vllm-project/vllm#N`.
        base: the release that it names in a line `Base: VERSION`.
        commit: the commit that its mail was made from, "" if unknown.
        changes: what it does to modules, one for each; empty if it is of tests and documents alone.
        left_out: a sentence for each kind of files that are left out.
    """

    name: str
    subject: str
    description: str
    upstream: tuple[str, ...]
    base: str | None
    commit: str
    changes: tuple[LineChange, ...]
    left_out: tuple[str, ...]


def parse(text: str, above: int = 0) -> tuple[FileDiff, ...]:
    """Parse a unified diff, with any text around it.

    Args:
        text: the diff.
        above: how many lines of the user's file stand above it; messages count them.

    Raises:
        ValueError: it has hunks that cannot be read, or paths that lead out of site-packages; the message is one
            sentence that begins with the line.
        Failure: unidiff is not installed.
    """
    with needing("import", "cannot read diffs"):
        from unidiff.errors import UnidiffParseError
        from unidiff.patch import PatchSet
    # Other languages have other words behind the backslash; unidiff knows one.
    lines = [_NO_NEWLINE if line.startswith("\\ ") else line for line in re.findall(r"[^\n]*\n|[^\n]+", text)]
    _check_lines(lines, above)
    rest = iter(lines)
    try:
        found = PatchSet(rest)
    except (UnidiffParseError, ValueError) as error:
        raise ValueError(_explained(str(error), lines, len(lines) - length_hint(rest), above)) from error
    _check_all_read(found, lines, above)
    return tuple(_file(one, above) for one in found)


def _check_lines(lines: Sequence[str], above: int) -> None:
    if long := next((at for at, line in enumerate(lines, 1) if len(line) > _LONGEST), 0):
        raise ValueError(f"line {above + long}: it has more than {_LONGEST:,} characters")
    if combined := next((at for at, line in enumerate(lines, 1) if line.startswith("@@@ ")), 0):
        raise ValueError(f"line {above + combined}: a combined diff, of a merge; make one against a single parent")


def _explained(message: str, lines: Sequence[str], read: int, above: int) -> str:
    """Return what is wrong where unidiff stopped, which says no line, after as many lines as it has read."""
    if known := next((text for begin, text in _ERRORS.items() if message.startswith(begin)), ""):
        return f"line {above + read}: {known}"
    header = next((at for at in range(read, 0, -1) if lines[at - 1].startswith("@@ ")), read)
    where = f"line {above + header}: the hunk "
    if "shorter" in message:
        return f"{where}has fewer lines than its header counts; the file may be truncated"
    if "longer" in message:
        return f"{where}has more lines than its header counts, at line {above + read}"
    if "line expected" in message:
        return f"{where}ends at line {above + read}, before as many lines as its header counts"
    return f"line {above + read}: vpatch cannot read it as a diff"


def _check_all_read(found: Sequence[PatchedFile], lines: Sequence[str], above: int) -> None:
    """Refuse lines of a diff that unidiff took for text around it."""
    headers = {end: begin for begin, end in (_extent(hunk, lines) for file in found for hunk in file)}
    inside = {at for end, begin in headers.items() for at in range(begin, end + 1)}
    first = found[0].diff_line_no or 0 if found else len(lines)
    for at, line in enumerate(lines, 1):
        if at in inside:
            continue
        if at - 1 in headers and _continues(lines[at - 1 : at + 1]):
            raise ValueError(f"line {above + headers[at - 1]}: the hunk has more lines than its header counts")
        if at > first and line.startswith("@@"):
            raise ValueError(f"line {above + at}: `{line.strip()[:60]}` is no header of a hunk")
        if line.startswith("Only in ") and line.endswith(".py\n"):
            raise ValueError(f"line {above + at}: the diff lacks a file; make it with `diff -ruN`")


def _extent(hunk: RawHunk, lines: Sequence[str]) -> tuple[int, int]:
    """Return the numbers of a hunk's first and last line."""
    numbers = [line.diff_line_no for line in hunk if line.diff_line_no]
    end = numbers[-1]
    return numbers[0] - 1, end + (lines[end : end + 1] == [_NO_NEWLINE])


def _continues(behind: Sequence[str]) -> bool:
    """Whether the lines behind a hunk, of which it counts none, go on with it."""
    line, after = behind[0], "".join(behind[1:])
    if line.startswith("--- ") and after.startswith("+++ "):
        return False
    return line[0] in "+- " and not _SIGNATURE.fullmatch(line)


def _file(found: PatchedFile, above: int) -> FileDiff:
    info = found.patch_info if found.patch_info and found.patch_info[0].startswith("diff --git ") else None
    # Without git's head, unidiff has the number of the line `+++`.
    line = above + (found.diff_line_no or 1) - (not info and not found.is_binary_file)
    old, new = found.source_file, found.target_file
    try:
        path, odd = placed(old, new), _odd(found, info or ())
    except ValueError as error:
        raise ValueError(f"line {line}: {error}") from error
    hunks = tuple(_hunk(hunk, above) for hunk in found)
    added = old == NOWHERE or (not info and len(hunks) == 1 and not hunks[0].start and not hunks[0].old)
    if not (hunks or odd or (added and any("..e69de29" in text for text in info or ()))):  # git's name of an empty file
        raise ValueError(f"line {line}: {path} has no hunks; the diff may be truncated")
    ends = {text.endswith("\r\n") for hunk in hunks for text in (*hunk.old, *hunk.new) if text.endswith("\n")}
    if len(ends) > 1:
        raise ValueError(f"line {line}: {path} has lines that end with CRLF and lines that end with LF")
    if hidden := next((hunk for hunk in hunks if hunk.start and not hunk.old), None):
        raise ValueError(f"line {hidden.line}: the hunk shows no lines around its own; make it with `git diff -U3`")
    return FileDiff(path, line, added, odd, hunks)


def _odd(found: PatchedFile, info: Sequence[str]) -> str:
    old, new, modes = found.source_file, found.target_file, (found.source_mode, found.target_mode)
    moves = {line.split(" from ")[0] for line in info if line.startswith(("rename from ", "copy from "))}
    if link := next((_MODES[mode] for mode in modes if mode in _MODES), ""):
        return link
    if found.is_binary_file:
        return "the change is binary"
    if new == NOWHERE or _EPOCH.match(found.target_timestamp or ""):
        return "it is deleted"
    if "copy" in moves:
        return "it is a copy of another file"
    if moves or moved(old, new):
        return "it is renamed"
    return "its mode changes" if None not in modes and modes[0] != modes[1] else ""


def _hunk(found: RawHunk, above: int) -> LineHunk:
    old, new = list[str](), list[str]()
    last: tuple[list[str], ...] = ()
    for line in found:
        if line.line_type == "\\":
            for side in last:
                side[-1] = side[-1].removesuffix("\n")
            continue
        last = {"-": (old,), "+": (new,), " ": (old, new)}.get(line.line_type, ())
        for side in last:
            side.append(line.value)
    header = f"@@ -{found.source_start},{found.source_length} +{found.target_start},{found.target_length} @@"
    begin = next(line.diff_line_no for line in found if line.diff_line_no) - 1
    return LineHunk(header, above + begin, found.source_start, tuple(old), tuple(new))
