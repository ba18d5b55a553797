"""Print how far `vpatch plan` is from starts of vLLM that people published.

    python -m benchmarks.calibrate [docs/starts/held-out]

A record in `docs/starts` has the lines that vLLM printed, their source, and the model's shape. The folder `calibration`
served to set the estimates of `builder/vpatch/plan/memory.py`, `held-out` did not. A checkpoint whose config was not at
hand is planned with the shape of its family and the weights that vLLM printed; the others are planned from the config
alone. By family of cards, the table has how far the KV cache is off, how often the truth is within the bounds, how
often the number of tokens is vLLM's own, and what was said of starting.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from packaging.version import Version
from vpatch.errors import Failure, Problem
from vpatch.plan import GIB, Model
from vpatch.plan.checkpoint import model_of
from vpatch.plan.defaults import gpu
from vpatch.plan.deployment import Gpu
from vpatch.plan.log_comparison import Comparison, compare
from vpatch.plan.startup_log import Start, start_of
from vpatch.plan.weights import with_total

STARTS = Path(__file__).parents[1] / "docs/starts"
SPEAKING = 1.0  # GiB: an error in per cent says little of a smaller KV cache
LAYOUT = ("block_size", "tokens", "concurrency")  # what blocks of another size than the plan's change
COLUMNS = ("cards", "starts", "KV cache: median", "90 %", "worst", "in bounds", "tokens exact", "starts: right, false")


@dataclass(frozen=True)
class Row:
    """One start beside its plan."""

    name: str
    cards: str
    found: Comparison
    started: bool | None  # None: it stopped later, for a reason that is not known

    @property
    def error(self) -> float | None:
        """How far the planned KV cache is off, as a share; None if it says little."""
        cache = self._number("KV cache")
        return abs(cache.error) if cache and cache.printed >= SPEAKING else None

    @property
    def within(self) -> bool | None:
        """Whether the printed KV cache is within the plan's bounds."""
        cache = self._number("KV cache")
        return cache.within if cache else None

    @property
    def exact(self) -> bool | None:
        """Whether the layout gives as many tokens as vLLM printed, to the digits of the KV cache's size."""
        tokens = self._number("tokens")
        return tokens.least * 0.999 <= tokens.printed <= tokens.most * 1.001 if tokens else None

    @property
    def false_fit(self) -> bool:
        """Whether the plan says that it starts, even at the worst of its bounds, and vLLM refused."""
        return self.found.fit.fits and self.found.fit.surely and self.started is False

    @property
    def right(self) -> bool | None:
        """Whether it is likely to start by the plan, and does, or neither; None if that is not known."""
        return None if self.started is None else self.found.fit.fits is self.started

    def _number(self, name: str) -> Any:
        return next((one for one in self.found.numbers if one.name == name), None)


def started(record: dict[str, Any], name: str) -> Start:
    """Return what vLLM printed; a record of an author's sentences has the numbers in them under `told`."""
    vllm = record.get("planned_as", record["vllm"])  # for a build whose version does not name its release
    arguments = record["arguments"] | {
        rank: record[rank] for rank in ("tensor_parallel_size", "pipeline_parallel_size")
    }
    if told := record.get("told"):
        return Start(Version(vllm), arguments, told, record["started"] is False)
    start = replace(start_of(record["log"], name, vllm, arguments), refused=record["started"] is False)
    if "block_size" not in start.arguments:
        return start
    memory = {key: value for key, value in start.printed.items() if key not in LAYOUT}
    given = {key: value for key, value in start.arguments.items() if key != "block_size"}
    return replace(start, arguments=given, printed=memory)


