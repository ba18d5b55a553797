"""One run on a GPU machine, from the installed vLLM to the result file."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.paths import ROOT
from tests.validation.gpu import drive, full_size, trees
from tests.validation.gpu.engines import EXTRA
from tests.validation.gpu.scenarios import BY_NAME, SCENARIOS

WORK = ROOT / ".gpu"
"""Folder for trees, checkpoints and logs; ignored by git."""
MODELS = Path(__file__).with_name("models.py")
_ASK = """
import json, torch, triton
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
                  "available": torch.cuda.is_available(),
                  "memory_mib": torch.cuda.mem_get_info()[1] >> 20 if torch.cuda.is_available() else 0}))
"""


def default_scenarios(upstream: Path | None) -> list[str]:
    """Return the scenarios that run by default; `upstream` needs a folder of upstream's tests."""
    usual = [name for name in SCENARIOS if name not in BY_NAME]
    return [name for name in usual if upstream or not runs_upstream(name)]


def runs_upstream(name: str) -> bool:
    """Return whether a scenario runs upstream's test files, and nothing else."""
    return not any(probe.steps for probe in SCENARIOS[name])


def execute(
    names: Sequence[str],
    out: Path,
    *,
    deadline_s: float = float("inf"),
    upstream: Path | None = None,
    revision: str = "",
    tell: Callable[[drive.Result], None] = lambda _: None,
) -> Path:
    """Run scenarios on the installed vLLM; return the result file, which has logs.tgz next to it.

    Args:
        names: the scenarios.
        out: a folder for the file; one file for each release and set of scenarios.
        deadline_s: time limit, in seconds.
        upstream: a folder with upstream's test files, which the scenario `upstream` runs.
        revision: the commit; by default git's current one.
        tell: called with each result as soon as it is available.

    Raises:
        RuntimeError: vLLM, vpatch or a GPU is missing, or the checkpoints cannot be made.
    """
    end = time.time() + deadline_s
    site = trees.installed()
    if (why := hindrance()) or site is None:
        raise RuntimeError(why or "no vLLM")
    path = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))
    command = [sys.executable, "-P", str(MODELS), str(WORK / "models")]
    models = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path})
    # Not below WORK: vpatch refuses farms where others may write to a folder above, as to a checkout.
    with tempfile.TemporaryDirectory(prefix="vpatch-farms-") as farms:
        probes = [probe for name in names for probe in SCENARIOS[name] if probe.says_something_of(trees.version(site))]
        extra = {tree for probe in probes for tree in probe.trees if tree in EXTRA}
        made = trees.make(site, WORK / "trees", extra=extra, farms=Path(farms))
        if models.wait():
            raise RuntimeError(f"{MODELS.name}: exit status {models.returncode}")
        full_size.write(WORK / "models")
        logs = WORK / f"logs-{time.time_ns()}"
        logs.mkdir()
        found = describe()
        run = drive.Run(made, WORK / "models", logs, found["memory_mib"], upstream, end, Path(farms))
        wanted = drive.jobs(names, made)
        results = drive.run_all(run, wanted, tell)
    report = {
        "commit": revision or _commit(),
        "command": " ".join(["python", "-m", "tests.validation.gpu", *names]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": found,
        "vllm": made.vllm,
        "scenarios": list(names),
        "overlays": made.overlays,
        "results": results,
        "compared": drive.compared(run, wanted),
    }
    out.mkdir(parents=True, exist_ok=True)
    name = f"{made.vllm}-{'-'.join(names)}" if set(names) != set(default_scenarios(upstream)) else made.vllm
    texts = (".log", ".json", ".xml")
    with tarfile.open(out / f"{name}.logs.tgz", "w:gz") as archive:
        archive.add(logs, "logs", filter=lambda one: one if one.isdir() or Path(one.name).suffix in texts else None)
    file = out / f"{name}.json"
    file.write_text(json.dumps(report, indent=1) + "\n")
    return file


def hindrance() -> str | None:
    """Return why the scenarios cannot run here; None if they can."""
    for module, name in (("vllm", "vLLM"), ("torch", "torch"), ("triton", "Triton")):
        if find_spec(module) is None:
            return f"no {name} in {sys.executable}"
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi, hence no CUDA device"
    return None if _torch()["available"] else "torch sees no CUDA device"


def describe() -> dict[str, Any]:
    """Return what results depend on: the GPU, its memory in MiB, the driver, the CPU, the versions."""
    asked = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    ran = subprocess.run(asked, capture_output=True, text=True, check=True)
    gpu, _, driver = ran.stdout.partition("\n")[0].partition(", ")
    torch = _torch()
    del torch["available"]
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = models[0].partition(":")[2].strip() if models else platform.machine()
    cpu = f"{os.cpu_count()} x {processor}"
    return {"gpu": gpu, "driver": driver, "cpu": cpu, "python": platform.python_version(), **torch}


def _torch() -> dict[str, Any]:
    ran = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _commit() -> str:
    """Return the current commit, with "+" if there are uncommitted changes."""
    command = ("git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout.strip() or "unknown"
