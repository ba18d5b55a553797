"""`vpatch plan --log FILE`: what vLLM counted when it started, beside the plan for the same deployment."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vpatch.cli.output import TextReport
from vpatch.plan import Model
from vpatch.plan.deployment import Deployment, Gpu
from vpatch.plan.log_comparison import Compared, Comparison, compare
from vpatch.plan.startup_log import LOG_BYTES, Start, read, start_of

STDIN = Path("-")
_OPTIONS = {field.name for field in fields(Deployment)} | {"model", "revision", "quantization", "speculative_config"}


def read_start(file: Path, vllm: str) -> Start:
    """Read a log from a file, or from standard input if it is `-`; `vllm` is for one without the version.

    Raises:
        Failure: it cannot be read, or is no log of one start.
    """
    if file != STDIN:
        return read(file, vllm)
    given = sys.stdin.buffer.read(LOG_BYTES) if sys.stdin else b""
    return start_of(given.decode("utf-8", "replace").splitlines(), "standard input", vllm)


def logged(start: Start, model: Model, gpu: Gpu) -> TextReport:
    """Return the comparison of a log with the plan; raise `Failure` if there is no such plan."""
    found = compare(model, start, gpu)
    record = recorded(start, model, found.fit.deployment)
    numbers = [{**asdict(one), "error": round(one.error, 4), "within": one.within} for one in found.numbers]
    about = {"numbers": numbers, "record": record, "verdict": "refused" if start.refused else "started"}
    return TextReport(object=about, lines=[*_lines(found, model), json.dumps(record)], whole=True)


def recorded(start: Start, model: Model, deployment: Deployment) -> dict[str, Any]:
    """Return the record of a start, to send in: what was started, on what, and what vLLM printed of it."""
    return {
        "vllm": str(start.vllm),
        "model": start.model or model.name,
        "architecture": model.architecture,
        "gpu": deployment.gpu.name,
        "arguments": {name: value for name, value in start.arguments.items() if name in _OPTIONS},
        "printed": dict(start.printed),
        "refused": start.refused,
    }


def _lines(found: Comparison, model: Model) -> Iterator[str]:
    deployment, did = found.fit.deployment, "refused" if found.start.refused else "started"
    yield f"{did}: {model.name} on {deployment.gpus} x {deployment.gpu.name}, vLLM {deployment.vllm}"
    yield from map(_line, found.numbers)
    if worst := found.worst:
        yield f"most off: {worst.name}, by {worst.planned - worst.printed:+.2f} GiB"
    holds, length = found.measured.likely, deployment.max_model_len
    if found.start.kv_cache_gib > 0:
        longest = f"the longest that fits has {found.measured.longest:,}"
        yield f"measured: {holds.concurrency:.2f} requests of {length:,} tokens; {longest}"


def _line(one: Compared) -> str:
    in_gib = one.name not in ("block size", "tokens", "concurrency")
    unit, digits = (" GiB", 2) if in_gib else ("", 2 if one.name == "concurrency" else 0)
    bounds = f" ({one.least:,.{digits}f} to {one.most:,.{digits}f})" if one.least != one.most else ""
    outside = "" if one.within else ", outside of the bounds"
    planned = f"plan {one.planned:,.{digits}f}{bounds}"
    return f"{one.name.lower()}: {one.printed:,.{digits}f}{unit}, {planned}: {one.error:+.1%}{outside}"
