"""Made-up runs in which every claim holds, for the tests of the claims and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vpatch.plan import GIB, MIB
from vpatch.plan.kv_cache import capacity, layout
from vpatch.plan.memory import account

from tests.validation.gpu.drive import jobs
from tests.validation.gpu.engines import DECODE, EXTRA, FARM, PATCHED, STOCK, TREES, WORKSPACE, Probe
from tests.validation.gpu.evidence import Evidence
from tests.validation.gpu.families import FAMILIES
from tests.validation.gpu.full_size import FULL_SIZE
from tests.validation.gpu.planned import deployment_of
from tests.validation.gpu.running import AGAIN, LOADED
from tests.validation.gpu.scenarios import SCENARIOS
from tests.validation.gpu.speculation import SPECULATION
from tests.validation.gpu.trees import Trees

RELEASES = ("0.20.2", "0.21.0", "0.24.0", "0.26.0")
LOCKED = "AssertionError: Workspace is locked but allocation from 'turboquant_attn.py:747:_continuation_prefill'"
HYBRID_ERRORS: dict[str, str | None] = {
    "0.20.2": "NotImplementedError: TurboQuant KV cache is not supported for hybrid models",
    "0.21.0": LOCKED,
    "0.24.0": None,
    "0.26.0": "ValueError: Unknown TurboQuant cache dtype: 'auto'",
}

DEAD = {
    (WORKSPACE, "ngram workspace"): "ValueError: TurboQuant KV cache with speculative decoding would compute wrong "
    "attention. The vpatch overlay turboquant-mtp corrects this.",
}
DRAFTED = {probe.name for probes in SPECULATION.values() for probe in probes}

Run = dict[str, Any]


def good(release: str) -> Run:
    """Return a run of every scenario on a release."""
    names = (*TREES, *EXTRA)
    trees = Trees(release, {name: Path(name) for name in names}, {name: {} for name in names}, {})
    wanted = jobs(list(SCENARIOS), trees)
    return {
        "commit": "0123456789ab",
        "command": "python -m tests.validation.gpu",
        "date": f"2026-01-{RELEASES.index(release) + 1:02}T00:00:00+00:00",
        "machine": {"gpu": "NVIDIA H200", "driver": "1", "cpu": "16 x a processor", "torch": "2.11.0", "cuda": "13.0",
                    "triton": "3.6.0", "python": "3.12.3", "memory_mib": 143000},
        "vllm": release,
        "scenarios": list(SCENARIOS),
        "overlays": {name: {"turboquant-hybrid": "applied"} for name in TREES},
        "missing": {},
        "results": [_result(release, tree, probe) for tree, probe in wanted],
        "compared": [gap for tree, probe in wanted for gap in _gaps(release, tree, probe)],
    }  # fmt: skip


def without(run: Run, tree: str) -> Run:
    """Return the run with one tree missing."""
    return run | {
        "missing": {tree: "no such overlay"},
        "results": [one for one in run["results"] if one["tree"] != tree],
        "compared": [one for one in run["compared"] if one["tree"] != tree],
    }


def result_of(run: Run, tree: str, probe: str) -> Run:
    """Return what a run says of a probe on a tree, to read or to change."""
    found: Run
    (found,) = (one for one in run["results"] if (one["tree"], one["probe"]) == (tree, probe))
    return found


def dies_of(release: str, tree: str, probe: Probe) -> str | None:
    """Return the error with which a probe fails on a stock release, or ""."""
    if (tree, probe.name) in DEAD:
        return DEAD[tree, probe.name]
    if tree != STOCK or (probe.name in DRAFTED and probe.name != "ngram"):
        return None
    if probe.name == "ngram":
        capture = "RuntimeError: Cannot copy between CPU and CUDA tensors during CUDA graph capture"
        return capture if release == "0.20.2" else HYBRID_ERRORS[release]
    if probe.kv != "auto" and probe.model.startswith("hyb") and "eager" not in probe.name:
        eager = probe.engine.get("enforce_eager") and release == "0.21.0"
        return None if eager else HYBRID_ERRORS[release]
    if probe.name in ("dense", "prefix") and release == "0.21.0":
        return LOCKED
    return "ValueError: no module named 'lm_head.weight_scale'" if probe.name.endswith("block fp8") else None


def _result(release: str, tree: str, probe: Probe) -> dict[str, Any]:
    error = dies_of(release, tree, probe)
    result: dict[str, Any] = {"tree": tree, "probe": probe.name, "ok": not error, "error": error, "s": 20.0}
    if not probe.steps:
        return result | {"events": [{"tests": 121, "failed": 7 * (tree == STOCK), "skipped": 0, "names": []}]}
    if probe.model in (*FULL_SIZE, *FAMILIES):
        return result | _planned(release, probe)
    if probe.name in DRAFTED:
        return result | {"events": [] if error else drafted(release, tree, probe)}
    entered = 0.1 + 2.3 * probe.cold + 0.2 * (tree == FARM)
    ready = 14.0 + entered + 0.5 * probe.name.endswith("2")
    starts = {
        "start_s": 9.5,
        "entered_s": entered,
        "ready_s": ready,
        "kv_blocks": 900,
        "block_size": 3072,
        "used_mib": 16000,
    }
    dead = error and error != LOCKED
    return result | {"kv_tokens": 1234567, "events": [] if dead else [starts, *_events(tree, probe, bool(error))]}


def drafted(release: str, tree: str, probe: Probe) -> list[dict[str, Any]]:
    """Return the events of a probe of speculative decoding."""
    wrong = tree in (STOCK, WORKSPACE)
    count = int(probe.name.split()[0]) if probe.name.endswith(" drafts") else 0
    faster = 100 * count * (1 if tree == DECODE else -1)
    (action, lengths) = probe.steps[-1]
    starts = {"start_s": 9.5, "block_size": 528, "used_mib": 9000}
    found: dict[str, list[dict[str, Any]]] = {
        "counts": [{"steps": 600, "rows": 4700, "mismatches": 12 * wrong, "wrong_steps": 12 * wrong,
                    "accepted": {"1": 9, "2": 9, "3": 9, "4": 9}, "examples": []}],
        "converse": [{"conversation": i, "block": 528, "prompt": 1740, "cached": 1088 * wrong} for i in range(4)],
        "repeat": [{"repetition": part, "ids": 200, "digest": "ab" if wrong and "plain" not in probe.name else "aa",
                    "right": 3 if wrong and "plain" not in probe.name else 200} for part in ("alone", "beside 0")],
        "answer": [{"answers": 6, "asked": 6}],
        "soak": [{"soak_s": lengths[0] if lengths else 0, "asked": 900, "answers": 900, "tokens": 9000, "cached": 5,
                  "most_at_once": 30}],
        "turns": [{"turns": 2, "batch": 4, "context": 64, "prefill_per_s": [1e5, 2e5], "decode_per_s": [1e3, 2e3]}],
        "draft speed": [{"answers_per_s": [900.0 + faster, 950.0 + faster], "requests": 8,
                         "tokens_in_a_step": [2.9, 2.9]}],
        "replay": [_replayed(of, name, part) for of, name in probe.of for part in _parts(name)],
    }  # fmt: skip
    return [starts, *found[action.removesuffix(" early")]]


def _parts(name: str) -> tuple[str, ...]:
    return ("first", "second") if name.startswith("prefix") else ("answer",)


def _replayed(tree: str, name: str, part: str) -> dict[str, Any]:
    wrong = tree == STOCK and part != "first" and name in ("prefix mtp", "mtp", "mtp eager")
    return {"replayed": f"{name}, {tree}", "part": part, "requests": 900, "tokens": 9000, "left": 0,
            "mean": 0.8 if wrong else 0.1, "bias": 0.01, "p99": 0.4, "max": 2.0}  # fmt: skip


def _planned(release: str, probe: Probe) -> dict[str, Any]:
    """Return an engine's report that agrees exactly with the plan."""
    total = 143000 << 20
    bare = {(PATCHED, probe.name): {"events": [{"requested": 0, "total": total}], "error": None}}
    model, deployment = deployment_of(Evidence(release, results=bare), probe.name)
    laid = layout(model, deployment)
    (memory,) = account(model, deployment, laid.block_size)
    held = capacity(laid, deployment, [memory.kv_cache.likely])
    sizes = {item.name: item.size.likely for item in memory.items}
    return {
        "kv_tokens": held.tokens,
        "concurrency": round(held.concurrency, 2),
        "graphs_gib": 0.5,
        "events": [
            {"start_s": 60.0, "kv_blocks": held.blocks, "block_size": laid.block_size, "used_mib": 1},
            {
                "total": total, "free_at_start": total - GIB, "requested": memory.requested,
                "weights": sizes["weights"] + sizes.get("TurboQuant buffers", 0), "activations": sizes["activations"],
                "non_torch": sizes["runtime"], "graphs": sizes["CUDA graphs"], "kv_cache": memory.kv_cache.likely,
                "kv_cache_taken": held.blocks * laid.bytes_per_block[0], "groups": list(laid.groups),
            },
            {"prompt": 64, "used_mib": (total - memory.left.likely) // MIB, "reserved_mib": 9, "peak_allocated_mib": 8,
             "workspace_mib": 34.0, "locked": True, "layer_buffers_mib": 0},
        ],
    }  # fmt: skip


