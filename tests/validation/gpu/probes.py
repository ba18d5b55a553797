"""Run every overlay's probes, those for a GPU too, on trees: `python -m tests.validation.gpu.probes TREE...`.

They run in this interpreter, as `vpatch test --gpus` runs them in an image's. Prints one line for each probe.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vpatch.core.catalogue import discover
from vpatch.core.overlay import Probe
from vpatch.image.checks import outcome

PATIENCE = 1800  # seconds


def run(probe: Probe, tree: Path) -> str:
    """Run one probe and return its outcome."""
    paths = os.pathsep.join(filter(None, (str(tree.resolve()), os.environ.get("PYTHONPATH"))))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-c", probe.script]
        options = {"cwd": home, "env": {**os.environ, "PYTHONPATH": paths}, "timeout": PATIENCE}
        try:
            ran = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
            said = outcome(probe.name, ran.returncode, ran.stderr, PATIENCE)
        except subprocess.TimeoutExpired:
            said = outcome(probe.name, None, "", PATIENCE)
    word = {True: "holds", False: "does not hold", None: "not run"}[said.ok]
    return f"{tree.name}: {probe.name}: {word} ({time.monotonic() - began:.0f} s) {said.because}".rstrip()


def main() -> None:
    for tree in map(Path, sys.argv[1:]):
        for probe in (probe for item in discover() for probe in item.overlay.probes):
            sys.stdout.write(run(probe, tree) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
