"""`plan --log`: vLLM's log of a start beside the plan for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from vpatch.cli.output import TextReport
from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem
from vpatch.plan import Model
from vpatch.plan.deployment import Deployment, Gpu
from vpatch.plan.log_comparison import Compared, Comparison, compare, deployment_of
from vpatch.plan.models import load
from vpatch.plan.needs import needs
from vpatch.plan.startup_log import LOG_BYTES, UNREADABLE, Start, read, start_of

_STDIN = Path("-")
_OPTIONS = {field.name for field in fields(Deployment)} | {"model", "revision", "quantization", "speculative_config"}


def read_start(log: Path, options: Mapping[str, Any], model: str | None) -> Start:
    """Read a log, of standard input if it is `-`.

    Raises:
        UsageError: options are the log's to say, or it lacks the model.
        Failure: it cannot be read, or is no log of one start.
    """
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None and name != "vllm"]
    if given:
        raise click.UsageError(f"--log compares what the log says: leave out {', '.join(given)}")
    vllm = str(options["vllm"] or "")
    if log == _STDIN:
        text = sys.stdin.buffer.read(LOG_BYTES) if sys.stdin else b""
        start = start_of(text.decode("utf-8", "replace").splitlines(), "standard input", vllm)
    else:
        start = read(log, vllm)
    if not (model or start.model):
        raise click.UsageError("the log does not have the model: give --model")
    return start


def concerned(text: str, vllm: str | None, overlays: Sequence[Catalogued]) -> tuple[list[Catalogued], str]:
    """Return which of the overlays that this vLLM lacks a log's server may need, and what that server is.

    Raises:
        Failure: it is no log of one start, or plan does not know its model or its options.
    """
    start = start_of(text.splitlines(), "the log", vllm or "", counted=False)
    if not start.model:
        raise Failure(Problem(UNREADABLE, "the log", "it does not have the model"))
    model = load(start.model)
    deployment = deployment_of(start, model, Gpu("", 0))
    # Whether this vLLM has what an overlay does, its code has answered already.
    other = {one.id for one in needs(model, deployment, overlays) if one.needed is False and one.missing}
    about = f"a KV cache of {deployment.kv_cache_dtype} and {deployment.speculative_tokens or 'no'} draft tokens"
    return [item for item in overlays if item.id not in other], f"{model.name} with {about}"


def logged(start: Start, model: Model, gpu: Gpu) -> TextReport:
    """Return the comparison of a log with the plan; raise `Failure` if there is no such plan."""
    found = compare(model, start, gpu)
    record = {  # to send in: what was started, on what, and what vLLM printed of it
        "vllm": str(start.vllm),
        "model": start.model or model.name,
        "architecture": model.architecture,
        "gpu": found.fit.deployment.gpu.name,
        "arguments": {name: value for name, value in start.arguments.items() if name in _OPTIONS},
        "printed": dict(start.printed),
        "refused": start.refused,
    }
    numbers = [{**asdict(one), "error": round(one.error, 4), "within": one.within} for one in found.numbers]
    about = {"numbers": numbers, "record": record, "verdict": "refused" if start.refused else "started"}
    return TextReport(object=about, lines=[*_lines(found, model), json.dumps(record)], whole=True)


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
