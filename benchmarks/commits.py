"""Time the main commands of two vpatch installations on the real vLLM 0.20.2, and count what they parse and read.

    python -m benchmarks.commits BEFORE AFTER [--rounds N]

BEFORE and AFTER are interpreters that have a vpatch each. Every round runs each command with both, so that other load
on the machine affects both alike. Figures are medians. The exit code is 1 if a command takes more than 1.1 times as
long, or parses or reads more.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.releases import tree_of

VERSION, SLOWER = "0.20.2", 1.1
COUNTED = """
import ast, collections, json, sys
import libcst.native
counts = collections.Counter()
def counting(name, function):
    def counted(*arguments, **options):
        counts[name] += 1
        return function(*arguments, **options)
    return counted
libcst.native.parse_module = counting("libcst", libcst.native.parse_module)
ast.parse = counting("ast", ast.parse)
def opened(event, arguments):
    if event == "open" and "/vllm/" in str(arguments[0]):
        counts["opened"] += 1
sys.addaudithook(opened)
from vpatch.cli import main
sys.argv = ["vpatch", *sys.argv[1:]]
try:
    main()
except SystemExit:
    sys.stderr.write("\\n" + json.dumps(counts))
"""


def seconds(command: Sequence[str]) -> float:
    """Run a command; return its wall time. Its exit code may be 0 or 1: `doctor` finds no environment."""
    start = time.perf_counter()
    ran = subprocess.run(command, capture_output=True, check=False)
    if ran.returncode > 1:
        raise SystemExit(f"{' '.join(command)}: exit {ran.returncode}: {ran.stderr.decode()}")
    return time.perf_counter() - start


def counts(python: str, arguments: Sequence[str]) -> Counter[str]:
    """Return how often a command parses, by parser, and opens a file of vLLM."""
    ran = subprocess.run([python, "-c", COUNTED, *arguments], capture_output=True, text=True, check=False)
    return Counter(json.loads(ran.stderr.splitlines()[-1]))


def main() -> int:
    """Run the rounds and print a row for each command; return 1 if one is slower, or does more."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("pythons", nargs=2, metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    worse = []
    with tempfile.TemporaryDirectory() as folder:
        cold, applied = (str(Path(folder, name)) for name in ("cold", "applied"))
        shutil.copytree(tree_of(VERSION), applied)
        seconds([options.pythons[0], "-m", "vpatch", "apply", applied])
        commands = {
            "apply, cold": ["apply", cold],
            "apply, applied": ["apply", applied],
            "status": ["status", applied],
            "verify": ["verify", applied],
            "doctor": ["doctor", applied],
            "plan": ["plan", "--preset", "qwen3.6-35b-5090-32k"],
        }
        for name, arguments in commands.items():
            times: dict[str, list[float]] = {python: [] for python in options.pythons}
            found = []
            for turn in range(options.rounds + 2):  # the first compiles, the second counts
                for python in options.pythons:
                    shutil.rmtree(cold, ignore_errors=True)
                    shutil.copytree(tree_of(VERSION), cold)
                    if turn == 1:
                        found.append(counts(python, arguments))
                    else:
                        times[python].append(seconds([python, "-m", "vpatch", *arguments]))
            before, after = (statistics.median(measured[1:]) for measured in times.values())
            print(f"{name:16} {before * 1000:6.0f} ms {after * 1000:6.0f} ms  {after / before:.2f} x  {found}")
            more = any(found[1][what] > found[0][what] for what in found[1])
            worse += [name] if more or after / before > SLOWER else []
    print(f"worse: {', '.join(worse) or 'none'}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
