"""`python -m benchmarks.decode --part tune` leaves a file that the kernels of `turboquant-decode` read."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.decode import __main__ as command
from benchmarks.decode import kernels, machine, tune
from benchmarks.decode.cases import Speed
from benchmarks.decode.workers import Clock
from tests.paths import ROOT

H200 = {"gpu": "NVIDIA H200", "capability": "90", "driver": "570.1", "versions": {"vLLM": "0.26.0"}}
LAUNCH: dict[str, Any] = {"rows": 16, "tile": 64, "warps": 4, "prefetch": False, "registers": 128, "programs": 2}


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `--part tune` with given measurements in place of a GPU; return the folder of the results."""

    def ran(**measured: Any) -> Path:
        def measure(cases: list[Speed], _clock: Clock, keep: Any) -> None:
            for case in cases:
                numbers = {"rows": case.group, "requests": case.batch, "ratio": 1.0, "tried": 1, "table": LAUNCH}
                keep(case, {"label": f"batch {case.batch}", "complete": True, **numbers, **measured})

        monkeypatch.setattr(machine, "describe", lambda: H200)
        monkeypatch.setattr(kernels, "dispatched", lambda _device: True)
        monkeypatch.setattr(tune, "measure", measure)
        command.timed(command.Run(tmp_path, Clock(None)), [], tune.tune_cases((128, 8, 4)))
        return tmp_path

    return ran


def test_tuned_launches_are_a_file_that_the_kernels_read(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tuned(best=LAUNCH)
    package, vllm = ModuleType("vllm._vpatch"), ModuleType("vllm")
    package.__path__ = [str(ROOT / "patches/vpatch_overlays/companions")]
    vllm.triton_utils = ModuleType("vllm.triton_utils")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm._vpatch", package)
    monkeypatch.delitem(sys.modules, "vllm._vpatch.turboquant_decode_launch", raising=False)
    launch = import_module("vllm._vpatch.turboquant_decode_launch")
    monkeypatch.delitem(sys.modules, "vllm._vpatch.turboquant_decode_launch")
    monkeypatch.setenv(launch.OWN, str(folder / "launches.json"))

    assert [rule.heads for rule in launch.own(str(folder / "launches.json"))] == [8, 64, 256]
    assert vars(launch.choose(32, 8, 128, 4, (4, 4))) == LAUNCH
    assert vars(launch.choose(32, 8, 128, 4, (3, 3))) != LAUNCH, "only what was tuned"
    assert json.loads((folder / "decode.json").read_text())["launches"]["gpu"] == "NVIDIA H200"


def test_without_a_launch_that_runs_there_is_no_file(tuned: Any) -> None:
    folder = tuned(error="no launch ran")

    assert (folder / "decode.json").exists()
    assert not (folder / "launches.json").exists()