def _events(tree: str, probe: Probe, dead: bool) -> list[dict[str, Any]]:  # noqa: FBT001
    events: list[dict[str, Any]] = []
    used = 16100
    for action, lengths in probe.steps:
        if action == LOADED[0]:
            events.append(_loaded(tree))
        for n in lengths if action in ("serve", "watched", "logprobs") and not dead else ():
            used += n // 10 if tree == STOCK else 0
            buffers = 160 if tree == STOCK else 0
            events.append({"prompt": n, "used_mib": used, "reserved_mib": 9, "peak_allocated_mib": 8,
                           "workspace_mib": 34.0, "locked": True, "layer_buffers_mib": buffers})  # fmt: skip
        if action == "watched":
            over = 400 if tree != "patched" else 17000
            events.append({"start_minus_budget_mib": 300, "peak_minus_budget_mib": over})
        if action == "prefill" and not dead:
            events.append({"prefill": lengths[0], "tokens_per_s": [100000, 90000, 101000], "used_mib": used})
        if action == "decode speeds":
            events += _decode_speeds(tree, probe, lengths)
        if action == "decode":
            events += [
                {"context": n, "batch": b, "tokens_per_s": [178.0, 180.0, 181.0]} for n in lengths for b in (1, 8)
            ]
    return events


