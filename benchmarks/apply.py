"""Time `vpatch apply` and `vpatch status` as whole processes on the real vLLM 0.20.2, next to two rivals.

    python benchmarks/apply.py [--rounds N] [--patches N]

vpatch's own overlays are applied, or N patch files of N modules: changes between this release and the next one.

(a) The lower bound: a process that imports libcst and parses the touched files once.
(b) A plain string-replace patcher of the same files, plus `py_compile` of each.

Every round runs all of them one after the other, so that other load on the machine affects all of them alike.
Figures are medians. The last line and the exit code report whether the targets hold: on an applied tree,
status takes at most 1.0 x (a) and apply 1.1 x (a), a cold apply takes at most 1.4 x (a), and the peak memory is at most
100 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

VERSION, NEXT = "0.20.2", "0.21.0"
VPATCH = [sys.executable, "-m", "vpatch"]
# Installers compile what they install; without this variable, so does the first run from a checkout.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

FLOOR = """
import sys
import libcst
for path in sys.argv[1:]:
    libcst.parse_module(open(path, "rb").read())
"""

STRINGS = """
import json, pathlib, py_compile, sys
for path, (old, new) in json.loads(pathlib.Path(sys.argv[1]).read_text()).items():
    file = pathlib.Path(path)
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    py_compile.compile(path, doraise=True)
"""

PATCHES = """
import sys
from pathlib import Path
from benchmarks.porting import write_patches
write_patches(Path(sys.argv[1]), int(sys.argv[2]), (sys.argv[3], sys.argv[4]))
"""


def run(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; return its wall time in seconds and its peak memory in MiB."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")
    return seconds, usage.ru_maxrss / 1024


def replacements(pristine: Path, applied: Path, files: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return, by file, the one text that a string patcher searches for and its replacement."""
    found = {}
    for file in files:
        old, new = ((tree / file).read_text() for tree in (pristine, applied))
        start = max(0, _shared(old, new) - 400)  # enough context to be unique
        end = min(_shared(old[::-1], new[::-1]), len(old) - start, len(new) - start)
        found[file] = (old[start : len(old) - end], new[start : len(new) - end])
    return found


def _shared(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def main() -> int:
    """Run the rounds, print the table and check the targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patches", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        pristine, applied, cold, strings = (base / name for name in ("pristine", "applied", "cold", "strings"))
        run([*VPATCH, "fetch", VERSION, str(pristine)])
        for copy in (applied, cold, strings):
            shutil.copytree(pristine, copy)
        chosen = write_patches(base / "patches", arguments.patches)
        said = subprocess.run([*VPATCH, "apply", "--json", *chosen, applied], check=True, capture_output=True).stdout
        touched = [f for f in json.loads(said)["changed"] if (pristine / f).exists() and f.endswith(".py")]
        job = base / "strings.json"

        def string_patcher() -> tuple[float, float]:
            for file in touched:
                shutil.copy(pristine / file, strings / file)
            todo = replacements(pristine, applied, touched)
            job.write_text(json.dumps({str(strings / file): pair for file, pair in todo.items()}))
            return run([sys.executable, "-c", STRINGS, str(job)])

        def cold_apply() -> tuple[float, float]:
            shutil.rmtree(cold)
            shutil.copytree(pristine, cold)
            os.sync()  # else the first fsync of `apply` would wait for the copy, too
            return run([*VPATCH, "apply", *chosen, str(cold)])

        rivals: dict[str, Callable[[], tuple[float, float]]] = {
            "(a) floor: import libcst, parse": lambda: run(
                [sys.executable, "-c", FLOOR, *(str(pristine / file) for file in touched)]
            ),
            "(b) string replace + py_compile": string_patcher,
            "vpatch apply, cold": cold_apply,
            "vpatch apply, applied": lambda: run([*VPATCH, "apply", *chosen, str(applied)]),
            "vpatch status, applied": lambda: run([*VPATCH, "status", *chosen, str(applied)]),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in rivals}
        for measure in rivals.values():
            measure()  # warm the page cache and the tools' bytecode
        for _ in range(arguments.rounds):
            for name, measure in rivals.items():
                times[name].append(measure())
        size = sum((pristine / file).stat().st_size for file in touched) // 1024
    what = f"{arguments.patches} patch files" if arguments.patches else "the default overlays"
    print(f"{what} change {len(touched)} modules, {size} KiB")
    return judge(times)


def write_patches(folder: Path, count: int) -> list[str]:
    """Write patch files, each of another module; return the options that select these alone, [] for none."""
    if not count:
        return []
    folder.mkdir()
    # In a process of its own: those that are measured would begin with the peak memory of this one.
    subprocess.run([sys.executable, "-c", PATCHES, folder, str(count), VERSION, NEXT], check=True)
    names = [word for file in sorted(folder.iterdir()) for word in ("--overlay", file.stem)]
    return ["--no-project", "--patches", str(folder), *names]


def judge(times: dict[str, list[tuple[float, float]]]) -> int:
    """Print medians, ratios and peaks; return 1 if a target is missed."""
    medians = {name: statistics.median(seconds for seconds, _ in runs) for name, runs in times.items()}
    peaks = {name: max(peak for _, peak in runs) for name, runs in times.items()}
    floor, plain, *ours = medians
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, {len(times[floor])} rounds, vLLM {VERSION}")
    for name, median in medians.items():
        ratio = f"{median / medians[floor]:5.2f} x (a) {median / medians[plain]:6.2f} x (b)"
        print(f"{name:32} {median * 1000:7.0f} ms {ratio} {peaks[name]:6.0f} MiB")
    limits = dict(zip(ours, (1.4, 1.1, 1.0), strict=True))
    missed = [name for name, limit in limits.items() if medians[name] > limit * medians[floor]]
    missed += [f"memory of {name}" for name in ours if peaks[name] > 100]
    print("targets: " + (f"missed: {', '.join(missed)}" if missed else "met"))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
