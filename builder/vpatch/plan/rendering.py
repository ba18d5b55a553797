"""A plan in words: for people, with a bar of the card's memory, and as lines for a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vpatch.plan.arithmetic import arithmetic_of
from vpatch.plan.estimates import Estimate
from vpatch.plan.model import GIB
from vpatch.plan.needs import Needed
from vpatch.plan.planner import Plan

FILLS, FREE = "█▓▒▤▥▦▧▨▚▞", "░"


def lines(plan: Plan, commands: Mapping[str, str]) -> Iterator[str]:
    """Give a fact a line, as `what: name: ...`, and the commands."""
    yield f"plan: {title(plan)}"
    for need in plan.needs:
        yield f"overlay: {need.id}: {_needed(need)}: {need.because}"
    for name, size, why in _sizes(plan):
        yield f"memory: {name}: {size}: {why}"
    for name, told in _cache(plan):
        yield f"kv cache: {name}: {told}"
    for told in _advice(plan):
        yield f"advice: {told}"
    for name, command in commands.items():
        yield f"# {name}"
        yield from command.split("\n")


def page(plan: Plan, commands: Mapping[str, str], width: int) -> Iterator[str]:
    """Give what people see on a terminal of so many columns."""
    yield title(plan)
    yield ""
    yield from _columns("overlays", [(n.id, _needed(n), n.because) for n in plan.needs])
    yield ""
    yield from bar(plan, width)
    yield from _columns("memory", list(_sizes(plan)))
    yield ""
    yield from _columns("KV cache", list(_cache(plan)))
    yield ""
    yield from _columns("advice", [(told,) for told in _advice(plan)])
    for name, command in commands.items():
        yield ""
        yield f"{name}:"
        yield from command.split("\n")


def title(plan: Plan) -> str:
    """Say what was planned."""
    model, deployment = plan.model, plan.deployment
    revision = f" ({model.revision})" if model.revision else ""
    count = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    cards = f"{count} x {deployment.gpu.name}" if count > 1 else deployment.gpu.name
    return f"{model.name}{revision} on {cards}, vLLM {deployment.vllm}, KV cache {deployment.kv_cache_dtype}"


def bar(plan: Plan, width: int) -> Iterator[str]:
    """Draw the memory of a GPU: what takes it, the KV cache, and what is free; then say which fill is which."""
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


def _needed(need: Needed) -> str:
    return {True: "needed", False: "not needed", None: "unknown"}[need.needed]


def _sizes(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Give what takes memory: name, size, why."""
    memory = plan.fit.memory
    for item in memory.items:
        yield item.name, sized(item.size), item.because + ("" if item.counted else " (on top of vLLM's share)")
    share = f"what is left of vLLM's share, {memory.requested / GIB:.2f} GiB"
    yield "KV cache", sized(memory.kv_cache), "as asked for" if memory.kv_cache.exact else share
    yield "free", sized(memory.left), f"of {memory.total / GIB:.2f} GiB, with everything in use"


def sized(size: Estimate) -> str:
    """Say a size, and its bounds where it is an estimate."""
    told = f"{size.likely / GIB:.2f} GiB"
    return told if size.exact else f"{told} ({size.least / GIB:.2f} to {size.most / GIB:.2f})"


def _cache(plan: Plan) -> Iterator[tuple[str, str]]:
    """Give what the KV cache holds."""
    fit, length = plan.fit, plan.deployment.max_model_len
    layout, holds = fit.layout, fit.likely
    groups = f"{len(layout.groups)} groups of layers" if len(layout.groups) > 1 else "one group of layers"
    yield "blocks", f"{holds.blocks:,} of {layout.block_size:,} tokens, shared by {groups}"
    yield "a request", f"of {length:,} tokens takes {holds.blocks_per_request:,} blocks"
    bounds = f" ({fit.least.concurrency:.2f} to {fit.most.concurrency:.2f})" if fit.least != fit.most else ""
    yield "concurrency", f"{holds.concurrency:.2f} requests of that length{bounds}"
    names = {"slots": f"{holds.slots:,} (blocks // groups * block size)", "tokens": f"{holds.tokens:,}"}
    names["tokens"] += " (concurrency x length)"
    printed = "slots" if arithmetic_of(plan.deployment.vllm).prints_slots else "tokens"
    for name, told in names.items():
        yield name, f"{told}; this vLLM prints it" if name == printed else told


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


def _columns(heading: str, rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Set rows below each other, every column but the last as wide as its widest cell."""
    yield heading
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield "  " + "  ".join([*cells, row[-1]])
