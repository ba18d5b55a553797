"""Run probes and keep their results: those that measure neither time nor memory side by side, others alone.

No probe starts that could outlast the deadline; probes that did not run are recorded in the results.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.validation.gpu.compare import gaps
from tests.validation.gpu.engines import FARM, Probe, engine_arguments
from tests.validation.gpu.scenarios import SCENARIOS, WARM_UP
from tests.validation.gpu.trees import Trees, farms_of, search_path, vpatch_run

NOT_RUN = "not run: "
KILLED = "killed after "
PROBE = Path(__file__).with_name("probe.py")
SIDE_BY_SIDE, GIB_EACH = 8, 14
BY_PROBE = {probe.name: probe for probes in SCENARIOS.values() for probe in probes}

LOGGED = {
    "kv_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x",
    "graphs_gib": r"Graph capturing finished in \d+ secs, took (-?[\d.]+) GiB",
}
"""Patterns of numbers in vLLM's log."""
CUDA_ERROR = r"Failed: Cuda error (.+)"
"""What an extension prints before it ends its process."""

Result = dict[str, Any]
Job = tuple[str, Probe]


@dataclass(frozen=True)
class Run:
    """Folders and time limit of one run.

    upstream: a folder with upstream's test files, if any.
    end: when the run must end, in seconds since the epoch; infinite without a deadline.
    farms: a folder for the farms of `vpatch run`.
    """

    trees: Trees
    models: Path
    logs: Path
    device_mib: int
    upstream: Path | None
    end: float
    farms: Path

    @property
    def at_once(self) -> int:
        """How many engines fit on the device side by side."""
        return max(1, min(SIDE_BY_SIDE, (os.cpu_count() or 1) // 2, self.device_mib // (GIB_EACH * 1024)))


def jobs(names: Sequence[str], trees: Trees) -> list[Job]:
    """Return the probes of the scenarios to run on this release, on each available tree."""
    probes = [probe for name in names for probe in SCENARIOS[name] if probe.says_something_of(trees.vllm)]
    return [(tree, probe) for probe in probes for tree in probe.trees if tree in trees.folders]


def run_all(run: Run, wanted: Sequence[Job], tell: Callable[[Result], None]) -> list[Result]:
    """Run the probes: hybrid models after the warm-up, others beside both; then those that take turns; the rest alone.

    Probes start in the order of `wanted`, so that one that replays answers never waits for one that cannot start.

    Args:
        run: the folders and the time limit.
        wanted: the probes, each on a tree.
        tell: called with each result as soon as it is available.
    """
    together = [job for job in wanted if not (job[1].alone or job[1].takes_turns)]
    hybrid = [job for job in together if job[1].model.startswith("hyb")]
    first: list[Job] = [(WARM_UP.trees[0], WARM_UP)] if any(p.model.startswith("hyb") for _, p in wanted) else []
    in_turn = [job for job in wanted if job[1].takes_turns]
    groups = (
        (run.at_once, [*first, *(job for job in together if job not in hybrid), *hybrid]),
        (max(1, len(in_turn)), in_turn),
        (1, [job for job in wanted if job[1].alone]),
    )
    return [result for at_once, group in groups for result in _group(run, group, at_once, tell)]


def compared(run: Run, wanted: Sequence[Job]) -> list[dict[str, Any]]:
    """Compare the log-probabilities that the probes saved, with those of each probe's `references`."""
    found = []
    for tree, probe in wanted:
        for reference in probe.references:
            for length in [n for action, lengths in probe.steps if action == "logprobs" for n in lengths]:
                ours, theirs = (_saved(run, *one).with_suffix(f".{length}") for one in ((tree, probe.name), reference))
                if ours != theirs and ours.exists() and theirs.exists():
                    pair = json.loads(ours.read_text()), json.loads(theirs.read_text())
                    who = {"tree": tree, "probe": probe.name, "to_tree": reference[0], "to_probe": reference[1]}
                    found += [who | {"length": length, **gap} for gap in gaps(*pair, chunk=probe.chunk)]
    return found


def _group(run: Run, group: Sequence[Job], at_once: int, tell: Callable[[Result], None]) -> Iterator[Result]:
    warm = threading.Event()
    if all(probe is not WARM_UP for _, probe in group):
        warm.set()

    def one(job: Job) -> Result:
        if job[1].model.startswith("hyb") and job[1] is not WARM_UP:
            warm.wait()
        try:
            result = _run(run, *job, [_saved(run, tree, probe.name) for tree, probe in group if probe.takes_turns])
        finally:
            _saved(run, job[0], job[1].name).with_suffix(".ended").touch()
            if job[1] is WARM_UP:
                warm.set()
        tell(result)
        return result

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(one, group)


def _run(run: Run, tree: str, probe: Probe, turns: Sequence[Path]) -> Result:
    result: Result = {"tree": tree, "probe": probe.name, "ok": False, "error": None, "events": []}
    limit = min(probe.limit_s, run.end - time.time())
    if limit < probe.least_s:
        return result | {"error": NOT_RUN + "out of time"}
    log = _saved(run, tree, probe.name).with_suffix(".log")
    began = time.time()
    environ = {**environment(run, tree), **probe.variables}
    code = _process(_command(run, tree, probe, turns), environ, log, limit)
    result["s"] = round(time.time() - began, 1)
    text = log.read_text(errors="replace")
    events = [json.loads(line[2:]) for line in text.splitlines() if line.startswith("R {")]
    if not probe.steps:
        events += counted(log.with_suffix(".xml"))
    error = next((event["error"] for event in events if "error" in event), None)
    if code is None:
        error = f"{KILLED}{limit:.0f} s"
    elif code and not error:
        error = f"exit status {code}: {text[-200:]}"
    for name, said in LOGGED.items():
        if found := re.findall(said, text):
            result[name] = json.loads(found[-1].replace(",", ""))
    if code and (printed := re.search(CUDA_ERROR, text)):
        result["cuda_error"] = printed[1].strip()[:200]
    return result | {"ok": code == 0, "error": error, "events": [event for event in events if "error" not in event]}


def _command(run: Run, tree: str, probe: Probe, turns: Sequence[Path]) -> list[str]:
    saved = _saved(run, tree, probe.name)
    if not probe.steps:
        options = ("-q", "-ra", "-p", "no:cacheprovider", "--noconftest", "--import-mode=importlib", "--rootdir")
        where = (str(run.upstream), f"--junitxml={saved}.xml", str(run.upstream))
        return [sys.executable, "-P", "-m", "pytest", *options, *where]
    engine = engine_arguments(probe, str(run.models), run.device_mib)
    # Not from /proc/self/stat: on some kernels (gVisor) that time begins anew with exec, and would miss vpatch's work.
    launched = time.monotonic()
    spec = {
        "engine": engine, "steps": probe.steps, "save": str(saved), "budget_mib": probe.budget_gib * 1024,
        "of": {f"{name}, {of}": f"{_saved(run, of, name)}.answers" for of, name in probe.of if _runs(run, of, name)},
        "turns": [str(one) for one in turns],
        "limit_s": min(probe.limit_s, run.end - time.time()),
        "launched": launched,
    }  # fmt: skip
    saved.with_suffix(".json").write_text(json.dumps(spec))
    before = vpatch_run(farms_of(run.farms, probe.name if probe.cold else "")) if tree == FARM else ()
    return [*before, sys.executable, "-P", str(PROBE), str(saved.with_suffix(".json"))]


def _runs(run: Run, tree: str, name: str) -> bool:
    """Whether a probe runs on a tree: if not, nothing will mark its end."""
    probe = BY_PROBE[name]
    return tree in run.trees.folders and tree in probe.trees and probe.says_something_of(run.trees.vllm)


def _saved(run: Run, tree: str, name: str) -> Path:
    return run.logs / re.sub(r"\W+", "_", f"{tree} {name}")


def environment(run: Run, tree: str) -> dict[str, str]:
    """Return the environment of all probes, in which the tree precedes the vLLM that it was copied from."""
    return os.environ | {
        "PYTHONPATH": search_path(run.trees.folders[tree]),
        "PYTHONUNBUFFERED": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process, so that the probe sees its memory and its errors
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CACHE_ROOT": str(run.logs.with_name("cache") / tree),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRITON_CACHE_AUTOTUNING": "1",  # every engine picks the same kernels, so results can be compared
    }


def _process(command: Sequence[str], env: dict[str, str], log: Path, limit_s: float) -> int | None:
    """Run a process and return its exit status; None if it was killed, with its children, at the time limit."""
    with log.open("w") as stream:
        process = subprocess.Popen(command, env=env, stdout=stream, stderr=stream, start_new_session=True)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def counted(report: Path) -> list[dict[str, Any]]:
    """Summarize a pytest run: tests, failed, skipped, and the names of those that failed."""
    if not report.exists():
        return []
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))  # noqa: S314
    failed = [c.get("name") for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = sum(c.find("skipped") is not None for c in cases)
    return [{"tests": len(cases), "failed": len(failed), "skipped": skipped, "names": failed}]
