"""The whole proof on your card: `python -m benchmarks.decode.proof [--out DIR] [--deadline SECONDS]`.

Run it in a checkout of vpatch, with the Python of a vLLM that has TurboQuant, patched or not. It copies that vLLM, and
patches the copy. There it measures engines that decode (`python -m tests.validation.gpu fast-decode-small`) and the
kernels (`python -m benchmarks.decode`). `proof.md` in DIR is the report to paste; the JSON files beside it have every
measurement. The exit status is 1 if a comparison fails, or if something was not run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.decode.report import table
from tests.paths import ROOT
from tests.validation.gpu import session

SCENARIO = "fast-decode-small"
ENGINES = {
    ("tq", "stock"): "TurboQuant, vLLM's kernel",
    ("tq", "decode"): "with the overlay",
    ("auto", "stock"): "bf16",
}
"""By the end of a probe's name and its tree, what an engine is called."""
KERNELS_S = 300.0  # what the kernels may take of the time


def tell(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def engine_report(run: Mapping[str, Any]) -> str:
    """Return the part of the report on engines: tokens per second, and how long the GPU is busy in a step."""
    found: dict[tuple[int, int], dict[tuple[str, str], dict[str, float]]] = {}
    for result in run["results"]:
        engine = (result["probe"].rpartition(" ")[2], result["tree"])
        for event in result["events"]:
            if "decode_batch" in event:
                shape = (event["decode_batch"], event["context"])
                found.setdefault(shape, {}).setdefault(engine, {}).update(_numbers(event))
    rows = [(f"{batch}", f"{context:,}", *_cells(engines)) for (batch, context), engines in sorted(found.items())]
    head = ("batch", "context", *(f"{name}: tokens/s (busy ms)" for name in ENGINES.values()), "vs vLLM's", "vs bf16")
    lost = [f"{one['probe']}, {one['tree']}: {one['error']}" for one in run["results"] if not one["ok"]]
    text = f"## Engines\n\nvLLM {run['vllm']}, 24 layers of which 20 have TurboQuant, 16 heads on 8 of size 128.\n\n"
    return text + table(head, rows) + "".join(f"\n- Failed: {line}" for line in lost) + "\n"


def _numbers(event: Mapping[str, Any]) -> dict[str, float]:
    if "busy_ms" in event:
        return {"busy_ms": event["busy_ms"]}
    return {"tokens_per_s": statistics.median(event["tokens_per_s"])}


def _cells(engines: Mapping[tuple[str, str], Mapping[str, float]]) -> Iterable[str]:
    for engine in ENGINES:
        numbers = engines.get(engine, {})
        speed, busy = numbers.get("tokens_per_s"), numbers.get("busy_ms")
        yield f"{speed:,.0f} ({busy:.2f})" if speed and busy else "-"
    ours = engines.get(("tq", "decode"), {}).get("tokens_per_s")
    for rival in (("tq", "stock"), ("auto", "stock")):
        theirs = engines.get(rival, {}).get("tokens_per_s")
        yield f"{ours / theirs:.2f} x" if ours and theirs else "-"


def kernels(out: Path, deadline: float) -> int:
    """Measure the kernels in the patched copy; return the exit status."""
    path = (str(session.WORK / "trees/decode"), *filter(None, [os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "benchmarks.decode", "--out", str(out), "--deadline", f"{deadline:.0f}"]
    return subprocess.call(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": os.pathsep.join(path)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both parts; return the exit status."""
    text = __doc__ or ""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode.proof",
        description=text.partition(":")[0] + ".",
        epilog=text.partition("\n\n")[2],
    )
    parser.add_argument("--out", type=Path, default=Path("decode-report"), help="folder of the results (%(default)s)")
    parser.add_argument("--deadline", type=float, default=900.0, metavar="SECONDS", help="%(default).0f by default")
    options = parser.parse_args(arguments)
    began, out = time.time(), options.out.resolve()
    try:
        file = session.execute(
            [SCENARIO],
            out,
            deadline_s=options.deadline - KERNELS_S,
            tell=lambda result: tell(f"{result['probe']}, {result['tree']}: {result['error'] or 'ok'}"),
        )
    except RuntimeError as error:
        tell(f"error: {error}")
        return 1
    run = json.loads(file.read_text())
    measured = out / "decode.md"
    measured.unlink(missing_ok=True)  # of an earlier run
    status = kernels(out, options.deadline - (time.time() - began))
    text = measured.read_text() if measured.exists() else "The kernels were not measured.\n"
    (out / "proof.md").write_text(f"{text}\n{engine_report(run)}", encoding="utf-8")
    tell(f"wrote {out / 'proof.md'}, {file.name} and decode.json")
    return 1 if status or not all(result["ok"] for result in run["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
