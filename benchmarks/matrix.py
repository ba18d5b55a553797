"""Time `vpatch matrix` next to downloading and unpacking the wheels, the usual way to read their files.

    python -m benchmarks.matrix [--vllm V ...] [--warm N]

The rival is `pip download`, one wheel after the other, and Python's zipfile. It reads nothing of what it unpacks, and
removes each wheel before the next one comes. It takes 7 GB from the index and minutes; `--vllm` selects fewer
releases. `vpatch matrix` is a separate process, run once with an empty cache and then with a warm one, and computes
every cell. Its memory is that of all its processes together, each page counted once (PSS), sampled ten times a second.

The targets hold for all releases on two cores with nothing else running: at most 60 s and 3 % of the bytes with an
empty cache, 20 s with a warm one (the median), 400 MiB. The targets are for people to read; the exit code only
reports whether everything ran.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.releases import RELEASES


class Run(NamedTuple):
    """Seconds, bytes received from the index, bytes of the whole wheels, and the highest memory in MiB."""

    seconds: float
    received: int
    size: int
    memory: float


def unpacked(releases: Sequence[str], folder: Path) -> Run:
    """Download every wheel and unpack it."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    size = 0
    start = time.perf_counter()
    for release in releases:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            command = [*pip, "--no-deps", "--no-cache-dir", "--only-binary", ":all:", f"vllm=={release}", "-d", place]
            subprocess.run(command, check=True)
            (wheel,) = Path(place).glob("*.whl")
            size += wheel.stat().st_size
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(place) / "tree")
    return Run(time.perf_counter() - start, size, size, 0)


def matrix(releases: Sequence[str], cache: Path) -> Run:
    """Run `vpatch matrix`."""
    options = [word for release in releases for word in ("--vllm", release)]
    command = [sys.executable, "-m", "vpatch", "matrix", "--json", *options]
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": str(cache)}
    ) as process:
        peak = [0.0]
        watcher = threading.Thread(target=_watch, args=(process, peak))
        watcher.start()
        said, _ = process.communicate()
        seconds = time.perf_counter() - start
        watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")
    ran = json.loads(said)
    return Run(seconds, ran["bytes_read"], ran["wheel_bytes"], peak[0])


def _watch(process: subprocess.Popen[bytes], peak: list[float]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(_memory, _family(process.pid))) / 1024)
        time.sleep(0.1)


def _family(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(one for child in children for one in _family(child))]


def _memory(pid: int) -> int:
    """Return a process's share of memory in KiB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> int:
    """Run both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--vllm", action="append", help="this release (repeatable)")
    parser.add_argument("--warm", type=int, default=3, help="runs with a warm cache")
    options = parser.parse_args()
    releases = options.vllm or RELEASES
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; ", end="")
    print(f"{len(releases)} releases")
    with tempfile.TemporaryDirectory() as folder:
        cold = matrix(releases, Path(folder, "cache"))
        warm = [matrix(releases, Path(folder, "cache")) for _ in range(options.warm)]
        rival = unpacked(releases, Path(folder))
    print(f"{'download and unpack':25} {rival.seconds:7.1f} s {rival.received / 1e6:8.1f} MB")
    share = cold.received / rival.received
    print(f"{'vpatch matrix, cold':25} {cold.seconds:7.1f} s {cold.received / 1e6:8.1f} MB", end="")
    print(f"  {cold.seconds / rival.seconds:.3f} x the time, {share:.4f} x the bytes")
    again = median(run.seconds for run in warm)
    said = " ".join(f"{run.seconds:.1f}" for run in warm)
    print(f"{'vpatch matrix, warm':25} {again:7.1f} s {0:8.1f} MB  {again / rival.seconds:.3f} x the time ({said})")
    memory = max(run.memory for run in (cold, *warm))
    for name, found, limit in (
        ("cold: seconds", cold.seconds, 60),
        ("cold: share of the bytes", share, 0.03),
        ("warm: seconds", again, 20),
        ("memory in MiB", memory, 400),
    ):
        print(f"{name} at most {limit}: {found:.3g}, {'met' if found <= limit else 'missed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
