"""Time the start of a command with `vpatch run` on the real vLLM 0.20.2, beside the command alone.

    python benchmarks/run.py [--rounds N]

Every round runs all of them one after the other, so that other load on the machine affects all of them alike. Figures
are medians. The last line and the exit code report whether the targets hold: `vpatch run` adds at most 200 ms if it has
a farm, and at most 2 s if it has to make one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

VERSION = "0.20.2"
VPATCH = [sys.executable, "-m", "vpatch"]
WARM_S, COLD_S = 0.2, 2.0


def seconds(command: Sequence[str | Path]) -> float:
    """Run a command; return its wall time."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> int:
    """Run the rounds and print the medians; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        base, farms = Path(folder), Path(folder, "farms")
        seconds([*VPATCH, "fetch", VERSION, base / "vllm"])
        seconds([sys.executable, "-m", "venv", "--without-pip", base / "env"])
        (packages,) = base.glob("env/lib/python3*/site-packages")
        shutil.copytree(base / "vllm", packages, dirs_exist_ok=True)
        command = [str(base / "env/bin/python"), "-c", "pass"]
        run = [*VPATCH, "run", "--cache", str(farms), "--", *command]
        seconds(run)  # compiles vpatch itself
        times: dict[str, list[float]] = {"the command alone": [], "vpatch run, cold": [], "vpatch run, warm": []}
        for _ in range(rounds):
            shutil.rmtree(farms)
            for name, measured in zip(times, (command, run, run), strict=True):
                times[name].append(seconds(measured))
    alone, cold, warm = (statistics.median(found) for found in times.values())
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, {rounds} rounds, vLLM {VERSION}")
    for name, median in zip(times, (alone, cold, warm), strict=True):
        print(f"{name:20} {median * 1000:6.0f} ms, {(median - alone) * 1000:6.0f} ms more than the command")
    missed = [name for name, more, limit in (("cold", cold, COLD_S), ("warm", warm, WARM_S)) if more - alone > limit]
    print("targets: " + (f"missed: {', '.join(missed)}" if missed else "met"))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
