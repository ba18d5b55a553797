"""Each overlay's probes on vLLM's own code, without a GPU: on a release as published, and patched.

    python -m tests.overlays.probing [RELEASE...]

prints a table of releases, by default all from 0.20 on. A cell has what the probes found on stock and on
patched code, and is empty where the overlay does not apply. The exit status is 1 if a cell is not as the overlay's
state says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.version import Version
from vpatch.core.catalogue import discover
from vpatch.image.checks import Check, outcome

from tests.releases import FACTS, RELEASES, shown, tree_of
from tests.validation.cpu.comparison import Comparison, ran
from tests.validation.cpu.trees import patched_tree

Outcomes = Mapping[str, tuple[int, str]]
"""By name of a probe, its exit status and what it wrote to stderr."""

OF = {item.id: [probe for probe in item.overlay.probes if not probe.gpu] for item in discover()}
SCRIPTS = {probe.name: probe.script for probes in OF.values() for probe in probes}
LIMIT_S = 120
PROBED = [release for release in RELEASES if Version(release) >= Version("0.20")]
"""Before 0.20 the environments lack a package of vLLM's, and most overlays have nothing to do."""
MARKS = {True: "passes", False: "fails", None: "cannot run"}


def run_scripts(release: str, tree: Path, scripts: Mapping[str, str]) -> Outcomes:
    """Run scripts on a tree, in copies of one process that has imported vLLM."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "scripts.json")
        file.write_text(json.dumps(scripts))
        found = ran("probes", release, tree, str(file), str(LIMIT_S), ready="bare")
    return {name: (code, stderr) for name, (code, stderr) in found.items()}


def on_both(release: str, more: Mapping[str, str] | None = None) -> Comparison:
    """Run all probes, and more scripts, on both trees of a release."""
    trees = (tree_of(release), patched_tree(release, *FACTS))
    return Comparison(*(run_scripts(release, tree, SCRIPTS | {**(more or {})}) for tree in trees))


def found(overlay: str, outcomes: Outcomes) -> Iterator[Check]:
    """Yield what each probe of an overlay found."""
    for probe in OF[overlay]:
        yield outcome(probe.name, *outcomes[probe.name], limit_s=LIMIT_S)


def cell(overlay: str, release: str, seen: Comparison) -> tuple[str, bool]:
    """Return what an overlay's probes found on both trees, in words, and whether that is as its state says."""
    state = shown(overlay, release)
    if state == "not_applicable":
        return "", True
    stock, patched = ([one.ok for one in found(overlay, outcomes)] for outcomes in seen)
    wanted = [state == "merged"] * len(stock)
    text = " → ".join(", ".join(dict.fromkeys(MARKS[ok] for ok in oks)) for oks in (stock, patched))
    return text, stock == wanted and all(patched)


def main(arguments: Sequence[str]) -> int:
    """Print the table; return the exit status."""
    releases = arguments or PROBED
    wrong, rows = [], {overlay: [f"| {overlay} "] for overlay in FACTS}
    for release in releases:
        seen = on_both(release)
        for overlay, row in rows.items():
            text, right = cell(overlay, release, seen)
            row.append(f" {text} ")
            wrong += [] if right else [f"{overlay} on {release}: {shown(overlay, release)}, but {text}"]
    table = ["| overlay | " + " | ".join(releases) + " |", "|---" * (len(releases) + 1) + "|"]
    sys.stdout.write("\n".join([*table, *("|".join(row) + "|" for row in rows.values()), *wrong]) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
