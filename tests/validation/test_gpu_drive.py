"""Running probes on a GPU: the trees, the deadline, engines that hang or crash. The engines are stand-ins."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from tests.conftest import Program
from tests.conftest import Trees as Pristine
from tests.tiers import deep
from tests.validation.gpu import drive, machine, session, trees
from tests.validation.gpu.compare import Saved, gaps
from tests.validation.gpu.engines import PATCHED, STOCK, TILES, TREES, Probe, engine_arguments
from tests.validation.gpu.full_size import FAMILIES, FULL_SIZE
from tests.validation.gpu.models import DRAFTING, DUMMY, REAL, STRATEGIES
from tests.validation.gpu.probe import prompt
from tests.validation.gpu.scenarios import SCENARIOS

START = """
import json, os, sys, time
spec = json.loads(open(sys.argv[1]).read())
print("GPU KV cache size: 12,345 tokens")
print("Maximum concurrency for 32,768 tokens per request: 1,234.50x")
print("Graph capturing finished in 4 secs, took 0.25 GiB")
print('R {"start_s": 1.0}', flush=True)
"""
ENDS = {
    "serves": "print('R ' + json.dumps({'model': spec['engine']['model'], 'path': os.environ['PYTHONPATH']}))",
    "dies": 'print(\'R {"error": "ValueError: no"}\', flush=True); os._exit(1)',
    "hangs": "time.sleep(60)",
    "crashes": "print('Segmentation fault', flush=True); os._exit(139)",
}
Stand = Callable[..., drive.Result]


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """`stand("dies", 60)`: run a probe whose stand-in engine does that, with so many seconds left."""

    def run(end: str, left_s: float, least_s: int = 45) -> drive.Result:
        script = tmp_path / "probe.py"
        script.write_text(START + ENDS[end])
        monkeypatch.setattr(drive, "PROBE", script)
        probe = Probe("one", "dense24", "auto", (("serve", (64,)),), least_s=least_s, limit_s=60)
        where = trees.Trees("0.21.0", {STOCK: tmp_path / "tree"}, {}, {})
        run = drive.Run(where, tmp_path / "models", tmp_path, 143000, None, time.time() + left_s, tmp_path)
        (result,) = drive.run_all(run, [(STOCK, probe)], lambda _: None)
        return result

    return run


def test_a_probe_that_serves(stand: Stand, tmp_path: Path) -> None:
    result = stand("serves", math.inf)

    assert (result["ok"], result["error"], result["kv_tokens"]) == (True, None, 12345)
    assert (result["concurrency"], result["graphs_gib"]) == (1234.5, 0.25)
    assert result["events"][0] == {"start_s": 1.0}
    assert result["events"][1]["model"] == str(tmp_path / "models/dense24")
    assert result["events"][1]["path"].split(os.pathsep)[0] == str(tmp_path / "tree")


@pytest.mark.parametrize(
    ("end", "error"), [("dies", "ValueError: no"), ("crashes", "exit status 139: "), ("hangs", "killed after 1 s")]
)
def test_a_probe_that_fails(stand: Stand, end: str, error: str) -> None:
    result = stand(end, 1.2 if end == "hangs" else math.inf, least_s=0)

    assert not result["ok"]
    assert result["error"].startswith(error)
    assert result["events"] == [{"start_s": 1.0}], "what it said before is kept"


def test_nothing_starts_that_could_outlast_the_deadline(stand: Stand) -> None:
    result = stand("serves", 44)

    assert (result["ok"], result["error"], result["events"]) == (False, "not run: out of time", [])
    assert stand("serves", 50, least_s=55)["error"] == "not run: out of time"
    assert session.unrun({"results": [result]}) == ["one, stock"]


def test_a_replay_knows_the_answers_that_will_be_there(tmp_path: Path) -> None:
    def of(release: str, name: str) -> dict[str, str]:
        folders = {tree: tmp_path / tree for tree in (STOCK, PATCHED)}
        run = drive.Run(trees.Trees(release, folders, {}, {}), tmp_path, tmp_path, 1, None, time.time() + 100, tmp_path)
        command = drive._command(run, STOCK, drive.BY_PROBE[name], [])
        spec = json.loads(Path(command[-1]).read_text())
        assert 90 < spec["limit_s"] <= 100
        found: dict[str, str] = spec["of"]
        return found

    file = str(tmp_path / "patched_prefix_mtp.answers")
    assert of("0.20.0", "prefix plain") == {}, "no release without synthetic acceptance has answers"
    assert of("0.21.0", "prefix plain")["prefix mtp, patched"] == file
    assert set(of("0.21.0", "soak plain")) == set(), "there are no tiles here"


def test_probes_that_take_turns_know_each_other_and_leave_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "probe.py"
    script.write_text("import json, sys\nprint('R', open(sys.argv[1]).read())")
    monkeypatch.setattr(drive, "PROBE", script)
    where = trees.Trees("0.20.2", {tree: tmp_path / tree for tree in (STOCK, PATCHED)}, {}, {})
    run = drive.Run(where, tmp_path, tmp_path, 1, None, math.inf, tmp_path)
    wanted = [(tree, drive.BY_PROBE["speed dense"]) for tree in (STOCK, PATCHED)]
    results = [one for one in drive.run_all(run, wanted, lambda _: None) if one["probe"] != "warm-up"]

    marks = [tmp_path / f"{tree}_speed_dense" for tree in (STOCK, PATCHED)]
    assert [one["events"][0]["turns"] for one in results] == [[str(mark) for mark in marks]] * 2
    assert all(mark.with_suffix(".ended").exists() for mark in marks)


def test_the_tree_with_one_overlay_is_made_where_a_probe_asks_for_it() -> None:
    assert session.extra_trees(["counts", "ngram"], "0.21.0") == {"workspace"}
    assert session.extra_trees(["counts", "ngram"], "0.24.0") == set()
    assert session.extra_trees(["counts"], "0.21.0") == set()
    assert session.extra_trees(["fast-decode"], "0.26.0") == {"decode"}
    assert session.extra_trees(["run"], "0.20.2") == {"farm"}


def test_upstreams_tests_are_counted(tmp_path: Path) -> None:
    tests, logs = tmp_path / "upstream", tmp_path / "logs"
    tests.mkdir()
    logs.mkdir()
    code = "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\ndef test_c(): pytest.skip('no')\n"
    (tests / "test_upstream.py").write_text(code)
    where = trees.Trees("0.20.2", {STOCK: tmp_path / "tree"}, {}, {})
    run = drive.Run(where, tmp_path, logs, 1, tests, math.inf, tmp_path)
    (result,) = drive.run_all(run, [(STOCK, SCENARIOS["upstream"][0])], lambda _: None)

    assert result["events"] == [{"tests": 3, "failed": 1, "skipped": 1, "names": ["test_b"]}]
    assert (result["ok"], result["error"][:14]) == (False, "exit status 1:")


def test_names_of_probes_are_unique() -> None:
    probes = [probe for some in SCENARIOS.values() for probe in some]
    names = {probe.name for probe in probes}

    assert len(names) == len(probes)
    assert {name for probe in probes for _, name in probe.references} <= names


def test_every_probe_has_its_checkpoint() -> None:
    made = {
        *DUMMY,
        *REAL,
        *DRAFTING,
        *FULL_SIZE,
        *FAMILIES,
        *(f"{n}_{s}_{k}" for n in REAL for s in STRATEGIES for k in ("fp8", "bf16", "shifted")),
    }

    assert {probe.model for some in SCENARIOS.values() for probe in some if probe.steps} <= made


def test_a_budget_is_a_share_of_the_device() -> None:
    (probe,) = SCENARIOS["dense"]
    sized = engine_arguments(probe, "models", 143000)
    (fixed, _) = (engine_arguments(probe, "models", 143000) for probe in SCENARIOS["serves"])

    assert sized["gpu_memory_utilization"] * 143000 == probe.budget_gib * 1024
    assert "kv_cache_memory_bytes" not in sized
    assert fixed["kv_cache_memory_bytes"] == 8 << 30
    assert fixed["language_model_only"]


def test_jobs_are_limited_to_the_release_and_the_available_trees() -> None:
    def names(release: str, *there: str) -> set[tuple[str, str]]:
        found = trees.Trees(release, {tree: Path(tree) for tree in there}, {}, {})
        return {(tree, probe.name) for tree, probe in drive.jobs(["decode", "eager"], found)}

    assert names("0.20.2", *TREES) >= {(STOCK, "decode"), (PATCHED, "decode"), (TILES, "long tq eager")}
    assert names("0.26.0", STOCK, PATCHED) == {(STOCK, "long auto eager")}


def test_logprobs_are_compared_with_the_references_of_each_probe(tmp_path: Path) -> None:
    run = drive.Run(trees.Trees("0.21.0", {}, {}, {}), tmp_path, tmp_path, 1, None, math.inf, tmp_path)
    auto = next(probe for probe in SCENARIOS["quality"] if probe.name == "hyb auto")
    jobs = [(STOCK, auto), (PATCHED, auto)]
    assert drive.compared(run, jobs) == []
    for tree, value in ((STOCK, -1.0), (PATCHED, -1.5)):
        saved = {"prompt": [value] * 6143, "top": [7] * 6143}
        (tmp_path / f"{tree}_hyb_auto.6144").write_text(json.dumps(saved))
    first, later = drive.compared(run, jobs)

    assert (first["tree"], first["to_tree"], first["length"], first["part"]) == (PATCHED, STOCK, 6144, "first")
    assert (later["tokens"], later["mean"], later["max"], later["same_top"]) == (6143 - 2048, 0.5, 0.5, 1.0)


def test_parts_of_a_long_prompt() -> None:
    ours: Saved = {"prompt": [0.0] * 20000, "top": [1] * 20000}
    theirs: Saved = {"prompt": [0.0] * 19999 + [-4.096], "top": [1] * 19999 + [2]}
    found = {gap["part"]: gap for gap in gaps(ours, theirs, 8192)}

    assert {part: gap["mean"] for part, gap in found.items()} == {"first": 0, "later": 0.000347, "last": 0.001}
    assert found["last"]["max"] == 4.096
    with pytest.raises(ValueError, match="argument 2"):
        list(gaps(ours, {"prompt": [0.0], "top": [1]}, 8192))


def test_a_shorter_prompt_begins_a_longer_one() -> None:
    short, long = (prompt(n)["prompt_token_ids"] for n in (20000, 20500))

    assert long[:20000] == short
    assert prompt(100, seed=1) != prompt(100)


@pytest.fixture
def in_process(vpatch: Program, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """`in_process()`: from here on, no process is started for vpatch."""
    one_at_a_time = Lock()  # what a command prints is taken from the process's one stdout

    def said(*arguments: str) -> dict[str, Any]:
        command, *others = arguments
        with one_at_a_time:
            return vpatch(command, "--json", *others).json

    return lambda: monkeypatch.setattr(trees, "_vpatch", said)


@pytest.mark.deep
def test_trees_are_made_of_the_installed_vllm(linked: Pristine, tmp_path: Path, in_process: Callable[[], None]) -> None:
    site = linked("0.20.2")
    made = trees.make(site, tmp_path / "trees")
    changed = Path("vllm/engine/arg_utils.py")

    assert made.vllm == "0.20.2"
    assert set(made.overlays[STOCK].values()) <= {"pending", "not_applicable", "merged"}
    assert made.overlays[PATCHED]["turboquant-hybrid"] == "applied"
    assert (made.folders[STOCK] / changed).samefile(site / changed)
    assert (made.folders[PATCHED] / changed).read_bytes() != (site / changed).read_bytes()
    in_process()
    assert trees.make(site, tmp_path / "trees") == made

    again = trees.make(made.folders[PATCHED], tmp_path / "of a patched one")
    assert again.overlays == made.overlays
    assert (again.folders[STOCK] / changed).read_bytes() == (site / changed).read_bytes()


@pytest.mark.parametrize(("opt_in", "there"), [deep("turboquant-skip-list", True), ("no-such-overlay", False)])
def test_the_tiles_tree_exists_if_vpatch_has_the_overlay(
    linked: Pristine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_process: Callable[[], None],
    opt_in: str,
    *,
    there: bool,
) -> None:
    in_process()
    monkeypatch.setitem(trees.OPT_IN, TILES, opt_in)
    made = trees.make(linked("0.20.2"), tmp_path / "trees")

    assert made.missing == ({} if there else {TILES: "this vpatch has no overlay no-such-overlay"})
    assert (made.overlays.get(TILES, {}).get(opt_in) == "applied") is there
    assert (TILES in made.folders) is there


def test_a_vpatch_that_does_not_run_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trees, "VPATCH", ("false",))

    with pytest.raises(RuntimeError, match="false list: exit status 1"):
        trees.make(tmp_path, tmp_path)


def test_a_folder_without_vllm_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="found 0"):
        trees.version(tmp_path)


@pytest.mark.skipif(machine.hindrance() is None, reason="vLLM can run here")
def test_a_machine_without_gpu_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no "):
        session.execute(["serves"], tmp_path)
