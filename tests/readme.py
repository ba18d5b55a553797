"""Write README's tables from the overlays' own fields and `vpatch matrix`: `python -m tests.readme`."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from vpatch.core.catalogue import discover
from vpatch.core.overlay import Catalogued

from tests.blocks import put
from tests.paths import ROOT
from tests.releases import RELEASES

README = ROOT / "README.md"
RECORD = ROOT / "docs/matrix.json"
STALE = "run `python -m tests.readme`"
# Releases newer than those the tests know are reported by the scheduled workflow.
KNOWN = tuple(word for release in RELEASES for word in ("--vllm", release))


def overlays() -> str:
    """Render the table of vpatch's own overlays, by what users see, as Markdown."""
    ours = (item for item in discover() if item.origin.startswith("vpatch "))
    return "\n".join(["| you see | overlay | upstream |", "|---|---|---|", *map(_row, ours), ""])


def _row(item: Catalogued) -> str:
    overlay = item.overlay
    links = (
        f"[{link.removeprefix('vllm-project/vllm')}](https://github.com/{link.replace('#', '/pull/')})"
        for link in overlay.upstream
    )
    name = f"`{item.id}`{' (opt-in)' if overlay.opt_in else ''}"
    return f"| {'<br>'.join(map(_seen, overlay.symptoms))} | {name} | {', '.join(links)} |"


def _seen(symptom: str) -> str:
    """Render an error message as code, a sentence as text."""
    return f"`{symptom}`" if re.match(r"\w+Error: ", symptom) else symptom


def main() -> None:
    """Write both tables and `docs/matrix.json`, the baseline of `vpatch matrix`, with one line a release."""
    vpatch = (sys.executable, "-m", "vpatch", "matrix", *KNOWN)
    matrix = subprocess.run([*vpatch, "--markdown"], check=True, stdout=subprocess.PIPE, text=True).stdout
    README.write_text(put(put(README.read_text(), "overlays", overlays()), "matrix", matrix))
    ran = json.loads(subprocess.run([*vpatch, "--json"], check=True, stdout=subprocess.PIPE).stdout)
    rows = ",\n".join(map(json.dumps, ran["rows"]))
    RECORD.write_text(f'{{"schema": {ran["schema"]}, "command": "matrix", "rows": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
