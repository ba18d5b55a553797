"""`python -m tests.validation.gpu` from an installed vLLM to the verdicts; GPU, engines, checkpoints are stand-ins."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest

from tests.conftest import Trees
from tests.validation.gpu import __main__ as command
from tests.validation.gpu import drive, machine, session, trees
from tests.validation.gpu.claims import CLAIMS
from tests.validation.gpu.engines import FARM, PATCHED, STOCK
from tests.validation.gpu_runs import good

pytestmark = pytest.mark.deep  # a minute, for code that any run on a GPU covers

PROBE = """
import json, os, sys
from pathlib import Path
events = json.loads((Path(__file__).parent / "events" / Path(sys.argv[1]).name).read_text())
print("GPU KV cache size: 12,345 tokens")
spec = json.loads(Path(sys.argv[1]).read_text())
for length in (n for action, lengths in spec["steps"] if action == "logprobs" for n in lengths):
    values = {"prompt": [-1.0] * (length - 1), "top": [7] * (length - 1)}
    Path(f"{spec['save']}.{length}").write_text(json.dumps(values))
for event in events:
    print("R " + json.dumps(event), flush=True)
os._exit("error" in events[-1])
"""
MODELS = "import sys; from pathlib import Path; Path(sys.argv[1]).mkdir(parents=True)"


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: Trees) -> Path:
    """A machine with a GPU and 0.20.2, whose engines behave as in `good`; returns the folder for results."""
    run = good("0.20.2")
    for name, text in (("probe.py", PROBE), ("models.py", MODELS)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(drive, "PROBE", tmp_path / "probe.py")
    monkeypatch.setattr(session, "MODELS", tmp_path / "models.py")
    monkeypatch.setattr(session, "WORK", tmp_path / "work")
    monkeypatch.setattr(machine, "hindrance", lambda: None)
    monkeypatch.setattr(machine, "describe", lambda: run["machine"])
    monkeypatch.setattr(trees, "installed", lambda: linked("0.20.2"))
    (tmp_path / "events").mkdir()
    for one in run["results"]:
        events = [*one["events"], *([{"error": one["error"]}] if one["error"] else [])]
        name = re.sub(r"\W", "_", f"{one['tree']} {one['probe']}")
        (tmp_path / f"events/{name}.json").write_text(json.dumps(events))
    (tmp_path / "events/stock_warm_up.json").write_text("[{}]")
    return tmp_path / "out"


def test_from_the_installed_vllm_to_the_verdicts(gpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = command.main(["serves", "--out", str(gpu), "--commit", "abc"])
    told = capsys.readouterr().out
    found = json.loads((gpu / "0.20.2-serves.json").read_text())

    assert "hybrid, stock: NotImplementedError" in told
    assert "| hybrid-served | patched: serves a hybrid model, with CUDA graphs | 0.20.2 | holds |" in told
    assert status == 0
    assert (found["vllm"], found["commit"], found["scenarios"]) == ("0.20.2", "abc", ["serves"])
    assert found["command"] == "python -m tests.validation.gpu serves"
    assert found["overlays"][PATCHED]["turboquant-hybrid"] == "applied"
    assert {(one["tree"], one["probe"]) for one in found["results"]} >= {(STOCK, "hybrid"), (PATCHED, "prefix")}
    with tarfile.open(gpu / "0.20.2-serves.logs.tgz") as archive:
        assert {"logs/stock_hybrid.log", "logs/patched_hybrid.json"} <= set(archive.getnames())


def test_the_farm_is_made_and_its_probes_start_by_vpatch_run(gpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = command.main(["run", "run-start", "--out", str(gpu)])
    told = capsys.readouterr().out
    found = json.loads((gpu / "0.20.2-run-run-start.json").read_text())
    with tarfile.open(gpu / "0.20.2-run-run-start.logs.tgz") as archive:
        log = archive.extractfile("logs/farm_run_start_2.log")
        assert log
        assert b"Running with 10 overlays: " in log.read()

    assert status == 0, told
    assert found["overlays"][FARM]["turboquant-tiles"] == "applied"
    assert told.count(" | 0.20.2 | holds | ") == sum(claim.scenario in {"run", "run-start"} for claim in CLAIMS)
    assert "| run-start | vpatch run: the process begins at most 0.5 s later than that of tiles, and " in told


def test_a_broken_claim_makes_it_fail(gpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = gpu.with_name("events") / "patched_hybrid.json"
    events.write_text('[{"error": "OutOfMemoryError: CUDA out of memory"}]')

    assert command.main(["serves", "--out", str(gpu)]) == 1
    assert "| broken | hybrid, patched: OutOfMemoryError: CUDA out of memory |" in capsys.readouterr().out


def test_a_probe_that_was_not_run_makes_it_fail(gpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["eager", "--deadline", "40", "--out", str(gpu)]) == 1
    assert "not run: warm-up, stock; long auto eager, stock" in capsys.readouterr().out


def test_checkpoints_that_cannot_be_made(gpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session.MODELS.write_text("raise SystemExit(3)")

    assert command.main(["serves", "--out", str(gpu)]) == 1
    assert capsys.readouterr().err == "models.py: exit status 3\n"


@pytest.mark.parametrize(
    ("arguments", "told"), [(["nope"], "invalid choice: 'nope'"), (["upstream"], "--upstream DIR")]
)
def test_usage(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert told in capsys.readouterr().err


def test_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "hindrance", lambda: "no CUDA device")

    assert command.main([]) == 1
    assert capsys.readouterr().err == "no CUDA device\n"


def test_upstreams_tests_are_left_out_by_default(tmp_path: Path) -> None:
    assert set(session.default_scenarios(tmp_path)) - set(session.default_scenarios(None)) == {"upstream"}
