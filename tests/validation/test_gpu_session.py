"""`python -m tests.validation.gpu` from an installed vLLM to the verdicts; GPU, engines, checkpoints are stand-ins."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest

from tests.conftest import Trees
from tests.releases import todo
from tests.validation.gpu import __main__ as command
from tests.validation.gpu import drive, report, session, trees
from tests.validation.gpu.claims import CLAIMS
from tests.validation.gpu.engines import FARM, PATCHED

pytestmark = pytest.mark.deep

SCENARIO = "run"
"""Its trees are those of the usual scenarios, and a farm."""

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
    """A machine with a GPU and 0.20.2, whose engines behave as recorded; returns the folder for results."""
    recorded = json.loads((report.RESULTS / f"0.20.2-{SCENARIO}.json").read_text())
    for name, text in (("probe.py", PROBE), ("models.py", MODELS)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(drive, "PROBE", tmp_path / "probe.py")
    monkeypatch.setattr(session, "MODELS", tmp_path / "models.py")
    monkeypatch.setattr(session, "WORK", tmp_path / "work")
    monkeypatch.setattr(session, "hindrance", lambda: None)
    monkeypatch.setattr(session, "describe", lambda: recorded["machine"])
    monkeypatch.setattr(trees, "installed", lambda: linked("0.20.2"))
    (tmp_path / "events").mkdir()
    for one in recorded["results"]:
        name = re.sub(r"\W", "_", f"{one['tree']} {one['probe']}")
        (tmp_path / f"events/{name}.json").write_text(json.dumps(one["events"]))
    return tmp_path / "out"


def test_from_the_installed_vllm_to_the_verdicts(gpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = command.main([SCENARIO, "--out", str(gpu), "--commit", "abc"])
    lines = capsys.readouterr().out
    found = json.loads((gpu / f"0.20.2-{SCENARIO}.json").read_text())
    with tarfile.open(gpu / f"0.20.2-{SCENARIO}.logs.tgz") as archive:
        log = archive.extractfile("logs/farm_run_hybrid.log")
        assert log
        assert f"Running with {len(todo('0.20.2')) + 1} overlays: ".encode() in log.read()

    assert status == 0, lines
    assert (found["vllm"], found["commit"], found["scenarios"]) == ("0.20.2", "abc", [SCENARIO])
    assert found["overlays"][PATCHED]["turboquant-hybrid"] == "applied"
    assert found["overlays"][FARM]["turboquant-tiles"] == "applied"
    assert lines.count(" | 0.20.2 | holds | ") == sum(claim.scenario == SCENARIO for claim in CLAIMS)


@pytest.mark.parametrize(
    ("arguments", "why"), [(["nope"], "invalid choice: 'nope'"), (["upstream"], "--upstream DIR is missing")]
)
def test_usage(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert why in capsys.readouterr().err
