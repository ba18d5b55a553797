"""Measure the decode kernels of `turboquant-decode` on your GPU.

    python -m benchmarks.decode [--out DIR] [--part numerics|speed|tune ...] [--deadline SECONDS] [--quick]

Run it in a checkout of vpatch, with the Python of a vLLM to which the overlay is applied. It compares the kernels with
float64, with vLLM's own TurboQuant kernel, and with flash attention on a bf16 cache, and writes `decode.json` and a
report to paste, `decode.md`. `--part tune` also writes `launches.json`, the fastest launches on this GPU: name the file
in `VPATCH_TQ_DECODE_LAUNCHES`. The exit status is 1 if a numerical comparison fails, if the deadline left something
out, or, on the GPU that the speed thresholds are for, if one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.decode import kernels, machine
from benchmarks.decode.cases import SIZES, Numeric, Speed, numeric_cases, speed_cases
from benchmarks.decode.report import report
from benchmarks.decode.verdicts import numeric_failure, outcome, ratio
from benchmarks.decode.workers import Clock, Workers, default_workers

PARTS = ("numerics", "speed", "tune")
LAUNCHES = "launches.json"


def tell(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


class Run:
    """A run: its record, which every measurement brings up to date on disk."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock, self._folder = clock, folder
        self.record: dict[str, Any] = {
            "machine": machine.describe(),
            "dispatched": kernels.dispatched("cuda"),
            "numerics": [],
            "speed": [],
            "tune": [],
            "not_run": [],
            "seconds": {},
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.save()

    def save(self) -> None:
        """Write the record and its report; a reader never sees half of a file."""
        files = {"decode.json": json.dumps(self.record, indent=1) + "\n", "decode.md": report(self.record)}
        for name, text in files.items():
            self._write(name, text)

    def _write(self, name: str, text: str) -> None:
        part = self._folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self._folder / name)

    def keep(self, part: str, label: str, found: dict[str, Any] | None) -> None:
        """Add a measurement, or the label of a case that was not run."""
        if found is None:
            self.record["not_run"].append(f"{part}: {label}")
        else:
            self.record[part].append(found)
        tell(f"{self.clock.elapsed:6.0f} s  {part}: {label}: {_short(part, found)}")
        self.save()

    def keep_launches(self, found: dict[str, Any]) -> None:
        """Write the tuned launches to a file of their own, as the kernels read it; no file without any launch."""
        self.record["launches"] = found
        if found["launches"]:
            self._write(LAUNCHES, json.dumps(found, indent=1) + "\n")
            tell(f"wrote {self._folder / LAUNCHES}: name it in VPATCH_TQ_DECODE_LAUNCHES when you start vLLM.")
        print(json.dumps(found))

    def end(self, part: str) -> None:
        """Note when a part ended."""
        self.record["seconds"][part] = round(self.clock.elapsed, 1)
        self.save()


def _short(part: str, found: dict[str, Any] | None) -> str:
    """Return a measurement in a few words."""
    if found is None:
        return "not run"
    problem = found.get("error") or found.get("skipped")
    if problem:
        return str(problem)
    if part == "numerics":
        failure = numeric_failure(found)
        return f"FAILED: {failure}" if failure else f"{found['ours']:.2e}, vLLM's kernel {found['stock']:.2e}"
    if part == "tune":
        return f"{found['best']}, {found['ratio'] or 0:.2f} x as fast as the table's"
    ratios = (ratio(found, rival) for rival in ("stock", "flash"))
    stock, flash = (f"{number:.2f}" if number else "-" for number in ratios)
    return f"{found['ours_us']:.1f} µs, {stock} x vLLM's kernel, {flash} x flash attention"


def numerics(run: Run, cases: Sequence[Numeric], workers: Workers) -> None:
    """Compare the kernels with float64."""
    from benchmarks.decode.numerics import measure

    for case, found in workers.run(measure, cases, run.clock):
        run.keep("numerics", case.label, found)
    order = [case.label for case in cases]
    run.record["numerics"].sort(key=lambda found: order.index(found["label"]))  # they finish in any order
    run.end("numerics")


