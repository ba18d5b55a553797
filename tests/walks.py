"""Record the pages of first hours: `python -m tests.walks [NAME...]` runs their commands and writes what they print.

`docs/walks/NAME.md` has commands in `console` blocks. What a command prints is written below it if the page has
something else there; `...`, which stands for anything, stays where the rest is still true. What differs between two
runs, such as a digest or a time, is written as `...`.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.docs.machine import walking_machine_in
from tests.docs.recipe import COMMAND, Printed, played
from tests.docs.registry import PYTHON, WALKS
from tests.paths import ROOT

STALE = "run `python -m tests.walks`"
CONSOLE = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)

_VARIES = re.compile(
    r"(?<=\(digest )[0-9a-f]{12}"
    r"|(?<=sha256:)[0-9a-f]{64}"
    r"|(?<=vpatch@)[0-9a-f]{40}"
    r"|(?<=vpatch )0\.0\.1\.dev\d+\+g[0-9a-f]+"
    r"|(?<=Python )3\.\d+\.\d+(?= \()"
    r"|(?<= in )\d+\.\d+ ?s\b"
    r"|(?<=; read ).* of wheels \(.*\)"
    r"|(?<= files in )\S+ \(.*\s.*MB read(?=\))"
    r"|(?<=\()/\S+(?=/\.cache/)"
)
"""What another run, machine or commit prints in another way."""


def recorded(text: str, printed: Sequence[Printed]) -> str:
    """Return a page on which each command prints what it printed."""
    left = iter(printed)
    written = CONSOLE.sub(lambda block: _block(block[0], left), text)
    assert next(left, None) is None, "as many commands as were run"
    return written


def _block(text: str, printed: Iterator[Printed]) -> str:
    _, *parts = COMMAND.split(text)
    steps = [(command, next(printed)) for command in parts[::2]]
    before = parts[1::2]
    return "".join(
        f"$ {command}{old if one.as_expected else stable(one.found)}"
        for (command, one), old in zip(steps, before, strict=True)
    )


def stable(text: str) -> str:
    """Return what a command printed as a page has it."""
    for on_page, here in PYTHON.items():
        text = text.replace(here, on_page)
    return _VARIES.sub("...", text)


def main(names: Sequence[str]) -> None:
    """Write the pages, or those of these names, and name each that is another now."""
    pages = [page for page in WALKS if not names or Path(page).stem in names]
    with tempfile.TemporaryDirectory() as top, walking_machine_in(Path(top)) as machine:
        for page in pages:
            printed = played(page, WALKS[page], Path(top, Path(page).stem), machine)
            before = (ROOT / page).read_text("utf-8")
            if (after := recorded(before, printed)) != before:
                (ROOT / page).write_text(after, "utf-8")
                sys.stdout.write(f"{page}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
