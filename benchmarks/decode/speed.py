"""The time of a layer: our kernels, vLLM's, and flash attention on a bf16 cache."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from benchmarks.decode.cases import PAGE, Speed
from benchmarks.decode.kernels import StillDispatched, check_stock, flash_versions, ours
from benchmarks.decode.layers import (
    GIB,
    Layers,
    flash_calls,
    flash_pages_of,
    flash_pool,
    free_memory,
    heads_first,
    needed,
    pages_of,
    quantized_bytes,
    quantized_pool,
)
from benchmarks.decode.timing import per_layer
from benchmarks.decode.workers import Clock

SHORT = 256  # tokens of the context with which kernels are compiled
DIFFERENCE = 0.02
"""Relative difference of our output and vLLM's above which one of them computes something else."""


def to_compile(cases: Sequence[Speed]) -> list[Speed]:
    """Return cases that between them compile every kernel of `cases`."""
    found: dict[tuple[Any, ...], Speed] = {}
    for case in cases:
        launch = ours().choose(*case.chosen_by)
        compiled = replace(launch, programs=1)  # the number of programs is not compiled in
        key = (case.preset, *case.shape, case.window, case.correct, compiled)
        found.setdefault(key, replace(case, context=SHORT))
    return list(found.values())


def compile_case(case: Speed) -> str | None:
    """Run the kernels of a case once, so that Triton's cache has them; return the error if there is one."""
    import torch

    try:
        made = Layers(case, quantized_pool(case, case.batch * SHORT // PAGE, first=heads_first()), count=1)
        for call in (made.ours()[0], made.stock()[0]):
            call()
        torch.cuda.synchronize()
    except Exception as error:  # the measurement meets it again, and records it
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        torch.cuda.empty_cache()
    return None


class Speeds:
    """Measures cases; keeps the caches that consecutive cases share."""

    def __init__(self) -> None:
        self._versions, self._no_flash = flash_versions()
        self._flash_pool: tuple[Any, Any] | None = None
        self._flash_times: dict[tuple[Any, ...], dict[str, Any]] = {}

    def run(self, cases: Sequence[Speed], clock: Clock) -> Iterator[tuple[Speed, dict[str, Any] | None]]:
        """Yield cases with their records, and with None those that the deadline left out.

        Raises:
            StillDispatched: vLLM's kernel cannot be timed.
        """
        check_stock("cuda")
        for _, of_model in groupby(cases, lambda case: (case.size, case.kv_heads)):
            self._flash_pool = None
            model = list(of_model)
            for _, of_preset in groupby(model, lambda case: case.preset):
                yield from self._preset(list(of_preset), model, clock)

    def _preset(
        self, cases: list[Speed], model: Sequence[Speed], clock: Clock
    ) -> Iterator[tuple[Speed, dict[str, Any] | None]]:
        """Measure cases that share a quantized cache; `model` are those that share the bf16 cache."""
        gc.collect()
        free = free_memory()
        if self._flash_pool:
            free += sum(tensor.nbytes for tensor in self._flash_pool)
        fitting = [case for case in cases if needed(case) <= free]
        pool = None
        for case in cases:
            record = asdict(case) | {"label": case.label, "bytes": quantized_bytes(case)}
            if clock.over():
                yield case, None
                continue
            if case not in fitting:
                wanted, there = needed(case) / GIB, free / GIB
                yield case, record | {"skipped": f"needs {wanted:.1f} GiB of GPU memory, and {there:.1f} GiB are free"}
                continue
            try:
                if pool is None:
                    pool = quantized_pool(case, max(map(pages_of, fitting)), first=heads_first())
                if self._flash_pool is None and self._versions:
                    pages = max(flash_pages_of(each) for each in model if needed(each) <= free)
                    self._flash_pool = flash_pool(case, pages)
                record |= self._quantized(case, pool) | self._flash(case)
            except Exception as error:  # the other cases may well run
                record["error"] = f"{type(error).__name__}: {error}"[:500]
            free_memory()
            yield case, record

    def _quantized(self, case: Speed, pool: Any) -> dict[str, Any]:
        """Time our kernels and vLLM's on the same cache."""
        made = Layers(case, pool)
        mine, theirs = made.ours(), made.stock()
        exact = theirs[0]().float()
        difference = float((mine[0]().float() - exact).norm() / exact.norm())
        if not difference <= DIFFERENCE:
            raise ValueError(f"our output differs from that of vLLM's kernel by {difference:.2e}, relatively")
        return {
            "layers": made.count,
            "difference": difference,
            "ours_us": per_layer(mine),
            "stock_us": per_layer(theirs),
        }

    def _flash(self, case: Speed) -> dict[str, Any]:
        """Time the best version of flash attention that runs; presets share the result."""
        key = (case.shape, case.batch, case.context, case.window)
        if key not in self._flash_times:
            self._flash_times[key] = self._timed_flash(case, self._flash_pool)
        return self._flash_times[key]

    def _timed_flash(self, case: Speed, pool: Any) -> dict[str, Any]:
        reasons = [self._no_flash] if self._no_flash else []
        for version in self._versions:
            try:
                time = per_layer(flash_calls(case, pool, version))
            except Exception as error:  # another version may run
                reasons.append(f"version {version}: {type(error).__name__}: {error}"[:300])
                continue
            return {"flash_us": time, "flash_version": version, "flash_failed": reasons}
        return {"flash_us": None, "flash_reason": "; ".join(reasons)}


def measure(cases: Sequence[Speed], clock: Clock, keep: Callable[[Speed, dict[str, Any] | None], None]) -> str | None:
    """Measure cases and hand each record to `keep`; return why nothing could be measured, or None."""
    try:
        for case, record in Speeds().run(cases, clock):
            keep(case, record)
    except StillDispatched as error:
        return str(error)
    return None
