"""Write README's table from the overlays' own fields and `vpatch matrix`: `python -m tests.readme`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

from vpatch.core.catalogue import discover
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State
from vpatch.matrix.verdicts import Row, read_rows

from tests.blocks import put
from tests.paths import ROOT
from tests.releases import RELEASES

README = ROOT / "README.md"
RECORD = ROOT / "docs/matrix.json"
STALE = "run `python -m tests.readme`"
# Releases newer than those the tests know are reported by the scheduled workflow.
KNOWN = tuple(word for release in RELEASES for word in ("--vllm", release))


def overlays() -> str:
    """Render the table of vpatch's own overlays, by what users see, as Markdown; releases are those of the record."""
    ours = (item for item in discover() if item.origin.startswith("vpatch "))
    rows = read_rows(RECORD)
    head = ["| you see | overlay | vLLM | upstream |", "|---|---|---|---|"]
    return "\n".join([*head, *(_row(item, ", ".join(_pending(item, rows))) for item in ours), ""])


def _pending(item: Catalogued, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the ranges of releases that need an overlay."""

    def needs(row: Row) -> bool:
        return any(cell.verdict.id == item.id and cell.verdict.state is State.PENDING for cell in row.cells)

    for is_pending, group in groupby(rows, needs):
        first, *others = (row.name for row in group)
        if is_pending:
            yield f"{first} to {others[-1]}" if others else first


def _row(item: Catalogued, releases: str) -> str:
    overlay = item.overlay
    links = (
        f"[{link.removeprefix('vllm-project/vllm')}](https://github.com/{link.replace('#', '/pull/')})"
        for link in overlay.upstream
    )
    name = f"`{item.id}`{' (opt-in)' if overlay.opt_in else ''}"
    return f"| {'<br>'.join(map(_seen, overlay.symptoms))} | {name} | {releases} | {', '.join(links)} |"


def _seen(symptom: str) -> str:
    """Render an error message as code, a sentence as text."""
    return f"`{symptom}`" if re.match(r"\w+Error: ", symptom) else symptom.replace("<", "&lt;")


def main() -> None:
    """Write `docs/matrix.json`, the baseline of `vpatch matrix`, with one line a release, and then the table."""
    vpatch = (sys.executable, "-m", "vpatch", "matrix", *KNOWN)
    ran = json.loads(subprocess.run([*vpatch, "--json"], check=True, stdout=subprocess.PIPE).stdout)
    rows = ",\n".join(map(json.dumps, ran["rows"]))
    RECORD.write_text(f'{{"schema": {ran["schema"]}, "command": "matrix", "rows": [\n{rows}\n]}}\n')
    README.write_text(put(README.read_text(), "overlays", overlays()))


if __name__ == "__main__":
    main()
