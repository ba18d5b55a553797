"""The GPU scenario of `vpatch run`, rehearsed without a GPU: farms of the real 0.20.2, whose engine is a stand-in."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Trees as Releases
from tests.conftest import contents_of
from tests.paths import link
from tests.validation.gpu import drive, report, trees
from tests.validation.gpu.claims import verdicts
from tests.validation.gpu.engines import FARM, STOCK, TILES
from tests.validation.gpu.evidence import BROKEN, HOLDS, SKIPPED, gather
from tests.validation.gpu.running import LOADED, RUNNING
from tests.validation.gpu.scenarios import SCENARIOS
from tests.validation.gpu_runs import Run, good, result_of, without

GOOD = good("0.20.2")
CHANGED = "vllm/engine/arg_utils.py"
TORCH = """
from types import SimpleNamespace
cuda = SimpleNamespace(
    synchronize=lambda: None, mem_get_info=lambda: (1, 2), memory_allocated=lambda: 0, memory_reserved=lambda: 0
)
"""
# It loads an extension, and a changed module without its imports, and calls the plugin.
VLLM = """
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import SimpleNamespace as Space

class LLM:
    def __init__(self, **engine):
        extension = spec_from_file_location("native", find_spec("vllm._C").origin)
        sys.modules["vllm._C"] = module_from_spec(extension)
        changed = find_spec("vllm.engine.arg_utils")
        sys.modules[changed.name] = module_from_spec(changed)
        for plugin in entry_points(group="vllm.general_plugins", name="vpatch_receipt"):
            plugin.load()()
        config = Space(cache_config=Space(num_gpu_blocks=7, block_size=16))
        self.llm_engine = Space(vllm_config=config)
"""
LOGGER = """
from types import SimpleNamespace
init_logger = lambda name: SimpleNamespace(info=lambda text, *values: print(text % values))
"""


@pytest.fixture
def stock(linked: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A slim 0.20.2 with a stand-in engine and a compiled extension, which is libcst's; torch is a stand-in, too."""
    tree = linked("0.20.2", "stock")
    native = importlib.util.find_spec("libcst.native")
    assert native
    assert native.origin
    link(native.origin, str(tree / "vllm/_C.abi3.so"))
    for name, text in (("__init__", VLLM), ("logger", LOGGER)):
        (tree / f"vllm/{name}.py").unlink(missing_ok=True)
        (tree / f"vllm/{name}.py").write_text(text)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    return tree


def of_stock(stock: Path, tmp_path: Path) -> drive.Run:
    where = trees.Trees("0.20.2", {STOCK: stock, FARM: stock}, {}, {})
    (tmp_path / "logs").mkdir()
    return drive.Run(where, tmp_path / "models", tmp_path / "logs", 143000, None, math.inf, tmp_path / "farms")


def state(name: str, run: Run) -> str:
    (found,) = (verdict.state for verdict in verdicts(gather([run])) if verdict.claim.id == name)
    return found


def test_from_the_command_of_the_drive_to_the_claim(stock: Path, tmp_path: Path) -> None:
    """`vpatch run`, its farm, the probe and the receipt are real: what they report makes the claim hold."""
    run = of_stock(stock, tmp_path)
    warm, cold = (probe for probe in RUNNING["run-start"] if probe.name in ("run start 1", "run start cold 1"))
    results = list(drive.run_all(run, [(FARM, warm), (FARM, cold)], lambda _: None))
    log = (tmp_path / "logs/farm_run_start_1.log").read_text()

    assert [result["error"] for result in results] == [None, None], log
    assert "Running with 10 overlays: " in log
    assert re.search(r"vpatch: process \d+ runs ct-fp8-lm-head, ", log), "vLLM has called the receipt"
    starts, proof = results[0]["events"]
    assert 0 < starts["entered_s"] < starts["ready_s"] < results[0]["s"] + 0.1
    assert starts["start_s"] < starts["ready_s"]
    assert (proof["extensions"], proof["linked"]) == (["vllm/_C.abi3.so"], 1)
    assert (proof["changed"], proof["elsewhere"], proof["held"]) == ([CHANGED], [], True)
    assert proof["digest"] == proof["asked"] == results[1]["events"][1]["digest"]
    assert "turboquant-tiles" in proof["overlays"]
    assert {place.name for place in (tmp_path / "farms").iterdir()} == {"shared", "run_start_cold_1"}

    (farm,) = (tmp_path / "farms/run_start_cold_1").glob("*/vpatch.json")
    launched = json.loads((tmp_path / "logs/farm_run_start_cold_1.json").read_text())["launched"]
    made_after = farm.stat().st_mtime - (time.time() - time.monotonic() + launched)
    assert 0 < made_after < results[1]["events"][0]["ready_s"], "making the farm counts"

    found = deepcopy(GOOD)
    for one in found["results"]:
        if (one["tree"], LOADED) in [(FARM, step) for step in drive.BY_PROBE[one["probe"]].steps]:
            one["events"] = [event for event in one["events"] if "extensions" not in event] + [proof]
    assert state("run-start-loaded", found) == HOLDS


