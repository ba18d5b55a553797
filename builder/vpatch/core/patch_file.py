"""Patch files, `NAME.vpatch`: an overlay as data. To read one runs nothing of it.

    Format: 1
    Subject: Bound the index of a state
    Upstream: vllm-project/vllm#50021
    Base: 0.20.2

    --- vllm/model_executor/layers/fla/ops/fused_recurrent.py
    @@ fused_recurrent_gated_delta_rule_fwd_kernel / if USE_INITIAL_STATE
     index = load(indices)
    +index = min(index, last)
     state = load(states + index)

The fields of the head are those of Debian's DEP-3, as far as it has them: a line that begins with a space goes on with
the field above, and ` .` is an empty line. Below the head, `--- PATH` begins the hunks of a module, and `+++ PATH` the
lines of a new one. Data files are there as a whole, see `vpatch.core.edits.data`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from vpatch.core import nesting
from vpatch.core.edits.address import Malformed, hunks
from vpatch.core.edits.data import read_data
from vpatch.core.edits.definitions import AddFile
from vpatch.core.overlay import DATA, MODULE, Edit, Overlay, Part
from vpatch.core.verdict import State

SUFFIX = ".vpatch"
PART = "patch"
"""The name of the one part: all of a patch file is applied, or nothing."""
FORMAT = "1"
_MOST = 1 << 20  # bytes: the largest module of vLLM has as many
_HUNKS = 500  # each is compared with the others

_FIELD = re.compile(r"([A-Z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*): (\S.*)")
_FILE = re.compile(r"(---|\+\+\+)(?: (.*))?")
_LINK = re.compile(r"[\w.-]+/[\w.-]+#[0-9]+", re.ASCII)
_SPAN = re.compile(rf"([^\s-]++)(?:-([^\s-]++))? ({'|'.join(State)})")
CONTROL = re.compile(r"[^\n\t\x20-\x7e\x80-\U0010ffff]")


@dataclass(frozen=True)
class ModuleChange:
    """What a patch file does to one module, or to one data file.

    Attributes:
        path: its path.
        new: whether it comes; else it changes.
        text: the hunks, or the lines of the new module, each with a + before it; of a data file, see
            `vpatch.core.edits.data`.
        line: the number of the line above `text`.
    """

    path: str
    new: bool
    text: str
    line: int = field(default=0, compare=False)

    @property
    def is_data(self) -> bool:
        """Whether it is a data file, which comes as a whole."""
        return not MODULE.fullmatch(self.path)

    @property
    def is_whole(self) -> bool:
        """Whether the whole text of the file stands in the patch file, not hunks."""
        return self.new or self.is_data


@dataclass(frozen=True)
class PatchFile:
    """A patch file; `str` of it is its text.

    Attributes:
        head: the value of each field, in order.
        changes: its changes.
    """

    head: Mapping[str, str]
    changes: tuple[ModuleChange, ...]

    @property
    def accepted(self) -> Sequence[str]:
        """What the check of inserted code says of it on its base, and is not held against it."""
        return self.head["Accepted"].split("\n") if "Accepted" in self.head else ()

    def __str__(self) -> str:
        fields = (f"{name}: {_folded(value)}\n" for name, value in self.head.items())
        changes = (f"{'+++' if one.new else '---'} {one.path}\n{one.text}" for one in self.changes)
        return "".join([*fields, "\n", *changes])


def parse(data: bytes) -> PatchFile:
    """Parse a patch file.

    Raises:
        ValueError: it is none, or of a newer format; the message is one line that says where and why.
    """
    lines = _lines(data)
    blank = lines.index("") if "" in lines else len(lines)
    head, below = _head(lines[:blank]), blank + 1
    files = [(at, found[1], found[2] or "") for at in range(below, len(lines)) if (found := _FILE.fullmatch(lines[at]))]
    if (count := sum(line.startswith("@@") for line in lines)) > _HUNKS:
        raise ValueError(f"it has {count:,} hunks, more than {_HUNKS}")
    if not files or files[0][0] > below:
        raise ValueError(f"line {below + 1}: below the head, `--- PATH` or `+++ PATH` begins what changes")
    changes: dict[str, ModuleChange] = {}
    for (at, sign, path), (end, *_) in pairwise([*files, (len(lines), "", "")]):
        if not (MODULE.fullmatch(path) or DATA.fullmatch(path)):
            raise ValueError(f"line {at + 1}: {path!r} is no Python module or data file below vllm/")
        if path in changes:
            raise ValueError(f"line {at + 1}: {path} is there twice; put all its hunks below one `---`")
        text = "".join(f"{line}\n" for line in lines[at + 1 : end])
        changes[path] = ModuleChange(path, sign == "+++", text, at + 1)
    return PatchFile(head, tuple(changes.values()))


def overlay_of(patch: PatchFile, *more: PatchFile) -> Overlay:
    """Return the overlay that a patch file describes.

    Args:
        patch: the patch file.
        more: its further shapes.

    Raises:
        ValueError: a hunk cannot be read; the message is one line that says where and why.
    """
    from packaging.version import Version

    head = patch.head
    newest = sorted((patch, *more), key=lambda one: Version(one.head["Base"]), reverse=True)
    every = {one.head["Base"]: [edit for change in one.changes for edit in _edits(change)] for one in newest}
    # One with fewer edits is what is left where upstream has the others: it may fit where more of them are needed.
    shapes = dict(sorted(every.items(), key=lambda one: -len(one[1])))
    accepted = dict.fromkeys(line for one in (patch, *more) for line in one.accepted)
    return Overlay(
        head["Subject"],
        (Part(PART, shapes, accepted=tuple(accepted)),),
        _links(head["Upstream"]) if "Upstream" in head else (),
        _releases(head["Releases"]) if "Releases" in head else {},
    )


def explanation(patch: PatchFile) -> str:
    """Return why the patch exists, and when it is to be dropped, for users."""
    until = patch.head.get("Drop-When")
    return "\n\n".join(filter(None, [patch.head.get("Description", ""), until and f"Drop it when: {until}"]))


def _lines(data: bytes) -> list[str]:
    if len(data) > _MOST:
        raise ValueError(f"it has {len(data):,} bytes, more than {_MOST:,}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"line {line}: it is not UTF-8") from error
    if wrong := CONTROL.search(text):
        line = text.count("\n", 0, wrong.start()) + 1
        raise ValueError(f"line {line}: it has the control character {wrong[0]!r}; lines end with a line feed alone")
    if not text.endswith("\n"):
        raise ValueError("no newline at its end: it may be truncated")
    return text.split("\n")[:-1]


def _head(lines: list[str]) -> dict[str, str]:
    fields: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(lines, 1):
        if number == 1 and line != f"Format: {FORMAT}":
            newer = line.startswith("Format: ")
            cause = f"this vpatch reads format {FORMAT}, not `{line}`" if newer else f"`Format: {FORMAT}` comes first"
            raise ValueError(f"line 1: {cause}")
        if fields and line.startswith(" ") and line.strip():
            fields[-1][2].append("" if line == " ." else line[1:])
        elif found := _FIELD.fullmatch(line):
            fields.append((number, found[1], [found[2]]))
        else:
            raise ValueError(f"line {number}: the head has lines `Field: value`, and ends with an empty line")
    head: dict[str, str] = {}
    for number, name, lines_of in fields:
        value = "\n".join(lines_of)
        if name not in _FIELDS:
            raise ValueError(f"line {number}: no field is called {name}; there are {', '.join(_FIELDS)}")
        if name in head:
            raise ValueError(f"line {number}: {name} is there twice")
        try:
            _FIELDS[name](value)
        except ValueError as error:
            raise ValueError(f"line {number}: {name}: {error}") from error
        head[name] = value
    if lacking := [name for name in _NEEDED if name not in head]:
        raise ValueError(f"line {len(lines)}: the head lacks {', '.join(lacking)}")
    return head


def _folded(value: str) -> str:
    first, *more = value.split("\n")
    return "\n".join([first, *(f" {line or '.'}" for line in more)])


def _one_line(text: str) -> str:
    if "\n" in text:
        raise ValueError("only Description, Drop-When and Accepted may have more than one line")
    return text


def _date(text: str) -> str:
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise ValueError(f"{text!r} is no date, as 2026-12-31")
    return text


def _version(text: str) -> str:
    from packaging.version import Version

    try:
        Version(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no version") from error
    return text


def _links(text: str) -> tuple[str, ...]:
    links = tuple(re.split(r",\s*", text))
    if wrong := next((link for link in links if not _LINK.fullmatch(link)), None):
        raise ValueError(f"{wrong!r} is not written owner/repository#number")
    return links


def _releases(text: str) -> dict[str, str]:
    """Return the state that each span of releases has, by its specifier."""
    found = {}
    for span in re.split(r",\s*", text):
        if not (match := _SPAN.fullmatch(span)):
            raise ValueError(f"{span!r} is not written `0.30.0-0.31.0 pending`; a state is one of {', '.join(State)}")
        first, last = _version(match[1]), match[2] and _version(match[2])
        found[f">={first},<={last}" if last else f"=={first}"] = match[3]
    return found


_FIELDS: Mapping[str, Callable[[str], object]] = {
    "Format": _one_line,
    "Subject": _one_line,
    "Description": str,
    "Upstream": _links,
    "Base": _version,
    "Drop-When": str,
    "Releases": _releases,
    "Accepted": str,
    "Last-Update": _date,
    "Accepted-By": _one_line,
}
_NEEDED = ("Subject", "Base")


def _edits(change: ModuleChange) -> Iterator[Edit]:
    where = change.line + 1
    rows = change.text.split("\n")[:-1]
    if change.is_data:
        try:
            data = read_data(change.path, rows, new=change.new)
        except ValueError as error:
            raise ValueError(f"line {change.line}: {change.path}: {error}") from error
        yield from (data.companion, data)
        return
    if change.new:
        if wrong := next((k for k, row in enumerate(rows) if row and row[0] != "+"), None):
            raise ValueError(f"line {where + wrong}: each line of a new module begins with +, not as `{rows[wrong]}`")
        yield _new_module(change, "".join(f"{row[1:]}\n" for row in rows).rstrip("\n") + "\n")
        return
    first = next((k for k, row in enumerate(rows) if row.strip()), 0)
    if not rows or not rows[first].startswith("@@"):
        raise ValueError(f"line {where + first}: a hunk begins with a line `@@ ADDRESS`")
    try:
        yield from hunks(change.path, "", (), change.text)
    except Malformed as error:
        raise ValueError(f"line {where + error.line}: {error}") from error


def _new_module(change: ModuleChange, text: str) -> AddFile:
    try:
        _, encoding = nesting.decode(text.encode())
        if not encoding.startswith("utf-8"):
            raise ValueError(f"its encoding is {encoding}, and a patch file is UTF-8")
        nesting.parse(text)
        return AddFile(change.path, text)
    except (nesting.Unparsable, SyntaxError, ValueError) as error:
        raise ValueError(f"line {change.line}: {change.path}: {error}") from error
