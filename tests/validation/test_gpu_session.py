"""`python -m tests.validation.gpu` from an installed vLLM to the verdicts; GPU, engines, checkpoints are stand-ins."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Trees
from tests.releases import todo
from tests.validation.gpu import __main__ as command
from tests.validation.gpu import drive, report, session, trees
from tests.validation.gpu.claims import CLAIMS, verdicts
from tests.validation.gpu.engines import FARM, PATCHED, STOCK, Probe
from tests.validation.gpu.evidence import BROKEN, HOLDS, Evidence, gather, judge, read
from tests.validation.gpu.scenarios import SCENARIOS
from tests.validation.gpu.starting import CHUNKED, EXPANDABLE, LENGTHS, LOCKED, ORDINARY
from tests.validation.test_gpu import changed

pytestmark = pytest.mark.deep

SCENARIO = "run"
"""Its trees are those of the usual scenarios, and a farm."""

PROBE = """
import json, os, sys
from pathlib import Path
events = json.loads((Path(__file__).parent / "events" / Path(sys.argv[1]).name).read_text())
print("GPU KV cache size: 12,345 tokens")
print(os.environ.get("PYTORCH_CUDA_ALLOC_CONF"), events[-1].pop("log", ""))
spec = json.loads(Path(sys.argv[1]).read_text())
for length in (n for action, lengths in spec["steps"] if action == "logprobs" for n in lengths):
    values = {"prompt": [-1.0] * (length - 1), "top": [7] * (length - 1)}
    Path(f"{spec['save']}.{length}").write_text(json.dumps(values))
for event in events:
    print("R " + json.dumps(event), flush=True)
