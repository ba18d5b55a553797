"""`python -m benchmarks.decode.proof` as far as it needs no GPU: its report, and what becomes of a part that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.decode import proof
from benchmarks.decode.proof import engine_report
from tests.validation.gpu import session
from tests.validation.gpu_runs import good


def test_the_proof_reports_engines() -> None:
    def result(name: str, tree: str, speed: float, busy: float, *, ok: bool = True) -> dict[str, Any]:
        shape = {"decode_batch": 8, "context": 4096}
        events = [shape | {"tokens_per_s": [speed, speed + 1, 9e9]}, shape | {"busy_ms": busy}, {"start_s": 9.0}]
        return {"probe": f"decoding small {name}", "tree": tree, "ok": ok, "error": "died", "events": events}

    engines = (("tq", "stock", 99, 4.5, True), ("tq", "decode", 299, 1.5, True), ("auto", "stock", 199, 2.0, False))
    text = engine_report({"vllm": "0.26.0", "results": [result(*engine[:4], ok=engine[4]) for engine in engines]})

    assert "| 8 | 4,096 | 100 (4.50) | 300 (1.50) | 200 (2.00) | 3.00 x | 1.50 x |" in text
    assert text.endswith("\n- Failed: decoding small auto, stock: died\n")


@pytest.mark.parametrize("measured", [True, False])
def test_the_proof_has_both_parts_or_fails(
    measured: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def execute(names: list[str], out: Path, **_: Any) -> Path:
        file = out / "0.26.0-fast-decode-small.json"
        run = {
            "vllm": "0.26.0",
            "results": [one for one in good("0.26.0")["results"] if one["probe"].startswith(*names)],
        }
        file.write_text(json.dumps(run))
        return file

    def kernels(out: Path, _deadline: float) -> int:
        (out / "decode.md").write_text("# Decode kernels\n")
        return 0

    monkeypatch.setattr(proof, "SCENARIO", "decoding small")
    monkeypatch.setattr(session, "execute", execute)
    if measured:
        monkeypatch.setattr(proof, "kernels", kernels)

    # Without a GPU, the command that measures kernels refuses, and writes nothing.
    assert proof.main(["--out", str(tmp_path)]) == (0 if measured else 1)
    kernels_text, _, engines = (tmp_path / "proof.md").read_text().partition("\n## Engines\n")
    assert kernels_text == ("# Decode kernels\n" if measured else "The kernels were not measured.\n")
    assert "| 1 | 1,024 | 100 (6.00) | 300 (1.70) | 250 (2.00) | 3.00 x | 1.20 x |" in engines


def test_the_proof_needs_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert proof.main(["--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: no ")
