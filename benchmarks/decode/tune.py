"""The fastest launch parameters of this GPU, beside those of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from benchmarks.decode.cases import PAGE, PRESETS, Speed
from benchmarks.decode.kernels import ours
from benchmarks.decode.layers import Layers, heads_first, pages_of, quantized_pool
from benchmarks.decode.speed import DIFFERENCE, SHORT
from benchmarks.decode.timing import per_layer
from benchmarks.decode.workers import Clock

CONTEXTS = (1024, 16_384)
TILES, WARPS, PREFETCHES, REGISTERS = (32, 64, 128), (1, 2, 4, 8), (False, True), (None, 128)
PROGRAMS = (1, 2, 4, 8, 16)
FINALISTS = 4  # launches whose numbers of programs are varied


def tune_cases(shape: tuple[int, int, int], *, quick: bool = False) -> list[Speed]:
    """Return one case for each batch size. Its launch has to serve all contexts, since a CUDA graph has one launch."""
    return [Speed("4bit_nc", *shape, batch, CONTEXTS[-1]) for batch in ((1, 32) if quick else (1, 8, 32))]


def launch_of(case: Speed) -> Any:
    """Return the launch of the kernels' own table."""
    return ours().choose(*case.chosen_by)


def candidates(case: Speed) -> list[dict[str, Any]]:
    """Return launches to try, without those that `Launch` refuses, with the table's number of programs."""
    table = asdict(launch_of(case))
    found = [table]
    for tile, warps, prefetch, registers in product(TILES, WARPS, PREFETCHES, REGISTERS):
        launch = table | {"tile": tile, "warps": warps, "prefetch": prefetch, "registers": registers}
        try:
            ours().Launch(**launch)
        except ValueError:
            continue
        if launch not in found:
            found.append(launch)
    return found


@contextmanager
def launched(launch: Mapping[str, Any]) -> Iterator[None]:
    """Let the kernels use a launch inside the block."""
    module = ours()
    kept, made = module.choose, module.Launch(**launch)
    module.choose = lambda *_, **__: made
    try:
        yield
    finally:
        module.choose = kept


def jobs(cases: Iterable[Speed]) -> list[tuple[Speed, dict[str, Any]]]:
    """Return the launches to compile: the number of programs and the batch size are not compiled in."""
    found: dict[tuple[Any, ...], tuple[Speed, dict[str, Any]]] = {}
    for case in cases:
        for launch in candidates(case):
            compiled = tuple((launch | {"programs": 1}).items())
            found.setdefault(compiled, (replace(case, context=SHORT), launch))
    return list(found.values())


def compile_launch(job: tuple[Speed, dict[str, Any]]) -> str | None:
    """Run a launch once, so that Triton's cache has it; return the error if there is one."""
    import torch

    case, launch = job
    try:
        made = Layers(case, quantized_pool(case, case.batch * SHORT // PAGE, first=heads_first()), count=1)
        with launched(launch):
            made.ours()[0]()
        torch.cuda.synchronize()
    except Exception as error:  # a launch that does not compile is not tried
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        torch.cuda.empty_cache()
    return None


class Tuning:
    """The times of the launches of one batch size."""

    def __init__(self, case: Speed, clock: Clock) -> None:
        self._clock, self._case = clock, case
        cases = [replace(case, context=context) for context in CONTEXTS]
        pool = quantized_pool(case, max(map(pages_of, cases)), first=heads_first())
        self._layers = [Layers(each, pool) for each in cases]
        self._exact = [made.ours()[0]().float().clone() for made in self._layers]
        self.times: list[tuple[float, dict[str, Any], list[float]]] = []
        self.failed: list[str] = []

    def run(self) -> dict[str, Any]:
        """Time all launches, then the fastest ones with other numbers of programs; return the record."""
        table = asdict(launch_of(self._case))
        launches = candidates(self._case)
        self._try(launches)
        best = [launch for _, launch, _ in sorted(self.times, key=_time)[:FINALISTS]]
        others = [launch | {"programs": programs} for launch, programs in product(best, PROGRAMS)]
        self._try([launch for launch in others if launch not in launches])
        if not self.times:
            return {"error": "no launch ran", "complete": False, "failed": self.failed}
        mean, launch, each = min(self.times, key=_time)
        own = next((mean for mean, tried, _ in self.times if tried == table), None)
        return {
            "table": table,
            "best": launch,
            "ratio": own / mean if own else None,  # None if the table's own launch does not run
            "best_us": dict(zip(map(str, CONTEXTS), each, strict=True)),
            "tried": len(self.times),
            "complete": not self._clock.over(),
            "failed": self.failed,
            "all": [{"launch": launch, "us": each} for _, launch, each in sorted(self.times, key=_time)],
        }

    def _try(self, launches: Sequence[dict[str, Any]]) -> None:
        for launch in launches:
            if self._clock.over():
                return
            try:
                with launched(launch):
                    times = [self._time(made, exact) for made, exact in zip(self._layers, self._exact, strict=True)]
            except Exception as error:  # for instance too much shared memory
                self.failed.append(f"{launch}: {type(error).__name__}: {error}"[:300])
                continue
            self.times.append((math.prod(times) ** (1 / len(times)), launch, times))

    def _time(self, made: Layers, exact: Any) -> float:
        """Return the time of a layer with the current launch.

        Raises:
            ValueError: the output is wrong.
        """
        calls = made.ours()
        if not float((calls[0]().float() - exact).norm() / exact.norm()) <= DIFFERENCE:
            raise ValueError("the output is wrong")
        return per_layer(calls)


def _time(tried: tuple[float, dict[str, Any], list[float]]) -> float:
    return tried[0]


def measure(cases: Sequence[Speed], clock: Clock, keep: Callable[[Speed, dict[str, Any] | None], None]) -> None:
    """Tune each case and hand its record to `keep`, or None if the deadline left it out."""
    import torch

    for case in cases:
        if clock.over():
            keep(case, None)
            continue
        record = {"label": f"D {case.size}, {case.kv_heads} x {case.group}, batch {case.batch}, 1K and 16K"}
        try:
            found = Tuning(case, clock).run()
        except Exception as error:  # other batches may well run
            found = {"error": f"{type(error).__name__}: {error}"[:500], "complete": False}
        keep(case, record | {"rows": case.group * case.window, "requests": case.batch} | found)
        torch.cuda.empty_cache()


def launches(gpu: str, cases: Iterable[tuple[Speed, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the best launches in the form of the kernels' table."""
    found = [
        {
            "head_size": case.size,
            "rows": record["rows"],
            "requests": case.batch,
            "kv_heads": case.kv_heads,
            "key_bits": PRESETS[case.preset].key_bits,
            "value_bits": PRESETS[case.preset].value_bits,
            "launch": record["best"],
        }
        for case, record in cases
        if "best" in record
    ]
    return {"gpu": gpu, "launches": found}