os._exit("error" in events[-1])
"""
MODELS = "import sys; from pathlib import Path; Path(sys.argv[1]).mkdir(parents=True)"


Machine = Callable[[str, Sequence[Mapping[str, Any]]], Path]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: Trees) -> Machine:
    """Make a machine with a GPU and a release, whose engines do as these results say; returns the results' folder."""
    recorded = json.loads((report.RESULTS / f"0.20.2-{SCENARIO}.json").read_text())
    for name, text in (("probe.py", PROBE), ("models.py", MODELS)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(drive, "PROBE", tmp_path / "probe.py")
    monkeypatch.setattr(session, "MODELS", tmp_path / "models.py")
    monkeypatch.setattr(session, "WORK", tmp_path / "work")
    monkeypatch.setattr(session, "hindrance", lambda: None)
    monkeypatch.setattr(session, "describe", lambda: recorded["machine"])

    def make(release: str, results: Sequence[Mapping[str, Any]]) -> Path:
        monkeypatch.setattr(trees, "installed", lambda: linked(release))
        (tmp_path / "events").mkdir()
        for one in results or recorded["results"]:
            name = re.sub(r"\W", "_", f"{one['tree']} {one['probe']}")
            (tmp_path / f"events/{name}.json").write_text(json.dumps(one["events"]))
        return tmp_path / "out"

    return make


def test_from_the_installed_vllm_to_the_verdicts(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = machine("0.20.2", ())
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


def answers(*digests: str, cached: int = 0) -> list[dict[str, Any]]:
    """Return what an engine prints of its answers to the prompts of `starting.LENGTHS`."""
    each = zip(LENGTHS, digests, strict=True)
    return [{"continued": n, "cached": cached, "ids": 16, "digest": digest} for n, digest in each]


AT_LOCK = {"error": "AssertionError: Workspace is locked but allocation from 'turboquant_attn.py:942:...' requires"}
AT_CAPTURE = {
    "error": "RuntimeError: Engine core initialization failed",
    "log": "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:164 'invalid argument'",
}
RIGHT, OTHER = answers("a", "b", cached=5984), answers("a", "c", cached=5984)
KEPT: dict[str, tuple[tuple[str, str, list[dict[str, Any]], list[dict[str, Any]]], ...]] = {
    "locked": (
        (STOCK, CHUNKED, RIGHT, OTHER),
        (STOCK, LOCKED, [*RIGHT[:1], AT_LOCK], RIGHT),
        (PATCHED, LOCKED, RIGHT, answers("a", "b")),
    ),
    "expandable": (
        (STOCK, ORDINARY, RIGHT, OTHER),
        (STOCK, EXPANDABLE, [AT_CAPTURE], [AT_CAPTURE | {"log": ""}]),
        (PATCHED, EXPANDABLE, RIGHT, [AT_CAPTURE]),
    ),
}
"""By scenario: tree, probe, what it prints if the claims hold, and what breaks one of them."""


@pytest.mark.parametrize("scenario", KEPT)
def test_servers_that_overlays_keep_alive(scenario: str, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    results = [{"tree": tree, "probe": probe, "events": right} for tree, probe, right, _ in KEPT[scenario]]
    last = KEPT[scenario][-1][1].replace(" ", "_")
    gpu = machine("0.33.0", results)
    status = command.main([scenario, "--out", str(gpu), "--commit", "abc"])
    lines = capsys.readouterr().out
    with tarfile.open(gpu / f"0.33.0-{scenario}.logs.tgz") as archive:
        log = archive.extractfile(f"logs/patched_{last}.log")
        assert log
        assert (b"expandable_segments:True" in log.read()) is (scenario == "expandable")

    assert status == 0, lines
    assert lines.count(" | 0.33.0 | holds | ") == sum(claim.scenario == scenario for claim in CLAIMS)


@pytest.mark.parametrize(
    ("scenario", "number"), [(scenario, number) for scenario, some in KEPT.items() for number in range(len(some))]
)
def test_each_of_their_engines_can_break_a_claim(scenario: str, number: int) -> None:
    def result(tree: str, probe: str, events: list[dict[str, Any]]) -> dict[str, Any]:
        last = events[-1]
        cuda_error = {"cuda_error": last["log"].partition("Cuda error ")[2]} if last.get("log") else {}
        events = [event for event in events if "error" not in event]
        return {"tree": tree, "probe": probe, "error": last.get("error"), "events": events, **cuda_error}

    def broken(*others: int) -> int:
        results = [
            result(tree, probe, other if at in others else right)
            for at, (tree, probe, right, other) in enumerate(KEPT[scenario])
        ]
        run = {"vllm": "0.33.0", "date": "", "scenarios": [scenario], "results": results, "compared": []}
        return sum(verdict.state == BROKEN for verdict in verdicts(gather([run])))

    assert (broken(), broken(number)) == (0, 1)


def rehearsed(tree: str, probe: Probe) -> list[dict[str, Any]]:
    """Return what a probe of the scenario `progress` would print: stock stalls."""
    if not probe.of:
        first, computed = (None, 0) if tree == STOCK else (26, 6000)
        return [{"progress": 6000, "block": 544, "first_token": first, "computed": computed}, {"answers": 2}]
    part = {"part": "answer", "mean": 0.05, "bias": 0.0, "max": 9.0}
    return [{"replayed": f"{name}, {of}", **part} for of, name in probe.of]


def test_the_scenario_of_a_prompt_that_stalls(machine: Machine) -> None:
    jobs = [(tree, one) for one in SCENARIOS["progress"] for tree in one.trees]
    gpu = machine("0.20.2", [{"tree": tree, "probe": one.name, "events": rehearsed(tree, one)} for tree, one in jobs])
    assert command.main(["progress", "--out", str(gpu), "--commit", "abc"]) == 0

    runs = gather(read(gpu.glob("*.json")))
    held = {verdict.claim.id: verdict.claim for verdict in verdicts(runs) if verdict.state == HOLDS}
    assert [*held] == ["progress-stock", "progress", "progress-answers"]
    for name, tree, probe, values in (
        ("progress-stock", STOCK, "progress", {"computed": 4}),
        ("progress", PATCHED, "progress", {"first_token": 29}),
        ("progress", PATCHED, "progress", {"first_token": None}),
        ("progress-answers", STOCK, "progress plain", {"mean": 0.5}),
    ):
        only = {"replayed": f"progress, {PATCHED}"} if "mean" in values else {}
        assert judge(held[name], changed(runs["0.20.2"], tree, probe, values, only)).state == BROKEN


@pytest.mark.parametrize(("tree", "cached", "state"), [
    (STOCK, [0, 0], HOLDS), (STOCK, [0, 544], BROKEN), (PATCHED, [0, 544], HOLDS), (PATCHED, [0, 0], BROKEN),
])  # fmt: skip
def test_the_claim_of_states_that_are_found(tree: str, cached: list[int], state: str) -> None:
    (claim,) = (one for one in CLAIMS if one.id == ("units-stock" if tree == STOCK else "units"))
    events = [{"answers": 1, "cached": [tokens]} for tokens in cached]
    result = {"tree": tree, "probe": "units", "error": None, "events": events}

    assert judge(claim, Evidence("0.33.0", frozenset({"units"}), {(tree, "units"): result})).state == state


@pytest.mark.parametrize(
    ("arguments", "why"), [(["nope"], "invalid choice: 'nope'"), (["upstream"], "--upstream DIR is missing")]
)
def test_usage(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert why in capsys.readouterr().err
