"""docs/validation.md's part about GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.validation.gpu import report
from tests.validation.gpu.claims import CLAIMS, verdicts
from tests.validation.gpu.evidence import BROKEN, HOLDS, SKIPPED, gather, read
from tests.validation.gpu_runs import RELEASES, good, result_of


def test_the_part_about_gpus_is_fresh() -> None:
    text = report.DOCUMENT.read_text()

    assert text == report.fresh(text), "run `python -m tests.validation.gpu.report`"


def test_recorded_results_break_two_claims() -> None:
    found = verdicts(gather(read(sorted(report.RESULTS.glob("*.json")))))

    assert [(v.claim.id, v.release, v.state) for v in found if v.state != HOLDS] == [
        ("sizing-eager", "0.21.0", SKIPPED),
        ("unslowed-dense-prefill", "0.24.0", BROKEN),
        ("unslowed-new-prompts", "0.24.0", BROKEN),
    ], "docs/validation.md explains those that are broken"


def test_the_report_lists_the_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    for release in RELEASES:
        (tmp_path / f"{release}.json").write_text(json.dumps(good(release)))
    text = report.fresh(report.DOCUMENT.read_text())
    rows = [line for line in text.splitlines() if line.startswith("| ")]

    assert report.fresh(text) == text
    assert text != report.DOCUMENT.read_text()
    assert all(any(row.startswith(f"| {claim.id} |") and "| holds |" in row for row in rows) for claim in CLAIMS)
    assert all(f"### vLLM {release}: serves," in text for release in RELEASES)
    assert "Commit 0123456789ab, 2026-01-01T00:00:00+00:00: `python -m tests.validation.gpu`" in text
    assert "NVIDIA H200 of 143,000 MiB, driver 1; 16 x a processor; Python 3.12.3, torch 2.11.0" in text
    assert "**dies**: NotImplementedError: TurboQuant KV cache is not supported" in text
    assert "batch 8 at 16,384: 180 tokens/s" in text
    assert text.count("\n| 8 | 16,384 | 100 | 300 | 250 | 3.00 | 1.20 | 6.00 | 1.70 | 2.00 |\n") == len(RELEASES)
    assert "batch 8 at 16,384: GPU busy for 1.70 ms a step; " in text
    assert "compiled after the start: _tq_full_dequant_kv" in text
    assert "vLLM 0.20.2, decode steps:" in text
    assert "vLLM 0.20.2, n-gram drafts:" not in text, "drafts take vLLM's kernel there"
    assert text.count("\n| 4 | 525 | 1,325 | 2.52 | 1.43 | 2.90 |\n") == len(RELEASES) - 1


def test_the_report_shows_a_broken_claim() -> None:
    run = good("0.26.0")
    result_of(run, "patched", "hybrid")["error"] = "OutOfMemoryError"

    (row,) = (line for line in report.section([run]).splitlines() if line.startswith("| hybrid-served |"))
    assert "| 0.26.0 | broken |" in row
    assert "OutOfMemoryError" in row


def test_a_document_without_a_place_for_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 places for gpu"):
        report.fresh("# Validation\n")
