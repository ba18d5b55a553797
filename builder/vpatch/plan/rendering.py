"""A plan as lines for a pipe, as a page for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vpatch.errors import Code
from vpatch.plan import GIB, Estimate, Model
from vpatch.plan.cautions import ALIGNS, Caution
from vpatch.plan.deployment import Deployment
from vpatch.plan.fit import Fit
from vpatch.plan.verdict import FITTING, Plan, PlanVerdict
from vpatch.wrapping import wrapped

FILLS, FREE = "█▓▒▤▥▦▧▨▚▞", "░"
_NARROW = 24  # columns that a reason needs beside its row
_BELOW = " " * 6  # before a reason below its row
_TOGETHER = "\N{NO-BREAK SPACE}"
_NEEDED = {True: "needed", False: "not needed", None: "unknown"}

Rows = Sequence[tuple[str, ...]]


def lines(plan: Plan, commands: Mapping[str, str], *, verbose: bool = False) -> Iterator[str]:
    """Yield the verdict, then one fact per line, as `what: name: ...`, and the commands."""
    yield title(plan.verdict, plan.model, plan.deployment)
    yield from _reasons(plan)
    if verbose:
        for what, rows in _facts(plan).items():
            for row in rows:
                yield ": ".join(({"overlays": "overlay"}.get(what, what.lower()), *row))
    else:
        yield f"kv cache: {_short(plan)}"
        yield from (f"advice: {one}" for one in _recommended(plan))
    for name, command in commands.items():
        yield from (f"# {_marked(name, plan.verdict)}", *command.split("\n"))


def page(plan: Plan, commands: Mapping[str, str], width: int, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal of so many columns."""
    for line in (title(plan.verdict, plan.model, plan.deployment), *_reasons(plan)):
        yield from wrapped(line, width, hanging="  ")
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
    for name, command in commands.items():
        yield from ("", f"{_marked(name, plan.verdict)}:", *command.split("\n"))


def title(verdict: PlanVerdict, model: Model, deployment: Deployment) -> str:
    """Return the line that everything else explains: the verdict on a model on its GPUs, for a release."""
    revision = f" ({model.revision})" if model.revision else ""
    cards = f"{deployment.gpus} x {deployment.gpu.name}" if deployment.gpus > 1 else deployment.gpu.name
    return f"{verdict.value}: {model.name}{revision} on {cards}, vLLM {deployment.vllm}"


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
        "KV cache types": [*_types(plan)],
        "advice": [(advice,) for advice in _advice(plan)],
    }


