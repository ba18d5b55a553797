"""The figures that the kernels must reach, as functions of the records. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
"""A measurement as `decode.json` has it: the fields of its case, and what was measured."""

SLACK = 1e-5  # relative error that counts as none
FP16_ERROR = 6e-4
"""Relative error allowed with fp16 output.

Rounding to fp16 alone gives 1.4e-4 and upwards. Queries, keys and weights are fp16 as well: the tensor cores take no
more. vLLM's kernel computes in float32, so its error is no bound here as it is with bf16.
"""

REFERENCE_GPU = "H200"  # the thresholds are those of this GPU
CONTEXTS = (16_384, 65_536)


@dataclass(frozen=True)
class Verdict:
    """A threshold and how near the worst measurement comes.

    Attributes:
        what: the quantity.
        least: the threshold, a ratio of times.
        worst: the smallest ratio measured; None if nothing was measured.
        case: its case.
        count: measurements.
    """

    what: str
    least: float
    worst: float | None = None
    case: str = ""
    count: int = 0

    @property
    def holds(self) -> bool | None:
        """Whether every measurement reaches the threshold; None if there are none."""
        return None if self.worst is None else self.worst >= self.least


def error_limit(dtype: str, stock: float) -> float:
    """Return the largest relative error that the kernels may have where vLLM's has the error `stock`."""
    limit = 1.2 * stock + SLACK
    return max(limit, FP16_ERROR) if dtype == "float16" else limit


def numeric_failure(record: Record) -> str | None:
    """Return why a numerical comparison fails, or None if it holds."""
    if "error" in record:
        return str(record["error"])
    limit = error_limit(record["dtype"], record["stock"])
    if not record["ours"] <= limit:
        return (
            f"relative error {record['ours']:.2e}, at most {limit:.2e} allowed (vLLM's kernel: {record['stock']:.2e})"
        )
    if not record["zero"]:
        return "tokens that see nothing have an output that is not 0"
    if record["same_bits"] is False:
        return "inline PTX and the plain path give different bits"
    return None


def worst_ratios(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Return, by preset, the number of cases and failures, and the largest errors and ratio with bf16 and fp16."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        row = found.setdefault(record["preset"], {"cases": 0, "failed": 0})
        row["cases"] += 1
        row["failed"] += numeric_failure(record) is not None
        if "error" in record:
            continue
        dtype = record["dtype"]
        times = record["ours"] / record["stock"] if record["stock"] else float("inf")
        for name, value in (("ours", record["ours"]), ("stock", record["stock"]), ("ratio", times)):
            key = f"{dtype} {name}"
            row[key] = max(row.get(key, 0.0), value)
    return found


def ratio(record: Record, rival: str) -> float | None:
    """Return how many times as long as ours a rival ("stock" or "flash") takes, or None if one was not measured."""
    ours, theirs = record.get("ours_us"), record.get(f"{rival}_us")
    return theirs / ours if ours and theirs else None


def verdicts(records: Iterable[Record]) -> list[Verdict]:
    """Judge the speed measurements by the thresholds for the kernels."""
    single = [record for record in records if record["window"] == 1 and record["correct"]]
    long = [record for record in single if record["preset"] == "4bit_nc" and record["context"] in CONTEXTS]
    large = [record for record in single if record["batch"] == 32 and record["context"] == 16_384]
    third = [record for record in long if record.get("flash_version") == 3]
    what = "4bit_nc, one token, 16K and 64K"
    return [
        _judge(f"{what}, group 2, against vLLM's kernel", 3, long, "stock", lambda r: r["group"] == 2),
        _judge(f"{what}, group 4, against vLLM's kernel", 6, long, "stock", lambda r: r["group"] == 4),
        _judge(f"{what}, groups 8 and 16, against vLLM's kernel", 10, long, "stock", lambda r: r["group"] in (8, 16)),
        _judge(f"{what}, from batch 8 on, against FlashAttention 3", 1.1, third, "flash", lambda r: r["batch"] >= 8),
        _judge(f"{what}, batch 1, against FlashAttention 3", 0.95, third, "flash", lambda r: r["batch"] == 1),
        _judge(
            "k8v4, batch 32, 16K, against FlashAttention 3",
            1.4,
            large,
            "flash",
            lambda r: r["preset"] == "k8v4" and r.get("flash_version") == 3,
        ),
        _judge("k3v4_nc, batch 32, 16K, against vLLM's kernel", 6, large, "stock", lambda r: r["preset"] == "k3v4_nc"),
        _judge("3bit_nc, batch 32, 16K, against vLLM's kernel", 6, large, "stock", lambda r: r["preset"] == "3bit_nc"),
    ]


def _judge(what: str, least: float, records: Iterable[Record], rival: str, chosen: Callable[[Record], bool]) -> Verdict:
    measured = [(found, record) for record in records if chosen(record) and (found := ratio(record, rival))]
    if not measured:
        return Verdict(what, least)
    worst, record = min(measured, key=lambda pair: pair[0])
    return Verdict(what, least, worst, record["label"], len(measured))


def outcome(record: Mapping[str, Any]) -> tuple[int, str]:
    """Return the exit status of a whole record and its last line.

    A speed threshold counts only on the GPU that it was set for.
    """
    problems = ["vLLM's launcher does not use the kernels"] if record["dispatched"] is False else []
    failed = sum(numeric_failure(case) is not None for case in record["numerics"])
    broken = sum("error" in case for case in (*record["speed"], *record["tune"]))
    skipped = sum("skipped" in case for case in record["speed"])
    judged = verdicts(record["speed"]) if REFERENCE_GPU in record["machine"]["gpu"] else []
    missed = sum(verdict.holds is False for verdict in judged)
    left = len(record["not_run"])
    problems += [
        f"{count} {text}"
        for count, text in (
            (failed, "numerical comparisons fail"),
            (broken, "time measurements fail"),
            (missed, "speed thresholds are missed"),
            (left, "cases were not run"),
        )
        if count
    ]
    texts = problems or ["no case failed"]
    if skipped:
        texts.append(f"{skipped} cases need more GPU memory")
    return int(bool(problems)), "; ".join(texts)
