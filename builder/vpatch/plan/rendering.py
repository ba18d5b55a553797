"""A plan as lines for a pipe, as a page for a terminal with a bar of the card's memory, and as the contract's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vpatch.plan import GIB
from vpatch.plan.deployment import arithmetic_of
from vpatch.plan.memory import Estimate
from vpatch.plan.planner import Plan

FILLS, FREE = "█▓▒▤▥▦▧▨▚▞", "░"
_NEEDED = {True: "needed", False: "not needed", None: "unknown"}

Rows = Sequence[tuple[str, ...]]


def lines(plan: Plan, commands: Mapping[str, str]) -> Iterator[str]:
    """Yield one fact per line, as `what: name: ...`, and the commands."""
    yield f"plan: {_title(plan)}"
    for what, rows in _facts(plan).items():
        for row in rows:
            yield ": ".join(({"overlays": "overlay"}.get(what, what.lower()), *row))
    for name, command in commands.items():
        yield f"# {name}"
        yield from command.split("\n")


def page(plan: Plan, commands: Mapping[str, str], width: int) -> Iterator[str]:
    """Yield the lines for a terminal of so many columns."""
    yield _title(plan)
    for heading, rows in _facts(plan).items():
        yield ""
        if heading == "memory":
            yield from _bar(plan, width)
        yield heading
        # Not by rich, whose tables fold and pad the last column.
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            yield "  " + "  ".join([*cells, row[-1]])
    for name, command in commands.items():
        yield ""
        yield f"{name}:"
        yield from command.split("\n")


def _title(plan: Plan) -> str:
    model, deployment = plan.model, plan.deployment
    revision = f" ({model.revision})" if model.revision else ""
    cards = f"{deployment.gpus} x {deployment.gpu.name}" if deployment.gpus > 1 else deployment.gpu.name
    return f"{model.name}{revision} on {cards}, vLLM {deployment.vllm}, KV cache {deployment.kv_cache_dtype}"


def _facts(plan: Plan) -> dict[str, Rows]:
    """Return the rows of each part of a plan, by its heading."""
    return {
        "overlays": [(need.id, _NEEDED[need.needed], need.because) for need in plan.needs],
        "memory": list(_sizes(plan)),
        "KV cache": list(_cache(plan)),
        "advice": [(advice,) for advice in _advice(plan)],
    }


def _bar(plan: Plan, width: int) -> Iterator[str]:
    """Draw the memory of a GPU: items, KV cache, and what is free; then yield the key."""
    memory = plan.fit.memory
    columns = max(20, min(width, 100))
    sizes = [(item.name, item.size.likely) for item in memory.items if item.counted]
    sizes.append(("KV cache", max(0, memory.kv_cache.likely)))
    sizes += [(item.name, item.size.likely) for item in memory.items if not item.counted]
    drawn, key, end = "", [], 0
    scale = max(memory.total, sum(size for _, size in sizes))
    for fill, (name, size) in zip(FILLS, sizes, strict=False):
        end += size
        drawn += fill * (round(end / scale * columns) - len(drawn))
        key.append(f"{fill} {name}")
    yield drawn + FREE * (columns - len(drawn))
    yield "  ".join([*key, f"{FREE} free"])


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
    layout, holds = fit.layout, fit.likely
    groups = f"{len(layout.groups)} groups of layers" if len(layout.groups) > 1 else "one group of layers"
    yield "blocks", f"{holds.blocks:,} of {layout.block_size:,} tokens, shared by {groups}"
    yield "a request", f"of {length:,} tokens takes {holds.blocks_per_request:,} blocks"
    bounds = f" ({fit.least.concurrency:.2f} to {fit.most.concurrency:.2f})" if fit.least != fit.most else ""
    yield "concurrency", f"{holds.concurrency:.2f} requests of that length{bounds}"
    slots, tokens = f"{holds.slots:,} (blocks // groups * block size)", f"{holds.tokens:,} (concurrency x length)"
    for name, figure in (("slots", slots), ("tokens", tokens)):
        yield name, f"{figure}; this vLLM prints it" if name == _printed(plan) else figure


def _printed(plan: Plan) -> str:
    return "slots" if arithmetic_of(plan.deployment.vllm).prints_slots else "tokens"


def _advice(plan: Plan) -> Iterator[str]:
    advice = plan.advice
    if advice.max_model_len:
        yield f"--max-model-len {advice.max_model_len} is the longest that fits"
    if advice.max_num_seqs:
        yield f"--max-num-seqs {advice.max_num_seqs} is the most that leaves room for a request of full length"
    if advice.gpu_memory_utilization:
        served = f"{advice.requests} requests" if advice.requests > 1 else "a request"
        share = f"--gpu-memory-utilization {advice.gpu_memory_utilization}"
        yield f"{share} is the least that serves {served} of full length"


def as_object(plan: Plan, commands: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the JSON object that only this command has; sizes are GiB, rounded to a thousandth."""
    fit, deployment = plan.fit, plan.deployment
    memory, layout = fit.memory, fit.layout
    return {
        "vllm": str(deployment.vllm),
        "model": _only(plan.model, "name", "revision", "architecture", "hybrid", "unknown"),
        "gpu": {"name": deployment.gpu.name, "gib": _gib(deployment.gpu.memory)},
        "fits": fit.fits,
        "overlays": [_only(need, "id", "needed", "because", "state", "opt_in") for need in plan.needs],
        "kv_cache": {
            "dtype": deployment.kv_cache_dtype,
            **_bounded(memory.kv_cache),
            **_only(layout, "block_size", "page_bytes", "state_bytes"),
            "groups": len(layout.groups),
            **_only(fit.likely, "blocks", "blocks_per_request", "slots", "tokens"),
            "prints": _printed(plan),
            "concurrency": round(fit.likely.concurrency, 4),
            "least_concurrency": round(fit.least.concurrency, 4),
            "max_model_len": deployment.max_model_len,
        },
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
        "warnings": [asdict(caution) for caution in plan.cautions],
        "commands": dict(commands),
    }


def _only(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _gib(size: int) -> float:
    return round(size / GIB, 3)


def _bounded(size: Estimate) -> dict[str, float]:
    bounds = {} if size.exact else {"least_gib": _gib(size.least), "most_gib": _gib(size.most)}
    return {"gib": _gib(size.likely), **bounds}
