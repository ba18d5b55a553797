"""`python -m benchmarks.decode` as far as it needs no GPU: its cases, verdicts, report and command line."""

from __future__ import annotations

import json
import math
import sys
from itertools import combinations, pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.decode import __main__ as command
from benchmarks.decode import kernels, machine
from benchmarks.decode.cases import (
    BATCHES,
    GROUPS,
    PRESETS,
    SHAPES,
    SIZES,
    WINDOWS,
    Speed,
    numeric_cases,
    speed_cases,
)
from benchmarks.decode.verdicts import numeric_failure, outcome, verdicts
from benchmarks.decode.workers import Clock

H200: dict[str, Any] = {
    "gpu": "NVIDIA H200",
    "capability": "90",
    "driver": "570.1",
    "versions": {"vLLM": "0.26.0", "torch": "2.11.0", "Triton": "3.6.0", "vpatch": None},
}


VALUES: dict[str, Any] = {
    "preset": PRESETS, "size": SIZES, "group": GROUPS, "window": WINDOWS, "dtype": ("bfloat16", "float16"),
    "kv_heads": (2, 8), "page": (16, 1056), "splits": (None, 3), "each": (False, True), "heads_first": (False, True),
}  # fmt: skip


def record(**parts: Any) -> dict[str, Any]:
    """Return a whole record with some parts."""
    empty: dict[str, Any] = {"numerics": [], "speed": [], "tune": [], "not_run": [], "seconds": {}}
    return {"machine": H200, "dispatched": True, **empty, **parts}


def numeric(**fields: Any) -> dict[str, Any]:
    """Return a numerical comparison that holds, but for some fields."""
    good = {"ours": 1.7e-3, "stock": 1.6e-3, "zero": True, "same_bits": True, "dtype": "bfloat16"}
    return {"preset": "4bit_nc", "label": "4bit_nc, head size 128", **good, **fields}


def speed(case: Speed, ours: float, stock: float | None, flash: float | None, version: int = 3) -> dict[str, Any]:
    """Return the record of a time measurement."""
    times = {"ours_us": ours, "stock_us": stock, "flash_us": flash, "flash_version": version}
    return {**vars(case), "label": case.label, "bytes": 10**6, **times}


def single(group: int = 4, batch: int = 8, context: int = 16_384, **fields: Any) -> Speed:
    """Return a case of one query token."""
    shape: dict[str, Any] = {"preset": "4bit_nc", "size": 128, "kv_heads": 8}
    return Speed(**shape | fields, group=group, batch=batch, context=context)


def test_numerics_meet_every_pair() -> None:
    every = ("preset", "size", "group", "window")
    pairs = [*combinations(every, 2), *product(every, ("dtype", "kv_heads")), ("page", "heads_first")]
    pairs += [("window", "each"), ("splits", "each")]
    pairs += product(("preset",), ("page", "heads_first", "splits", "each"))
    for one, other in pairs:
        met = {(getattr(case, one), getattr(case, other)) for case in numeric_cases()}
        assert met >= set(product(VALUES[one], VALUES[other])), f"{one}, {other}"


def test_each_case_is_there_once_and_fewer_if_quick() -> None:
    numerics, speeds = numeric_cases(), speed_cases()

    assert {0, 1} < set(numerics[0].lengths)
    assert len({case.label for case in numerics}) == len(numerics)
    assert set(numeric_cases(quick=True)) < set(numerics)
    assert len(set(speeds)) == len(speeds)
    assert set(speed_cases(quick=True)) < set(speeds)
    for shape, batch, context in product(SHAPES, BATCHES, (1024, 16_384, 65_536)):
        assert Speed("4bit_nc", *shape, batch, context) in speeds
    for preset, batch, window in product(PRESETS, (1, 32), (2, 4, 8)):
        assert Speed(preset, 128, 8, 4, batch, 16_384) in speeds
        assert Speed("4bit_nc", 128, 8, 4, batch, 16_384, window) in speeds
    assert sum(not case.correct for case in speeds) == 3
    caches = [(case.size, case.kv_heads, case.preset) for case in speeds]
    assert sum(one != other for one, other in pairwise(caches)) == len(set(caches)) - 1, "those of one cache in a row"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"ours": 1.93e-3}, None),
        ({"ours": 1.95e-3}, "relative error 1.95e-03, at most 1.93e-03 allowed (vLLM's kernel: 1.60e-03)"),
        ({"ours": math.nan}, "relative error nan"),
        ({"ours": 5e-4, "stock": 2e-4, "dtype": "float16"}, None),
        ({"ours": 7e-4, "stock": 2e-4, "dtype": "float16"}, "relative error"),
        ({"zero": False}, "tokens that see nothing"),
        ({"same_bits": False}, "inline PTX"),
        ({"same_bits": None}, None),
        ({"error": "out of memory"}, "out of memory"),
    ],
)
def test_a_numerical_comparison_fails_with_a_reason(fields: dict[str, Any], reason: str | None) -> None:
    found = numeric_failure(numeric(**fields))

    assert found is None if reason is None else found is not None and found.startswith(reason)