def test_without_vpatch_run_nothing_is_proven(stock: Path, tmp_path: Path) -> None:
    run = of_stock(stock, tmp_path)
    (probe,) = (probe for probe in RUNNING["run-start"] if probe.name == "run start 1")
    (result,) = drive.run_all(run, [(STOCK, probe)], lambda _: None)
    _, proof = result["events"]

    assert (proof["digest"], proof["asked"], proof["held"], proof["changed"]) == (None, None, False, [])
    assert (proof["extensions"], proof["linked"]) == (["vllm/_C.abi3.so"], 0)


def test_what_vpatch_refuses_is_said_before_any_engine_starts(stock: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)

    with pytest.raises(RuntimeError, match=r"run --with turboquant-tiles .*exit status 1: not a safe folder for farms"):
        trees._run(stock, tmp_path / "open")


@pytest.mark.deep
def test_a_farm_has_the_files_of_the_tree_to_which_apply_wrote(linked: Releases, tmp_path: Path) -> None:
    made = trees.make(linked("0.20.2"), tmp_path / "trees", extra={FARM}, farms=tmp_path / "farms")
    (farm,) = (path.parent for path in (tmp_path / "farms/shared").glob("*/vpatch.json"))
    ours, theirs = (
        {file: data for file, data in contents_of(top / "vllm").items() if data is not None and file.endswith(".py")}
        for top in (farm, made.folders[TILES])
    )
    applied = {name: found for name, found in made.overlays[TILES].items() if found == "applied"}

    assert made.folders[FARM] == made.folders[STOCK]
    assert made.overlays[FARM] == applied
    assert ours.items() <= theirs.items()
    links = [path for path, folders, files in os.walk(farm / "vllm") for _ in (*folders, *files)]
    assert links
    assert {file: (farm / "vllm" / file).read_bytes() for file in theirs} == theirs, "through the links as well"


def test_there_is_no_farm_without_tiles(linked: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trees.OPT_IN, TILES, "no-such-overlay")
    monkeypatch.setattr(trees, "_vpatch", lambda *_: {"overlays": []})
    made = trees.make(linked("0.20.2"), tmp_path / "trees", extra={FARM})

    assert made.missing[FARM] == made.missing[TILES] == "this vpatch has no overlay no-such-overlay"
    assert drive.jobs(["run"], made) == []
    assert state("run-loaded", without(GOOD, FARM)) == SKIPPED


WRONG: dict[str, dict[str, Any]] = {
    "a module from elsewhere": {"elsewhere": ["vllm.config: /usr/lib/vllm/config.py"]},
    "no changed module": {"changed": []},
    "no core extension": {"extensions": ["vllm/_moe_C.abi3.so"], "linked": 1},
    "another's extension": {"extensions": ["/usr/lib/vllm/_C.abi3.so"], "linked": 1},
    "an extension that is no link": {"linked": 1},
    "another digest than asked for": {"asked": "fedcba"},
    "no farm": {"digest": None, "asked": None},
    "another farm than the other processes": {"digest": "ba" * 32, "asked": "ba" * 32},
    "no receipt": {"held": False},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_process_that_is_not_of_the_farm_breaks_the_claim(wrong: str) -> None:
    run = deepcopy(GOOD)
    (found,) = (event for event in result_of(run, FARM, "run start 2")["events"] if "extensions" in event)
    found.update(WRONG[wrong])

    assert state("run-start-loaded", run) == BROKEN


def test_the_fastest_of_the_starts_counts() -> None:
    run = deepcopy(GOOD)
    result_of(run, FARM, "run start 1")["events"][0]["ready_s"] = 99.0  # the machine was busy

    assert state("run-start", run) == HOLDS


def test_starts_are_timed_alone_and_in_turn() -> None:
    where = trees.Trees("0.20.2", {tree: Path(tree) for tree in (STOCK, TILES, FARM)}, {}, {})
    timed = [(tree, probe.name) for tree, probe in drive.jobs(["run-start"], where) if probe.alone]

    assert timed == [
        (tree, f"run start{cold} {number}")
        for number in (1, 2, 3)
        for tree, cold in ((TILES, ""), (FARM, ""), (FARM, " cold"))
    ]


def test_the_report_speaks_of_it_only_if_it_was_run() -> None:
    before = GOOD | {"scenarios": [name for name in SCENARIOS if name not in RUNNING]}
    ours = report.section([GOOD])

    assert "`vpatch run`" not in report.section([before])
    assert "| run-loaded |" not in report.section([before])
    assert "### `vpatch run`" in ours
    assert (
        "\n| 1 | 0.10, 14.10 | 0.30, 14.30 | 2.60, 16.60 |\n| 2 | 0.10, 14.60 | 0.30, 14.80 | 2.60, 17.10 |\n" in ours
    )
    assert "700 modules of vLLM, 0 from elsewhere, digest 0123456789ab, receipt held" in ours
    assert "started in 9.5 s (14.3 s after it was launched)" in ours


def test_starts_that_were_not_timed_have_no_table() -> None:
    run = deepcopy(GOOD)
    result_of(run, FARM, "run start cold 2").update(error="not run: out of time", events=[])
    ours = report.section([run])

    assert "### `vpatch run`" in ours
    assert "starts:" not in ours
    assert state("run-start-cold", run) == BROKEN