def _loaded(tree: str) -> dict[str, Any]:
    extensions = ["vllm/_C.abi3.so", "vllm/_moe_C.abi3.so"]
    proof: dict[str, Any] = dict.fromkeys(("overlays", "digest", "asked"))
    if tree == FARM:
        digest = "0123456789abcdef" * 4
        proof = {"overlays": ["turboquant-hybrid", "turboquant-tiles"], "digest": digest, "asked": digest}
    return {"modules": 700, "elsewhere": [], "extensions": extensions, "linked": 2 * (tree == FARM),
            "changed": ["vllm/engine/arg_utils.py"] * (tree == FARM), "held": tree == FARM, **proof}  # fmt: skip


def _decode_speeds(tree: str, probe: Probe, lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    rate, busy = (250.0, 2.0) if probe.kv == "auto" else (300.0, 1.7) if tree == DECODE else (100.0, 6.0)
    shapes = [{"decode_batch": b, "context": n} for b, n in zip(lengths[::2], lengths[1::2], strict=True)]
    return [
        *(shape | {"tokens_per_s": [rate + 9, rate - 9, rate]} for shape in shapes),
        *(shape | {"busy_ms": busy, "kernels_ms": {"a": 1.0}} for shape in shapes),
        {"compiled_while_serving": ["_tq_full_dequant_kv"]},
    ]


def _gaps(release: str, tree: str, probe: Probe) -> list[dict[str, Any]]:
    found = []
    for to_tree, to_probe in probe.references:
        other = next(p for probes in SCENARIOS.values() for p in probes if p.name == to_probe)
        if (tree, probe.name) == (to_tree, to_probe) or tree not in probe.trees:
            continue
        if dies_of(release, tree, probe) or dies_of(release, to_tree, other):
            continue
        lengths = {n for p in (probe, other) for action, ns in p.steps if action == "logprobs" for n in ns}
        for n in sorted(n for n in lengths if all(any(n in ns for _, ns in p.steps) for p in (probe, other))):
            mean = (
                3.5
                if "shifted" in probe.name
                else 0.0
                if (tree in (PATCHED, FARM) and probe.name == to_probe) or probe.name == AGAIN
                else 0.01
            )
            found.append({"tree": tree, "probe": probe.name, "to_tree": to_tree, "to_probe": to_probe, "length": n,
                          "part": "later", "tokens": n, "mean": mean, "max": 4 * mean, "same_top": 1.0})  # fmt: skip
    return found