def model(record: dict[str, Any], start: Start) -> Model:
    """Return the model of a record; raise `Failure` if its shape is not recorded."""
    if not record["shape"]:
        raise Failure(Problem("unknown shape", record["model"], "no config is recorded"))
    file = STARTS / "configs" / f"{record['shape'].replace('/', '--')}.json"
    found = model_of(json.loads(file.read_text()), str(file), name=record["model"])
    if record["quantization"]:
        weights = start.printed.get("weights_gib")
        if weights is None:
            raise Failure(Problem("unknown weights", record["model"], "vLLM did not print them"))
        ranks = record["tensor_parallel_size"]
        assert found.weights  # noqa: S101 - for mypy
        # vLLM prints the weights with drafts, and without a vision tower that it leaves out; plan is given the reverse.
        if start.arguments.get("speculative_config"):
            weights -= found.weights.draft / ranks / GIB
        if start.arguments.get("language_model_only"):
            found = replace(found, weights=replace(found.weights, vision=0))
        found = replace(_weighing(found, weights, ranks), quantization=record["quantization"])
    return replace(found, tower=None) if record["language_model_only"] else found


def _weighing(found: Model, weights: float, ranks: int) -> Model:
    """Return the model with the weights of which each rank of tensor parallelism has so many GiB."""
    split = with_total(found, weights * ranks).weights
    assert split  # noqa: S101 - for mypy
    return with_total(found, weights * ranks / (1 + (ranks - 1) * split.whole / split.loaded))


def card(record: dict[str, Any]) -> Gpu:
    """Return the GPU of a record; raise `UnknownName` if neither it nor its memory is known."""
    return gpu(record["gpu"], int(record["total_gib"] * GIB) if record["total_gib"] else None)


def cards(one: Gpu, found: Model) -> str:
    """Return the family of cards and models that a start belongs to."""
    where = "unified memory" if one.unified else "data center" if one.nvlink else "consumer, workstation"
    return f"{where}, {'hybrid' if found.hybrid else 'MoE' if found.experts else 'dense'}"


def rows(folder: Path) -> Iterator[Row | Failure]:
    """Yield each start with its plan, or the reason why it cannot be planned."""
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        try:
            start = started(record, path.stem)
            found, one = model(record, start), card(record)
            yield Row(path.stem, cards(one, found), compare(found, start, one), record["started"])
        except Failure as failure:
            yield failure


def line(name: str, some: Sequence[Row]) -> tuple[str, ...]:
    """Return a line of the table."""
    errors = sorted(row.error for row in some if row.error is not None)
    inside = [row.within for row in some if row.within is not None]
    exact = [row.exact for row in some if row.exact is not None]
    middle = f"{median(errors):.1%}" if errors else "-"
    most = f"{quantiles(errors, n=10, method='inclusive')[-1]:.1%}" if len(errors) > 1 else "-"
    worst = max((row for row in some if row.error is not None), key=lambda row: row.error or 0, default=None)
    told = f"{worst.error:.1%} {worst.name}" if worst else "-"
    known = [row.right for row in some if row.right is not None]
    right = f"{sum(known)} of {len(known)}, {sum(row.false_fit for row in some)} false fits"
    return (
        name,
        str(len(some)),
        middle,
        most,
        told,
        f"{sum(inside)} of {len(inside)}",
        f"{sum(exact)} of {len(exact)}",
        right,
    )


def main(folder: Path) -> None:
    """Print the table of a folder of records."""
    found = list(rows(folder))
    planned = [row for row in found if isinstance(row, Row)]
    families = sorted({row.cards for row in planned})
    table = [COLUMNS, *(line(one, [row for row in planned if row.cards == one]) for one in families)]
    table.append(line("all", planned))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        sys.stdout.write("  ".join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)).rstrip() + "\n")
    for row in planned:
        if row.within is False or row.right is False:
            numbers = ", ".join(f"{one.name} {one.printed:g}, plan {one.planned:.2f}" for one in row.found.numbers)
            sys.stdout.write(f"off: {row.name}: {numbers}\n")
    sys.stdout.write(f"not planned: {len(found) - len(planned)}\n")
    for failure in found:
        if isinstance(failure, Failure):
            sys.stdout.write(f"  {str(failure.problems[0])[:160]}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=STARTS / "held-out")
    main(parser.parse_args().folder)