def _types(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield what fits with each type of KV cache: requests; tokens, what a request takes, and the overlays for it.

    What every type needs, such as the overlays for a hybrid model, tells no type from another.
    """
    of_all = set[str].intersection(*({*one.overlays} for one in plan.choices)) if plan.choices else set[str]()
    for one in plan.choices:
        own = [name for name in one.overlays if name not in of_all]
        overlays = f"; needs {', '.join(own)}" if own else ""
        this = "; this plan" if one.dtype == plan.deployment.kv_cache_dtype else ""
        tokens = f"{one.fit.likely.tokens:,} tokens, {one.fit.request / GIB:.2f} GiB a request"
        yield one.dtype, f"{one.fit.likely.concurrency:.2f} requests", f"{tokens}{overlays}{this}"


def _bar(plan: Plan, width: int) -> Iterator[str]:
    memory = plan.fit.memory  # drawn as one line, with the key below
    columns = max(20, min(width, 100))
    sizes = [(item.name, item.size.likely) for item in memory.items if item.counted]
    sizes.append(("KV cache", max(0, memory.kv_cache.likely)))
    sizes += [(item.name, item.size.likely) for item in memory.items if not item.counted]
    drawn, key, end = "", [], 0
    for fill, (name, size) in zip(FILLS, sizes, strict=False):
        end += size
        part = fill * (min(columns, round(end / memory.total * columns)) - len(drawn))
        drawn += part
        if part:  # else it is too small to be seen, or beyond the end of the card
            key.append(f"{fill} {name}")
    if end > memory.total:
        key.append(f"{(end - memory.total) / GIB:.2f} GiB more than the card has")
    elif len(drawn) < columns:
        key.append(f"{FREE} free")
    yield drawn + FREE * (columns - len(drawn))
    whole = "  ".join(one.replace(" ", _TOGETHER) for one in key)
    yield from (line.replace(_TOGETHER, " ") for line in wrapped(whole, width))


def _sizes(plan: Plan) -> Iterator[tuple[str, str, str]]:
    memory = plan.fit.memory
    for item in memory.items:
        yield item.name, _sized(item.size), item.because + ("" if item.counted else " (on top of vLLM's share)")
    share = f"what is left of vLLM's share, {memory.requested / GIB:.2f} GiB"
    yield "KV cache", _sized(memory.kv_cache), "as asked for" if memory.kv_cache.exact else share
    yield "free", _sized(memory.left), f"of {memory.total / GIB:.2f} GiB, with everything in use"


def _sized(size: Estimate) -> str:
    least, likely, most = ("none" if one < 0 else f"{one / GIB:.2f}" for one in (size.least, size.likely, size.most))
    shown = likely if size.likely < 0 else f"{likely} GiB"
    return shown if size.exact or size.most < 0 else f"{shown} ({least} to {most})"


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


def _reasons(plan: Plan) -> Iterator[str]:
    """Yield why a deployment does not do what was asked; what would is with the problems."""
    for problem in plan.problems:
        where = "" if problem.code in (Code.CANNOT_KNOW, Code.DOES_NOT_FIT) else f"{problem.where}: "
        yield f"reason: {where}{problem.cause}"


def _recommended(plan: Plan) -> Iterator[str]:
    usual = {need.id for need in plan.needs if not need.opt_in} if plan.usual is None else plan.usual
    default = sum(need.missing and need.id in usual for need in plan.needs)
    names = [need.id for need in plan.needs if need.needed and need.missing]
    if names and plan.verdict not in FITTING:  # which a smaller deployment needs, too, and no command shows
        yield f"overlays that are needed: {', '.join(names)}"
    needed = sum(bool(need.needed) for need in plan.needs)
    if plan.usual is not None and (left := [name for name in names if name not in usual]):
        yield f"`vpatch apply` alone leaves these out, which the project's file does not select: {', '.join(left)}"
    elif 0 < needed < default and plan.verdict in FITTING:
        more = f"{needed} overlay{'s are' if needed > 1 else ' is'} needed, and `vpatch apply` alone applies {default}"
        own = ", ".join(need.id for need in plan.needs if need.needed is None and need.missing and need.id in usual)
        fine = f"both are fine, since the other {default - needed} correct what other deployments run into"
        yield f"{more}; the commands here are without {own}, which `--with` adds" if own else f"{more}: {fine}"
    if plan.fit.starves_prompts and ALIGNS in plan.overlays:
        goes = "lets a long prompt go on by a whole block in each step while others decode"
        yield f"--max-num-batched-tokens {plan.fit.least_batch} {goes}"
    if names := [need.id for need in plan.needs if need.recommended and need.id not in plan.more]:
        add, it = "adds an opt-in overlay that is", "it"
        if len(names) > 1:
            add, it = "add opt-in overlays that are", "them"
        words = " ".join(f"--with {name}" for name in names)
        yield f"`{words}` {add} recommended for this deployment; this plan and its commands are without {it}"


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
        "warnings": [_only(caution, "name", "because", "source") for caution in cautions],
        "commands": dict(commands),
    }


def _only(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _gib(size: int) -> float:
    return round(size / GIB, 3)


def _bounded(size: Estimate) -> dict[str, float]:
    bounds = {} if size.exact else {"least_gib": _gib(size.least), "most_gib": _gib(size.most)}
    return {"gib": _gib(size.likely), **bounds}
