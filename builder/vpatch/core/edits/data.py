"""Add a data file below `vllm/`, such as JSON or a template, or replace one whose content is known.

In a patch file, the whole text stands below the path, each line with a + before it, and above that, of a file that is
replaced, the hash of its old content:

    --- vllm/a/table.json
    @@ sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    +{"1": 2}
    \\ No newline at end of file

No mark fits in these files. So each has a companion, whose only line has the file's path and hash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.core.edits.definitions import AddFile
from vpatch.core.marks import mark_of_data, marks_in
from vpatch.core.overlay import COMPANIONS, DATA
from vpatch.core.parse import Lost
from vpatch.core.verdict import EditFinding, Found
from vpatch.manifest import sha256

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpatch.core.workspace import Workspace

_ADDRESS = re.compile(r"@@ sha256 ([0-9a-f]{64})")
_NO_NEWLINE = "\\ No newline at end of file"
_SHOWN = 12  # digits of a hash in messages


@dataclass(frozen=True)
class AddData:
    """Put a text in the place of a data file, written as UTF-8.

    Raises:
        ValueError: `file` is not the path of a data file below `vllm/`, or the text has a mark.

    Attributes:
        file: its path, which `vpatch.core.overlay.DATA` matches.
        text: its whole text.
        old: the sha256 of the content that it replaces; "" if there is no such file.
    """

    file: str
    text: str
    old: str
    scope: str = ""

    def __post_init__(self) -> None:
        if not DATA.fullmatch(self.file):
            raise ValueError(f"{self.file} is no data file below vllm/")
        if found := marks_in(self.text.encode()):
            raise ValueError(f"`# vpatch: {found[0]}` in it would be taken for a mark")

    @property
    def companion(self) -> AddFile:
        """What has the mark instead of the file."""
        name = f"data_{sha256(self.file.encode())[:16]}.py"
        return AddFile(COMPANIONS + name, mark_of_data(self.file, sha256(self.text.encode())))

    def state(self, files: Workspace, overlay: str) -> EditFinding:
        """Compare the file with both contents by their hashes; see `Edit`."""
        data = files.read(self.file)
        found, new = "" if data is None else sha256(data), sha256(self.text.encode())
        if found == new:
            return EditFinding(Found.AFTER, context=((),))
        if found == self.old:
            return EditFinding(Found.BEFORE, regions=((),))
        if not found:
            raise Lost(f"no such file; expected is the one of sha256 {self.old[:_SHOWN]}, which the patch replaces")
        there, made = f"its sha256 is {found[:_SHOWN]}", new[:_SHOWN]
        if not self.old:
            raise Lost(
                f"exists already, and is another file, upstream's or your own: {there}, that of the patch {made}"
            )
        known = f"neither {self.old[:_SHOWN]}, which the patch replaces, nor {made}, which it makes"
        raise Lost(f"{there}, {known}: upstream changed it, or you did")

    def apply(self, files: Workspace, overlay: str) -> None:
        """Write the file; see `Edit`."""
        files.put(self.file, self.text.encode())


def read_data(file: str, rows: Sequence[str], *, new: bool) -> AddData:
    """Read what a patch file has below the path of a data file.

    Args:
        file: the path.
        rows: the lines.
        new: whether the file comes.

    Raises:
        ValueError: it is written otherwise; the message names what is wrong.
    """
    lines = [*rows]
    while lines and not lines[-1]:
        lines.pop()
    address = None if new or not lines else _ADDRESS.fullmatch(lines.pop(0))
    if not (new or address):
        raise ValueError("a data file is replaced as a whole: `@@ sha256 HASH`, of its old content, begins it")
    cut = lines[-1:] == [_NO_NEWLINE]
    lines = lines[:-1] if cut else lines
    if wrong := next((line for line in lines if not line.startswith("+")), None):
        raise ValueError(f"each line of a data file begins with +, not as `{wrong}`")
    if "" in lines:
        raise ValueError("each line of a data file begins with +, an empty one, too")
    text = "".join(f"{line[1:]}\n" for line in lines)
    return AddData(file, text.removesuffix("\n") if cut else text, address[1] if address else "")


def written_data(before: str | None, after: str) -> str:
    """Return what `read_data` reads, as text.

    Args:
        before: the text of the file; None if it comes.
        after: its text after the change.
    """
    *lines, last = after.split("\n")
    rows = [] if before is None else [f"@@ sha256 {sha256(before.encode())}"]
    rows += [f"+{line}" for line in lines] + ([f"+{last}", _NO_NEWLINE] if last else [])
    return "".join(f"{row}\n" for row in rows)