def compile_all(run: Run, cases: Sequence[Speed], tunes: Sequence[Speed], workers: Workers) -> None:
    """Compile what will be timed, side by side; whatever fails is compiled again, and recorded, when it is timed."""
    from benchmarks.decode import speed, tune

    jobs = speed.to_compile(cases)
    for case, error in workers.run(speed.compile_case, jobs, run.clock):
        if error:
            tell(f"{case.label}: {error}")
    launches = tune.jobs(tunes)
    for (case, launch), error in workers.run(tune.compile_launch, launches, run.clock):
        if error:
            tell(f"{case.label}: {launch}: {error}")
    run.end("compile")


def timed(run: Run, cases: Sequence[Speed], tunes: Sequence[Speed]) -> None:
    """Time the kernels, and tune them."""
    from benchmarks.decode import speed, tune

    if cases:
        problem = speed.measure(cases, run.clock, lambda case, found: run.keep("speed", case.label, found))
        if problem:
            run.keep("speed", problem, None)
        run.end("speed")
    if tunes:
        found: list[tuple[Speed, dict[str, Any]]] = []

        def keep(case: Speed, record: dict[str, Any] | None) -> None:
            if record is not None:
                found.append((case, record))
            run.keep("tune", case.label, record)
            if record and not record["complete"]:
                run.keep("tune", f"{case.label}: the remaining launches", None)

        tune.measure(tunes, run.clock, keep)
        run.keep_launches(tune.launches(run.record["machine"]["gpu"], found))
        run.end("tune")


def shape(text: str) -> tuple[int, int, int]:
    """Parse head size, KV heads and group."""
    size, kv_heads, group = map(int, text.split(","))
    if size not in SIZES or kv_heads < 1 or not 1 <= group <= 16:
        raise ValueError
    return size, kv_heads, group


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    text = __doc__ or ""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.decode",
        description=text.splitlines()[0],
        epilog=text.partition("\n\n")[2].partition("\n\n")[2],
    )
    made.add_argument("--out", type=Path, default=Path("decode-report"), help="folder of the results (%(default)s)")
    made.add_argument("--part", action="extend", nargs="+", choices=PARTS, help="what to run (numerics and speed)")
    made.add_argument("--deadline", type=float, metavar="SECONDS", help="stop in time, and list what was not run")
    made.add_argument("--quick", action="store_true", help="fewer cases")
    made.add_argument(
        "--shape",
        type=shape,
        default=(128, 8, 4),
        metavar="D,KV,GROUP",
        help="what `tune` tunes: head size, KV heads and query heads of each (128,8,4)",
    )
    made.add_argument(
        "--workers", type=int, default=default_workers(), metavar="N", help="processes that compile (%(default)s)"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; return the exit status."""
    options = parser().parse_args(arguments)
    clock = Clock(options.deadline)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        machine.require()
    except machine.Unusable as error:
        tell(f"error: {error}.")
        return 1
    parts = options.part or ("numerics", "speed")
    run = Run(options.out, clock)
    cases = speed_cases(quick=options.quick) if "speed" in parts else []
    tunes: list[Speed] = []
    if "tune" in parts:
        from benchmarks.decode.tune import tune_cases

        tunes = tune_cases(options.shape, quick=options.quick)
    with Workers(max(1, options.workers)) as workers:
        if "numerics" in parts:
            numerics(run, numeric_cases(quick=options.quick), workers)
        if cases or tunes:
            compile_all(run, cases, tunes, workers)
    timed(run, cases, tunes)
    status, text = outcome(run.record)
    tell(f"wrote {options.out / 'decode.md'} and decode.json: {text}.")
    return status


if __name__ == "__main__":
    sys.exit(main())
