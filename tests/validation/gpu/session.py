"""One run on a GPU machine, from the installed vLLM to the result file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.paths import ROOT
from tests.validation.gpu import drive, full_size, machine, trees
from tests.validation.gpu.engines import EXTRA
from tests.validation.gpu.scenarios import BY_NAME, SCENARIOS

WORK = ROOT / ".gpu"
"""Folder for trees, checkpoints and logs; ignored by git."""
MODELS = Path(__file__).with_name("models.py")


def default_scenarios(upstream: Path | None) -> list[str]:
    """Return the scenarios that run by default; `upstream` needs a folder of upstream's tests."""
    usual = [name for name in SCENARIOS if name not in BY_NAME]
    return [name for name in usual if upstream or not runs_upstream(name)]


def runs_upstream(name: str) -> bool:
    """Return whether a scenario runs upstream's test files, and nothing else."""
    return not any(probe.steps for probe in SCENARIOS[name])


def extra_trees(names: Sequence[str], release: str) -> set[str]:
    """Return the extra trees that the scenarios' probes need on a release."""
    probes = [probe for name in names for probe in SCENARIOS[name] if probe.says_something_of(release)]
    return {tree for probe in probes for tree in probe.trees if tree in EXTRA}


def commit() -> str:
    """Return the current commit, with "+" if there are uncommitted changes."""
    ran = subprocess.run(
        ("git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.stdout.strip() or "unknown"


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
    if (why := machine.hindrance()) or site is None:
        raise RuntimeError(why or "no vLLM")
    path = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))
    command = [sys.executable, "-P", str(MODELS), str(WORK / "models")]
    models = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path})
    # Not below WORK: vpatch refuses farms where others may write to a folder above, as to a checkout.
    with tempfile.TemporaryDirectory(prefix="vpatch-farms-") as farms:
        needed = extra_trees(names, trees.version(site))
        made = trees.make(site, WORK / "trees", extra=needed, farms=Path(farms))
        if models.wait():
            raise RuntimeError(f"{MODELS.name}: exit status {models.returncode}")
        full_size.write(WORK / "models")
        logs = WORK / f"logs-{time.time_ns()}"
        logs.mkdir()
        found = machine.describe()
        run = drive.Run(made, WORK / "models", logs, found["memory_mib"], upstream, end, Path(farms))
        wanted = drive.jobs(names, made)
        results = drive.run_all(run, wanted, tell)
    report = {
        "commit": revision or commit(),
        "command": " ".join(["python", "-m", "tests.validation.gpu", *names]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": found,
        "vllm": made.vllm,
        "scenarios": list(names),
        "overlays": made.overlays,
        "missing": made.missing,
        "results": results,
        "compared": drive.compared(run, wanted),
    }
    out.mkdir(parents=True, exist_ok=True)
    name = f"{made.vllm}-{'-'.join(names)}" if set(names) != set(default_scenarios(upstream)) else made.vllm
    with tarfile.open(out / f"{name}.logs.tgz", "w:gz") as archive:
        archive.add(logs, arcname="logs", filter=lambda entry: entry if _is_text(entry.name) or entry.isdir() else None)
    file = out / f"{name}.json"
    file.write_text(json.dumps(report, indent=1) + "\n")
    return file


def unrun(report: dict[str, Any]) -> list[str]:
    """Yield the probes that were not run."""
    results = report["results"]
    return [f"{one['probe']}, {one['tree']}" for one in results if str(one["error"]).startswith(drive.NOT_RUN)]


def _is_text(name: str) -> bool:
    return Path(name).suffix in (".log", ".json", ".xml")
