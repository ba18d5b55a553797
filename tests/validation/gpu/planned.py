"""Predictions of `vpatch plan` next to what engines reported when they started.

`python -m tests.validation.gpu.planned FILE...` prints them, from result files of runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version
from vpatch.plan import GIB, MIB, Model, exactly
from vpatch.plan.checkpoint import model_of
from vpatch.plan.deployment import Deployment, Gpu, release_of
from vpatch.plan.kv_cache import capacity, layout
from vpatch.plan.memory import account, added
from vpatch.plan.models import load

from tests.validation.gpu.drive import KILLED, NOT_RUN
from tests.validation.gpu.engines import PATCHED, engine_arguments
from tests.validation.gpu.evidence import PROBES, Evidence, Figure, gather, read
from tests.validation.gpu.full_size import FAMILIES, FULL_SIZE
from tests.validation.gpu.scenarios import SCENARIOS, WHOLE


@dataclass(frozen=True)
class Row:
    """One planned and measured quantity. `holds` is None if it is shown for comparison only."""

    what: str
    measured: str
    planned: str
    holds: bool | None


Rows = Callable[[Evidence, str], Iterator[Row]]


def model_named(name: str) -> Model:
    return load(FULL_SIZE[name]) if name in FULL_SIZE else model_of(FAMILIES[name], name, name=name)


def deployment_of(here: Evidence, probe: str) -> tuple[Model, Deployment]:
    """Return a probe's engine as a plan's deployment, on a GPU with the memory that was found."""
    (found,) = here.events(PATCHED, probe, "requested")
    engine = engine_arguments(PROBES[probe], "", 0)
    names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype",
             "enable_prefix_caching", "language_model_only")  # fmt: skip
    gpu = Gpu("H200", found["total"], (9, 0))
    given = {name: engine[name] for name in names}
    return model_named(PROBES[probe].model), Deployment(release=release_of(Version(here.release)), gpu=gpu, **given)


def laid_out(here: Evidence, probe: str) -> Iterator[Row]:
    """Compare the KV cache with the planned one of the same size; exact arithmetic must agree."""
    model, deployment = deployment_of(here, probe)
    (found,) = here.events(PATCHED, probe, "requested")
    started = here.events(PATCHED, probe, "block_size")[0]
    printed = here.result(PATCHED, probe)
    laid = layout(model, deployment)
    holds = capacity(laid, deployment, [found["kv_cache"]])
    pairs = (
        ("block size", f"{started['block_size']:,}", f"{laid.block_size:,}"),
        ("groups", str(sorted(found["groups"])), str(sorted(laid.groups))),
        ("blocks", f"{started['kv_blocks']:,}", f"{holds.blocks:,}"),
        ("bytes", f"{found['kv_cache_taken']:,}", f"{holds.blocks * laid.bytes_per_block[0]:,}"),
        ("tokens", f"{printed.get('kv_tokens', 0):,}", f"{holds.printed:,}"),
        ("concurrency", f"{printed.get('concurrency', 0):.2f}", f"{holds.concurrency:.2f}"),
    )
    yield from (Row(what, measured, planned, measured == planned) for what, measured, planned in pairs)


def counted(here: Evidence, probe: str) -> Iterator[Row]:
    """Compare vLLM's own counts and the final memory use with the plan's estimates and their bounds."""
    model, deployment = deployment_of(here, probe)
    (memory,) = account(model, deployment, layout(model, deployment).block_size)
    (found,) = here.events(PATCHED, probe, "requested")
    used = max(event["used_mib"] for event in here.events(PATCHED, probe, "used_mib")) * MIB
    measured = {
        # Buffers of each layer are made with the model, and vLLM counts them as weights.
        ("weights", "TurboQuant buffers"): found["weights"],
        ("runtime",): found["non_torch"],
        ("activations",): found["activations"],
        ("CUDA graphs",): found["graphs"],
    }
    for names, size in measured.items():
        items = [item for item in memory.items if item.name in names]
        estimate = added(items)
        yield _within(" and ".join(item.name for item in items), size, estimate.likely, estimate.least, estimate.most)
    cache, peak = memory.kv_cache, exactly(found["total"]) - memory.left
    yield _within("KV cache", found["kv_cache"], cache.likely, cache.least, cache.most)
    # Memory that only profiling used, for an image for instance, need not be in use again.
    (spare,) = [item.size.most for item in memory.items if item.name == "activations"]
    yield _within("in use", used, peak.likely, peak.least - spare, peak.most)
    before = found["total"] - found["free_at_start"]
    taken = here.result(PATCHED, probe).get("graphs_gib", 0.0)
    yield Row("in use before", f"{before / GIB:.2f}", "", None)
    yield Row("CUDA graphs in the end", f"{taken:.2f}", "", None)


def check(here: Evidence, scenario: str, rows: Rows) -> Iterator[Figure]:
    """Every engine of a scenario that started agrees with its plan."""
    for asked in SCENARIOS[scenario]:
        probe, result = asked.name, here.result(PATCHED, asked.name)
        if error := result["error"]:
            # Cut off by the session's deadline, with less time than an engine of this size needs: no verdict.
            cut = error.startswith(KILLED) and result["s"] < asked.least_s
            yield Figure(None if cut or error.startswith(NOT_RUN) else False, f"{probe}: {error}")
            continue
        for row in rows(here, probe):
            instead = "" if row.holds is not False else f" instead of {row.planned}"
            yield Figure(row.holds, f"{probe}, {row.what} {row.measured}{instead}")


def _within(what: str, size: int, likely: int, least: int, most: int) -> Row:
    planned = f"{likely / GIB:.2f} ({least / GIB:.2f} to {most / GIB:.2f})"
    return Row(what, f"{size / GIB:.2f}", planned, least <= size <= most)


def main(files: list[str]) -> None:
    for here in gather(read(map(Path, files))).values():
        for probe in (probe.name for name in WHOLE for probe in SCENARIOS[name]):
            if (PATCHED, probe) not in here.results:
                continue
            sys.stdout.write(f"\nvLLM {here.release}, {probe}: {here.result(PATCHED, probe)['error'] or ''}\n")
            if here.result(PATCHED, probe)["error"]:
                continue
            for row in (*laid_out(here, probe), *counted(here, probe)):
                mark = {True: "", False: "  <--", None: ""}[row.holds]
                sys.stdout.write(f"  {row.what:32} {row.measured:>24}   {row.planned}{mark}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
