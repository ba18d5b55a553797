"""A plan beside what vLLM counted when it started: each number, and which estimate is off."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from vpatch.errors import Failure, Problem
from vpatch.plan import GIB, Estimate, Model
from vpatch.plan.defaults import defaults
from vpatch.plan.deployment import DRAFTS, MOST, Deployment, Gpu, release_of
from vpatch.plan.fit import Fit, fit
from vpatch.plan.kv_cache import capacity
from vpatch.plan.memory import added
from vpatch.plan.startup_log import UNREADABLE, Start

# The options that are compared, each with its type as `Deployment` declares it.
_KINDS = {field.name: str(field.type) for field in fields(Deployment)}
_OPTIONS = _KINDS.keys() - {"release", "gpu", "cuda", "environment", "extra", "desktop"}
# What plan does not model, and what an option has where nothing is to be modeled.
NOT_MODELED: Mapping[str, Any] = {
    "data_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "prefill_context_parallel_size": 1,
    "cpu_offload_gb": 0,
    "mamba_cache_dtype": "auto",
    "mamba_block_size": None,
    "mamba_cache_mode": None,
    "enable_lora": False,
    "kv_transfer_config": None,
    "num_gpu_blocks_override": None,
    "block_size": None,
}


@dataclass(frozen=True)
class Compared:
    """A number that vLLM printed, in GiB, tokens or requests, and the plan's."""

    name: str
    printed: float
    planned: float
    least: float
    most: float

    @property
    def error(self) -> float:
        """How much more the plan has, as a share of what vLLM printed."""
        return (self.planned - self.printed) / abs(self.printed) if self.printed else 0.0

    @property
    def within(self) -> bool:
        """Whether the plan's bounds, to the digits that vLLM prints, contain it."""
        return self.least - 0.005 <= self.printed <= self.most + 0.005


@dataclass(frozen=True)
class Comparison:
    """A plan and a start: the numbers in pairs, and the plan that follows from what was measured."""

    start: Start
    fit: Fit
    numbers: tuple[Compared, ...]
    measured: Fit

    @property
    def worst(self) -> Compared | None:
        """The estimate that is off by the most bytes, of those that make up the KV cache's memory."""
        parts = [one for one in self.numbers if one.name in ("weights", "graphs", "the rest")]
        return max(parts, key=lambda one: abs(one.planned - one.printed), default=None)


def deployment_of(start: Start, model: Model, gpu: Gpu) -> Deployment:
    """Return the deployment that a log is of; raise `Failure` if it has an option that plan does not model."""
    if total := start.printed.get("total_gib"):
        gpu = replace(gpu, memory=int(total * GIB))
    others = [
        f"--{name.replace('_', '-')}"
        for name, usual in NOT_MODELED.items()
        if start.arguments.get(name) not in (None, usual)
    ]
    options = {name: value for name, value in start.arguments.items() if name in _OPTIONS and value is not None}
    match start.arguments.get("speculative_config"):
        case {"method": str(method), "num_speculative_tokens": int(tokens)} if "mtp" in method:
            options["speculative_tokens"] = tokens
        case other if other:
            others.append("--speculative-config with another draft than multi-token prediction")
    if others:
        raise Failure(Problem(UNREADABLE, model.name, f"plan does not model {', '.join(others)}"))
    if "max_model_len" in start.printed:
        options["max_model_len"] = int(start.printed["max_model_len"])
    if "batch" in start.printed:
        options["max_num_batched_tokens"] = int(start.printed["batch"])
    release = release_of(start.vllm)
    usual = defaults(model, release, gpu)
    if options.get("max_model_len") in ("auto", -1):
        options |= {"longest": True, "max_model_len": usual["max_model_len"]}
    if wrong := [f"--{name.replace('_', '-')} {value!r}" for name, value in options.items() if not _fits(name, value)]:
        raise Failure(Problem(UNREADABLE, model.name, f"no vLLM starts with {wrong[0][:100]}"))
    return Deployment(release=release, gpu=gpu, **{**usual, **options})