@pytest.mark.parametrize(
    ("case", "ours", "stock", "flash", "holding", "missed"),
    [
        (single(), 100, 650, 120, {"group 4,", "batch 8 on"}, set()),
        (single(), 100, 590, 105, set(), {"group 4,", "batch 8 on"}),
        (single(group=16, batch=1), 100, 990, 96, {"batch 1,"}, {"groups 8 and 16"}),
        (single(group=2, context=65_536), 100, 300, 111, {"group 2,", "batch 8 on"}, set()),
        (single(context=1024), 100, 100, 100, set(), set()),
        (single(window=4), 100, 100, 100, set(), set()),
        (single(correct=False), 100, 100, 100, set(), set()),
        (single(batch=32, preset="k8v4"), 100, 100, 139, set(), {"k8v4"}),
        (single(batch=32, preset="k3v4_nc"), 100, 600, 1, {"k3v4_nc"}, set()),
        (single(batch=32, preset="3bit_nc"), 100, None, 1, set(), set()),
        (single(batch=1, preset="3bit_nc"), 100, 1, 1, set(), set()),
    ],
)
def test_thresholds(
    case: Speed, ours: float, stock: float | None, flash: float, holding: set[str], missed: set[str]
) -> None:
    judged = verdicts([speed(case, ours, stock, flash)])

    for holds, expected in ((True, holding), (False, missed)):
        found = [verdict.what for verdict in judged if verdict.holds is holds]
        assert len(found) == len(expected)
        assert all(any(part in what for what in found) for part in expected)


def test_flash_attention_2_is_not_held_to_the_thresholds_of_3() -> None:
    assert {verdict.holds for verdict in verdicts([speed(single(group=1), 100, 650, 50, version=2)])} == {None}


@pytest.mark.parametrize(
    ("parts", "status", "text"),
    [
        ({"numerics": [numeric()]}, 0, "no case failed"),
        ({"numerics": [numeric(ours=1.0)]}, 1, "1 numerical comparisons fail"),
        ({"speed": [{**speed(single(), 1, 1, 1), "error": "no"}]}, 1, "1 time measurements fail; 2 speed thresholds"),
        ({"speed": [speed(single(), 100, 100, 100)]}, 1, "2 speed thresholds are missed"),
        ({"speed": [speed(single(), 9, 9, 9)], "machine": {**H200, "gpu": "RTX 5090"}}, 0, "no case failed"),
        ({"speed": [{**vars(single()), "skipped": "needs 9 GiB"}]}, 0, "no case failed; 1 cases need more GPU memory"),
        ({"not_run": ["speed: one"]}, 1, "1 cases were not run"),
        ({"dispatched": "ImportError: torchvision"}, 0, "no case failed"),
        ({"dispatched": False}, 1, "vLLM's launcher does not use the kernels"),
    ],
)
def test_the_outcome_of_a_run(parts: dict[str, Any], status: int, text: str) -> None:
    found = outcome(record(**parts))

    assert found[0] == status
    assert found[1].startswith(text)


def test_results_are_written_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "describe", lambda: H200)
    monkeypatch.setattr(kernels, "dispatched", lambda _device: True)
    run = command.Run(tmp_path / "new", Clock(None))
    for part, found in (("numerics", numeric()), ("speed", speed(single(), 100, 900, None)), ("speed", None)):
        run.keep(part, "one", found)

    kept = json.loads((tmp_path / "new/decode.json").read_text())
    assert kept["numerics"] == [numeric()]
    assert kept["not_run"] == ["speed: one"]
    assert "1 cases were not run" in (tmp_path / "new/decode.md").read_text()
    assert "100.0 µs, 9.00 x vLLM's kernel, - x flash attention" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["128,8", "100,8,4", "128,0,4", "128,8,17", "a,b,c"])
def test_a_shape_that_the_kernels_do_not_have_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parser().parse_args(["--shape", text])

    assert "invalid shape value" in capsys.readouterr().err


@pytest.mark.parametrize(("there", "problem"), [(False, "torch finds no CUDA GPU"), (True, "vllm cannot be imported")])
def test_a_machine_that_cannot_run_it_is_told(
    there: bool,  # noqa: FBT001
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: there)))

    assert command.main(["--out", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {problem}")
    assert not (tmp_path / "none").exists()
