"""A plan as the contract's JSON object. Sizes are GiB, rounded to a thousandth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vpatch.plan.arithmetic import arithmetic_of
from vpatch.plan.estimates import Estimate
from vpatch.plan.model import GIB
from vpatch.plan.planner import Plan


def as_object(plan: Plan, commands: Mapping[str, str]) -> dict[str, Any]:
    """Give the fields that only this command has."""
    fit, deployment = plan.fit, plan.deployment
    memory, layout = fit.memory, fit.layout
    return {
        "vllm": str(deployment.vllm),
        "model": {
            "name": plan.model.name,
            "revision": plan.model.revision,
            "architecture": plan.model.architecture,
            "hybrid": plan.model.hybrid,
            "unknown": list(plan.model.unknown),
        },
        "gpu": {"name": deployment.gpu.name, "gib": gib(deployment.gpu.memory)},
        "fits": fit.fits,
        "overlays": [
            {"id": n.id, "needed": n.needed, "because": n.because, "state": n.state, "opt_in": n.opt_in}
            for n in plan.needs
        ],
        "kv_cache": {
            "dtype": deployment.kv_cache_dtype,
            **bounded("gib", memory.kv_cache),
            "block_size": layout.block_size,
            "page_bytes": layout.page_bytes,
            "state_bytes": layout.state_bytes,
            "groups": len(layout.groups),
            "blocks": fit.likely.blocks,
            "blocks_per_request": fit.likely.blocks_per_request,
            "slots": fit.likely.slots,
            "tokens": fit.likely.tokens,
            "prints": "slots" if arithmetic_of(deployment.vllm).prints_slots else "tokens",
            "concurrency": round(fit.likely.concurrency, 4),
            "least_concurrency": round(fit.least.concurrency, 4),
            "max_model_len": deployment.max_model_len,
        },
        "memory": {
            "total_gib": gib(memory.total),
            "requested_gib": gib(memory.requested),
            "needed_gib": gib(fit.needed),
            "items": [
                {"name": item.name, **bounded("gib", item.size), "counted": item.counted, "because": item.because}
                for item in memory.items
            ],
            "left": bounded("gib", memory.left),
        },
        "advice": asdict(plan.advice),
        "warnings": [asdict(caution) for caution in plan.cautions],
        "commands": dict(commands),
    }


def gib(size: int) -> float:
    """Give bytes as GiB."""
    return round(size / GIB, 3)


def bounded(name: str, size: Estimate) -> dict[str, float]:
    """Give an estimate: what is likely under `name`, and its bounds where there are some."""
    if size.exact:
        return {name: gib(size.likely)}
    return {name: gib(size.likely), f"least_{name}": gib(size.least), f"most_{name}": gib(size.most)}
