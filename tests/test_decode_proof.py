"""`python -m benchmarks.decode.proof` as far as it needs no GPU: its report, and what becomes of a part that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.decode import proof
from tests.validation.gpu import session


def run(*, ok: bool = True) -> dict[str, Any]:
    """Return a run in which the engine with bf16 may have died."""

    def result(name: str, tree: str, speed: float, busy: float, *, ok: bool = True) -> dict[str, Any]:
        shape = {"decode_batch": 8, "context": 4096}
        events = [shape | {"tokens_per_s": [speed, speed + 1, 9e9]}, shape | {"busy_ms": busy}, {"start_s": 9.0}]
        return {"probe": f"decoding small {name}", "tree": tree, "ok": ok, "error": "died", "events": events}

    results = [
        result("tq", "stock", 99, 4.5),
        result("tq", "decode", 299, 1.5),
        result("auto", "stock", 199, 2.0, ok=ok),
    ]
    return {"vllm": "0.26.0", "results": results}


def test_the_proof_reports_engines() -> None:
    text = proof.engine_report(run(ok=False))

    assert "| 8 | 4,096 | 100 (4.50) | 300 (1.50) | 200 (2.00) | 3.00 x | 1.50 x |" in text
    assert text.endswith("\n- Failed: decoding small auto, stock: died\n")


@pytest.mark.parametrize("measured", [True, False])
def test_the_proof_has_both_parts_or_fails(
    measured: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def execute(_: list[str], out: Path, **__: Any) -> Path:
        (out / "run.json").write_text(json.dumps(run()))
        return out / "run.json"

    def kernels(out: Path, _deadline: float) -> int:
        if measured:
            (out / "decode.md").write_text("# Decode kernels\n")
        return 0 if measured else 1

    monkeypatch.setattr(session, "execute", execute)
    monkeypatch.setattr(proof, "kernels", kernels)

    assert proof.main(["--out", str(tmp_path)]) == (0 if measured else 1)
    kernels_text, _, engines = (tmp_path / "proof.md").read_text().partition("\n## Engines\n")
    assert kernels_text == ("# Decode kernels\n" if measured else "The kernels were not measured.\n")
    assert "| 8 | 4,096 | 100 (4.50) |" in engines
