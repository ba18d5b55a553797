"""A plan as lines for a pipe, as a page for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vpatch.plan import GIB, Estimate, Model
from vpatch.plan.cautions import Caution
from vpatch.plan.deployment import Deployment
from vpatch.plan.fit import Fit
from vpatch.plan.verdict import FITTING, Choice, Plan, PlanVerdict
from vpatch.wrapping import wrapped

FILLS, FREE = "█▓▒▤▥▦▧▨▚▞", "░"
_NARROW = 24  # columns that a reason needs beside its row
_BELOW = " " * 6  # before a reason below its row
_TOGETHER = "\N{NO-BREAK SPACE}"
_BRIEF = ("apply", "serve")  # the commands that are shown unless all are asked for
_NEEDED = {True: "needed", False: "not needed", None: "unknown"}

Rows = Sequence[tuple[str, ...]]


def lines(plan: Plan, commands: Mapping[str, str], *, verbose: bool = False) -> Iterator[str]:
    """Yield the verdict, then one fact per line, as `what: name: ...`, and the commands."""
    yield title(plan.verdict, plan.model, plan.deployment)
    if verbose:
        for what, rows in _facts(plan).items():
            for row in rows:
                yield ": ".join(({"overlays": "overlay"}.get(what, what.lower()), *row))
    else:
        yield f"kv cache: {_short(plan)}"
        yield from (f"advice: {one}" for one in _recommended(plan))
    for name, command in _shown(commands, verbose=verbose):
        yield from (f"# {_marked(name, plan.verdict)}", *command.split("\n"))


def page(plan: Plan, commands: Mapping[str, str], width: int, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal of so many columns."""
    yield from wrapped(title(plan.verdict, plan.model, plan.deployment), width, hanging="  ")
    if not verbose:
        yield from ("", *_bar(plan, width), "")
        for line in (f"KV cache: {_short(plan)}", *_recommended(plan)):
            yield from wrapped(line, width, hanging="  ")
    for heading, rows in _facts(plan).items() if verbose else ():
        yield ""
        if heading == "memory":
            yield from _bar(plan, width)
        yield heading
        # Not by rich, whose tables fold and pad the last column.
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        for *cells, last in rows:
            start = "  ".join(["", *(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)), ""])
            if len(start) + min(len(last), _NARROW) <= width:
                yield from wrapped(last, width, start, " " * len(start))
            else:
                yield start.rstrip()
                yield from wrapped(last, width, _BELOW, _BELOW)
    for name, command in _shown(commands, verbose=verbose):
        yield from ("", f"{_marked(name, plan.verdict)}:", *command.split("\n"))


def title(verdict: PlanVerdict, model: Model, deployment: Deployment) -> str:
    """Return the line that everything else explains: the verdict on a model on its GPUs, for a release."""
    revision = f" ({model.revision})" if model.revision else ""
    cards = f"{deployment.gpus} x {deployment.gpu.name}" if deployment.gpus > 1 else deployment.gpu.name
    return f"{verdict.value}: {model.name}{revision} on {cards}, vLLM {deployment.vllm}"


def _shown(commands: Mapping[str, str], *, verbose: bool) -> Iterator[tuple[str, str]]:
    return ((name, command) for name, command in commands.items() if verbose or name in _BRIEF)


def _marked(name: str, verdict: PlanVerdict) -> str:
    return name if verdict in FITTING else f"{name} ({verdict.value})"


def _short(plan: Plan) -> str:
    """Return the KV cache on one line."""
    fit, deployment = plan.fit, plan.deployment
    holds = f"{fit.likely.concurrency:.2f} requests of {deployment.max_model_len:,} tokens{_bounds(fit)}"
    printed = f"vLLM prints {fit.likely.printed:,} tokens"
    return f"{_sized(fit.memory.kv_cache)} of {deployment.kv_cache_dtype}: {holds}; {printed}"


def _bounds(fit: Fit) -> str:
    """Return the bounds of the concurrency, behind a blank; "" if it is exact."""
    return f" ({fit.least.concurrency:.2f} to {fit.most.concurrency:.2f})" if fit.least != fit.most else ""


def _facts(plan: Plan) -> dict[str, Rows]:
    return {
        "overlays": [
            (need.id, "recommended" if need.recommended else _NEEDED[need.needed], need.because) for need in plan.needs
        ],
        "memory": list(_sizes(plan)),
        "KV cache": list(_cache(plan)),
        "KV cache types": [(one.dtype, *_chosen(plan, one)) for one in plan.choices],
        "advice": [(advice,) for advice in _advice(plan)],
    }


def _chosen(plan: Plan, one: Choice) -> tuple[str, str]:
    """Return what fits with a type of KV cache: requests; tokens, what a request takes, and the overlays for it."""
    overlays = f"; needs {', '.join(one.overlays)}" if one.overlays else ""
    this = "; this plan" if one.dtype == plan.deployment.kv_cache_dtype else ""
    tokens = f"{one.fit.likely.tokens:,} tokens, {one.fit.request / GIB:.2f} GiB a request"
    return f"{one.fit.likely.concurrency:.2f} requests", f"{tokens}{overlays}{this}"


