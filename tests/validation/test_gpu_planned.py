"""Plans compared with the reports of full-size engines: differences are found, and missing engines give no verdict."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest

from tests.validation.gpu import full_size, planned
from tests.validation.gpu.engines import PATCHED, engine_arguments
from tests.validation.gpu.evidence import gather
from tests.validation.gpu.scenarios import SCENARIOS
from tests.validation.gpu_runs import Run, good

GOOD = good("0.20.2")


def result(run: Run, probe: str) -> Run:
    (found,) = (one for one in run["results"] if one["probe"] == probe)
    return dict(found) if run is GOOD else found


def figures(run: Run, rows: planned.Rows) -> dict[bool | None, list[str]]:
    found = list(planned.check(gather([run])["0.20.2"], {}, "plan", rows))
    return {holds: [one.text for one in found if one.holds is holds] for holds in (True, False, None)}


def test_only_the_changed_figure_differs() -> None:
    run = deepcopy(GOOD)
    result(run, "35b fp8")["concurrency"] += 0.01
    told = figures(run, planned.laid_out)

    (only,) = told[False]
    assert only.startswith("35b fp8, concurrency ")
    assert " instead of " in only
    assert f"35b fp8, tokens {result(GOOD, '35b fp8')['kv_tokens']:,}" in told[True]


def test_an_engine_that_failed_breaks_the_claim_one_that_did_not_run_does_not() -> None:
    run = deepcopy(GOOD)
    result(run, "35b tq").update(error="not run: out of time", events=[])
    result(run, "35b auto").update(error="OutOfMemoryError: CUDA out of memory", events=[])

    for rows in (planned.laid_out, planned.counted):
        told = figures(run, rows)
        assert "35b tq: not run: out of time" in told[None]
        assert told[False] == ["35b auto: OutOfMemoryError: CUDA out of memory"]


def test_buffers_of_layers_count_as_weights_on_releases_that_have_them() -> None:
    here = gather([GOOD])["0.20.2"]
    found = [row.what for probe in ("35b tq", "35b auto") for row in planned.counted(here, probe)]

    assert [what for what in found if what.startswith("weights")] == ["weights and TurboQuant buffers", "weights"]


def test_every_row_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = deepcopy(GOOD)
    result(run, "35b tq").update(error="ValueError: no", events=[])
    result(run, "27b auto")["events"][0]["kv_blocks"] += 1
    run["results"] = [one for one in run["results"] if one["probe"] != "27b fp8"]
    (tmp_path / "run.json").write_text(json.dumps(run))
    planned.main([str(tmp_path / "run.json")])
    told = capsys.readouterr().out

    assert "vLLM 0.20.2, 35b tq: ValueError: no\n\n" in told
    assert "27b fp8" not in told
    (wrong,) = (line for line in told.splitlines() if line.endswith("<--"))
    assert wrong.split()[0] == "blocks"


def test_checkpoints_are_the_recorded_ones(tmp_path: Path) -> None:
    full_size.write(tmp_path)

    for probe in SCENARIOS["plan"] + SCENARIOS["plan-27b"]:
        engine = engine_arguments(probe, str(tmp_path), 143000)
        config = json.loads(Path(engine["model"], "config.json").read_text())
        tokens = json.loads(Path(engine["model"], "tokenizer.json").read_text())["model"]["vocab"]
        assert (engine["load_format"], engine["gpu_memory_utilization"]) == ("dummy", 0.92)
        assert "kv_cache_memory_bytes" not in engine
        assert tokens["<|image_pad|>"] == config["image_token_id"] < config["text_config"]["vocab_size"]
        assert len(tokens) == 256 + len(full_size.MARKS), "a byte for each letter"
        assert probe.trees == (PATCHED,)
