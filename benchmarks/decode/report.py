"""The Markdown report of a record. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.decode.verdicts import (
    REFERENCE_GPU,
    Record,
    Verdict,
    numeric_failure,
    outcome,
    ratio,
    verdicts,
    worst_ratios,
)


def report(record: Mapping[str, Any]) -> str:
    """Return a record as a Markdown document, ready to be pasted."""
    sections = ["# Decode kernels of `turboquant-decode`", machine_line(record["machine"]), _outcome(record)]
    if record["dispatched"] not in (True, False):
        sections.append(f"Whether vLLM's launcher uses the kernels is not known: {record['dispatched']}")
    if record["numerics"]:
        sections += ["## Numerics", *numerics(record["numerics"])]
    if record["speed"]:
        sections += ["## Speed", *speed(record["speed"], record["machine"])]
    if record["tune"]:
        sections += ["## Launch parameters", *tuned(record["tune"])]
    if record["not_run"]:
        sections += ["## Not run", "\n".join(f"- {line}" for line in record["not_run"])]
    return "\n\n".join(sections) + "\n"


def machine_line(machine: Mapping[str, Any]) -> str:
    """Return the machine and its versions in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    return f"{machine['gpu']} (sm_{machine['capability']}), driver {machine['driver']}; {versions}."


def _outcome(record: Mapping[str, Any]) -> str:
    _, text = outcome(record)
    return f"Outcome: {text}."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def numerics(records: Sequence[Record]) -> list[str]:
    """Return the summary by preset, the failures, and the list of cases."""
    head = ["preset", "cases", "failed"]
    head += [f"{dtype}: {name}" for dtype in ("bf16", "fp16") for name in ("ours", "vLLM's", "worst ratio")]
    rows = []
    for preset, row in worst_ratios(records).items():
        cells = [preset, str(row["cases"]), str(row["failed"])]
        for dtype in ("bfloat16", "float16"):
            cells += [_number(row.get(f"{dtype} {name}"), "{:.2e}") for name in ("ours", "stock")]
            cells.append(_number(row.get(f"{dtype} ratio"), "{:.2f}"))
        rows.append(cells)
    parts = [
        "Relative errors against float64 on the same cache, which vLLM's kernel wrote; the largest of all cases.",
        table(head, rows),
    ]
    failures = [f"- {record['label']}: {why}" for record in records if (why := numeric_failure(record))]
    if failures:
        parts += ["Failures:", "\n".join(failures)]
    cases = "\n".join(f"- {_numeric_line(record)}" for record in records)
    return [*parts, f"<details><summary>{len(records)} cases</summary>\n\n{cases}\n\n</details>"]


def _numeric_line(record: Record) -> str:
    if "error" in record:
        return f"{record['label']}: not measured"
    return f"{record['label']}: {record['ours']:.2e}, vLLM's {record['stock']:.2e}"


def speed(records: Sequence[Record], machine: Mapping[str, Any]) -> list[str]:
    """Return the verdicts and the tables of times."""
    single = [record for record in records if record["window"] == 1 and record["correct"]]
    tables = [
        ("4bit_nc, one query token", [record for record in single if record["preset"] == "4bit_nc"]),
        ("Other presets, one query token", [record for record in single if record["preset"] != "4bit_nc"]),
        ("Windows of query tokens", [record for record in records if record["window"] > 1]),
    ]
    parts = [
        "Microseconds per layer, from replays of CUDA graphs of many layers; medians. Flash attention reads a bf16 "
        "cache and is told the true context, not the largest one, which favors it.",
        must_hold(verdicts(records), machine["gpu"]),
    ]
    for title, chosen in tables:
        if chosen:
            parts += [f"### {title}", speed_table(chosen)]
    folded = [record for record in records if not record["correct"]]
    if folded:
        parts += ["### Without the norm correction", _folded(records, folded)]
    reasons = sorted({record["flash_reason"] for record in records if record.get("flash_reason")})
    if reasons:
        parts.append("Flash attention was not measured:\n" + "\n".join(f"- {reason}" for reason in reasons))
    failed = sorted({reason for record in records for reason in record.get("flash_failed", ())})
    if failed:
        parts.append("Versions of flash attention that failed:\n" + "\n".join(f"- {reason}" for reason in failed))
    problems = [
        f"- {record['label']}: {record.get('error') or record['skipped']}"
        for record in records
        if "error" in record or "skipped" in record
    ]
    if problems:
        parts.append("Not measured:\n" + "\n".join(problems))
    return parts


def must_hold(judged: Iterable[Verdict], gpu: str) -> str:
    """Return the table of thresholds."""
    rows = []
    for verdict in judged:
        holds = {True: "yes", False: "**no**", None: "not measured"}[verdict.holds]
        worst = "-" if verdict.worst is None else f"{verdict.worst:.2f} ({verdict.case})"
        rows.append([verdict.what, f">= {verdict.least:g} x", worst, str(verdict.count), holds])
    text = table(["must hold", "threshold", "worst", "cases", "holds"], rows)
    if REFERENCE_GPU in gpu:
        return text
    return f"{text}\n\nThe thresholds were set for an {REFERENCE_GPU}. On other GPUs they do not decide the outcome."


def speed_table(records: Iterable[Record]) -> str:
    """Return times and ratios, a case a row."""
    head = ["case", "ours µs", "vLLM's kernel µs", "flash attention bf16 µs", "vs vLLM's", "vs flash", "TB/s"]
    rows = []
    for record in records:
        rate = record["bytes"] / record["ours_us"] / 1e6 if record.get("ours_us") else None
        version = f" (v{record['flash_version']})" if record.get("flash_us") else ""
        rows.append(
            [
                record["label"],
                _number(record.get("ours_us"), "{:.1f}"),
                _number(record.get("stock_us"), "{:.1f}"),
                _number(record.get("flash_us"), "{:.1f}") + version,
                _number(ratio(record, "stock"), "{:.1f}"),
                _number(ratio(record, "flash"), "{:.2f}"),
                _number(rate, "{:.2f}"),
            ]
        )
    return table(head, rows)


def _folded(records: Iterable[Record], folded: Iterable[Record]) -> str:
    whole = {record["label"]: record for record in records}
    rows = []
    for record in folded:
        label = record["label"].removesuffix(", no norm correction")
        with_it, without = whole.get(label, {}).get("ours_us"), record.get("ours_us")
        saved = 1 - without / with_it if with_it and without else None
        rows.append([label, _number(with_it, "{:.1f}"), _number(without, "{:.1f}"), _number(saved, "{:.1%}")])
    return "What storing corrected norms could save at most.\n\n" + table(["case", "µs", "without µs", "saved"], rows)


def tuned(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the best launches beside those of the table."""
    rows = [
        [
            record["label"],
            _launch(record["table"]),
            _launch(record["best"]),
            _number(record["ratio"], "{:.2f}"),
            str(record["tried"]),
        ]
        for record in records
        if "best" in record
    ]
    head = ["case", "launch of the table", "best launch", "table's time / best time", "launches tried"]
    return [table(head, rows)]


def _launch(launch: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in launch.items())


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