def _bar(plan: Plan, width: int) -> Iterator[str]:
    memory = plan.fit.memory  # drawn as one line, with the key below
    columns = max(20, min(width, 100))
    sizes = [(item.name, item.size.likely) for item in memory.items if item.counted]
    sizes.append(("KV cache", max(0, memory.kv_cache.likely)))
    sizes += [(item.name, item.size.likely) for item in memory.items if not item.counted]
    drawn, key, end = "", [], 0
    for fill, (name, size) in zip(FILLS, sizes, strict=False):
        end += size
        drawn += fill * (min(columns, round(end / memory.total * columns)) - len(drawn))
        key.append(f"{fill} {name}")
    more = f"{(end - memory.total) / GIB:.2f} GiB more than the card has"
    yield drawn + FREE * (columns - len(drawn))
    whole = "  ".join(one.replace(" ", _TOGETHER) for one in (*key, more if end > memory.total else f"{FREE} free"))
    yield from (line.replace(_TOGETHER, " ") for line in wrapped(whole, width))


def _sizes(plan: Plan) -> Iterator[tuple[str, str, str]]:
    memory = plan.fit.memory
    for item in memory.items:
        yield item.name, _sized(item.size), item.because + ("" if item.counted else " (on top of vLLM's share)")
    share = f"what is left of vLLM's share, {memory.requested / GIB:.2f} GiB"
    yield "KV cache", _sized(memory.kv_cache), "as asked for" if memory.kv_cache.exact else share
    yield "free", _sized(memory.left), f"of {memory.total / GIB:.2f} GiB, with everything in use"


def _sized(size: Estimate) -> str:
    likely = f"{size.likely / GIB:.2f} GiB"
    return likely if size.exact else f"{likely} ({size.least / GIB:.2f} to {size.most / GIB:.2f})"


def _cache(plan: Plan) -> Iterator[tuple[str, str]]:
    fit, length = plan.fit, plan.deployment.max_model_len
    holds, count = fit.likely, len(fit.layout.groups)
    groups = f"{count} groups of layers" if count > 1 else "one group of layers"
    yield "blocks", f"{holds.blocks:,} of {fit.layout.block_size:,} tokens, shared by {groups}"
    yield "a request", f"of {length:,} tokens takes {holds.blocks_per_request:,} blocks"
    yield "concurrency", f"{holds.concurrency:.2f} requests of that length{_bounds(fit)}"
    prints_slots = plan.deployment.release.prints_slots
    printed = "; this vLLM prints it"
    yield "slots", f"{holds.slots:,} (blocks // groups * block size){printed if prints_slots else ''}"
    yield "tokens", f"{holds.tokens:,} (concurrency x length){'' if prints_slots else printed}"


def _advice(plan: Plan) -> Iterator[str]:
    advice = plan.advice
    if advice.max_model_len:
        yield f"--max-model-len {advice.max_model_len} is the longest that fits"
    if advice.max_num_seqs:
        yield f"--max-num-seqs {advice.max_num_seqs} is the most that leaves room for a request of full length"
    if share := advice.gpu_memory_utilization:
        served = f"{advice.requests} requests" if advice.requests > 1 else "a request"
        yield f"--gpu-memory-utilization {share} is the least that serves {served} of full length"
    yield from _recommended(plan)


def _recommended(plan: Plan) -> Iterator[str]:
    for need in plan.needs:
        if need.recommended:
            yield f"`vpatch apply --with {need.id}` adds an opt-in overlay that is recommended for this deployment"


def as_object(plan: Plan, cautions: Sequence[Caution], commands: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the JSON object that only this command has; sizes are GiB, rounded to a thousandth."""
    fit, deployment = plan.fit, plan.deployment
    memory, layout = fit.memory, fit.layout
    return {
        "vllm": str(deployment.vllm),
        "model": _only(plan.model, "name", "revision", "architecture", "hybrid", "unknown"),
        "gpu": {"name": deployment.gpu.name, "gib": _gib(deployment.gpu.memory)},
        "verdict": plan.verdict.value,
        "fits": fit.fits,
        "overlays": [_only(need, "id", "needed", "recommended", "because", "state", "opt_in") for need in plan.needs],
        "kv_cache": {
            "dtype": deployment.kv_cache_dtype,
            **_bounded(memory.kv_cache),
            **_only(layout, "block_size", "page_bytes", "state_bytes"),
            "groups": len(layout.groups),
            **_only(fit.likely, "blocks", "blocks_per_request", "slots", "tokens"),
            "prints": "slots" if deployment.release.prints_slots else "tokens",
            "concurrency": round(fit.likely.concurrency, 4),
            "least_concurrency": round(fit.least.concurrency, 4),
            "max_model_len": deployment.max_model_len,
        },
        "kv_cache_types": [
            {
                **_only(one, "dtype", "overlays"),
                "request_gib": _gib(one.fit.request),
                "tokens": one.fit.likely.tokens,
                "concurrency": round(one.fit.likely.concurrency, 4),
            }
            for one in plan.choices
        ],
        "memory": {
            "total_gib": _gib(memory.total),
            "requested_gib": _gib(memory.requested),
            "needed_gib": _gib(fit.needed),
            "items": [
                {"name": item.name, **_bounded(item.size), "counted": item.counted, "because": item.because}
                for item in memory.items
            ],
            "left": _bounded(memory.left),
        },
        "advice": asdict(plan.advice),
        "warnings": [asdict(caution) for caution in cautions],
        "commands": dict(commands),
    }


def _only(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _gib(size: int) -> float:
    return round(size / GIB, 3)


def _bounded(size: Estimate) -> dict[str, float]:
    bounds = {} if size.exact else {"least_gib": _gib(size.least), "most_gib": _gib(size.most)}
    return {"gib": _gib(size.likely), **bounds}