def _fits(name: str, value: object) -> bool:
    """Return whether an option has a value of its type, and one that vLLM can start with."""
    kind = _KINDS[name]
    if kind == "float":
        return isinstance(value, int | float) and 0 < value <= 1
    if kind.startswith("int"):
        least, most = (0, DRAFTS) if name == "speculative_tokens" else (1, MOST)
        return type(value) is int and least <= value <= most  # bool is an int
    return type(value).__name__ == kind


def compare(model: Model, start: Start, gpu: Gpu) -> Comparison:
    """Compare a log with the plan for its deployment; raise `Failure` if plan cannot plan that deployment."""
    deployment = deployment_of(start, model, gpu)
    if model.weights is None or model.weights.guessed:
        raise Failure(Problem("unknown weights", model.name, "give --weights-gib, or the folder of the checkpoint"))
    found = fit(model, deployment)
    if not start.kv_cache_gib and (blocks := _blocks(start, found)):
        start = start.counting((blocks + 0.5) * max(found.layout.bytes_per_block) / GIB)
    measured = fit(model, replace(deployment, kv_cache_memory_bytes=int(start.kv_cache_gib * GIB)))
    return Comparison(start, found, tuple(_numbers(start, found)), measured)


def _blocks(start: Start, found: Fit) -> int:
    """Return the blocks that a start has by its tokens, or by its refusal; 0 if vLLM printed neither."""
    if "state_blocks" in start.printed or "tokens" not in start.printed:
        return int(start.printed.get("state_blocks", 0))
    tokens, sizes = int(start.printed["tokens"]), found.layout.bytes_per_block

    def printed(blocks: int) -> int:
        return capacity(found.layout, found.deployment, [blocks * size for size in sizes]).printed

    blocks = bisect_left(range(found.memory.total // max(sizes)), tokens, key=printed)
    if printed(blocks) != tokens:
        cause = f"it has no memory of the KV cache, and in the plan's layout no number of blocks has {tokens:,} tokens"
        raise Failure(Problem(UNREADABLE, "the KV cache", cause))
    return blocks


def _numbers(start: Start, found: Fit) -> Iterator[Compared]:
    """Compare the sizes that vLLM counted, and those that follow from them; all are estimates but the block size."""
    printed, memory = start.printed, found.memory
    items = {item.name: item for item in memory.items}
    graphs = items.get("CUDA graphs")
    counted = graphs is not None and graphs.counted

    def sized(name: str, seen: float, size: Estimate) -> Compared:
        return Compared(name, seen, size.likely / GIB, size.least / GIB, size.most / GIB)

    if "weights_gib" in printed:
        yield sized("weights", printed["weights_gib"], items["weights"].size)
    if "estimated_graphs_gib" in printed and graphs and counted:
        yield sized("graphs", printed["estimated_graphs_gib"], graphs.size)
    if "weights_gib" in printed and start.kv_cache_gib and ("estimated_graphs_gib" in printed or not counted):
        rest = [item for item in memory.items if item.counted and item.name not in ("weights", "CUDA graphs")]
        taken = printed["weights_gib"] + (printed["estimated_graphs_gib"] if counted else 0.0)
        yield sized("the rest", memory.requested / GIB - taken - start.kv_cache_gib, added(rest))
    if start.kv_cache_gib:
        yield sized("KV cache", start.kv_cache_gib, memory.kv_cache)
    if "block_size" in printed:
        yield Compared("block size", printed["block_size"], *[found.layout.block_size] * 3)
    if start.kv_cache_gib and not start.refused and "counted_kv_cache_gib" not in printed:
        yield from _held(start, found)


def _held(start: Start, found: Fit) -> Iterator[Compared]:
    """Compare what vLLM made of the memory that it had: there is nothing to estimate in it."""
    stages = len(found.layout.bytes_per_block)
    # vLLM prints GiB with two digits.
    likely, least, most = (
        capacity(found.layout, found.deployment, [int((start.kv_cache_gib + more) * GIB)] * stages)
        for more in (0.0, -0.005, 0.005)
    )
    for name in ("tokens", "concurrency"):
        if name in start.printed:
            of = "printed" if name == "tokens" else name
            yield Compared(name, start.printed[name], *(getattr(one, of) for one in (likely, least, most)))
