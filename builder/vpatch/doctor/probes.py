"""Whether a defect is in a vLLM: the probes of its overlays, which run the functions of that vLLM.

A probe is a script. It runs on the interpreter of the vLLM, without its bytecode, caches or network, and for a limited
time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Self

from vpatch.core.overlay import Overlay
from vpatch.core.verdict import MISFITS, State, Verdict
from vpatch.doctor.subject import Finding, Level, Subject, unreadable
from vpatch.errors import Failure, naming, shell
from vpatch.script import Ending, ending, preamble

LIMIT_S = 120
AT_ONCE = 2
_MOST_OUTPUT = 1 << 20  # bytes of the end of a script's output that are read

# What Python and the loader need to find the same code as for the server; the rest of the shell's variables, such as
# settings of vLLM, stay away from the scripts.
_KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "HOME", "USER", "LOGNAME"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPYCACHEPREFIX"),
)
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class Probed:
    """An overlay, its state in a vLLM, and how each of its probes ended there, by name."""

    verdict: Verdict
    overlay: Overlay
    endings: Mapping[str, Ending]

    def as_json(self) -> list[dict[str, object]]:
        """Return an object for each probe that was started, as `vpatch build --json` has them for tests of an image."""
        return [
            {"overlay": self.verdict.id, "name": name, "ok": end.ok, "because": end.because}
            for name, end in self.endings.items()
        ]


def probe(subject: Subject, watch: Callable[[str], object]) -> tuple[list[Probed], list[Finding]]:
    """Run the probes of the subject's overlays, except those that need a GPU; return the results and the findings."""
    if why := _hindrance(subject):
        return [], [why]
    assert subject.python  # noqa: S101 - for mypy: otherwise there is a hindrance
    overlays = {item.id: item.overlay for item in subject.overlays}
    skipped = [one.id for one in subject.verified.overlays if one.state is State.NOT_APPLICABLE]
    chosen = [(one, overlays[one.id]) for one in subject.verified.overlays if one.id not in skipped]
    probes = [[probe for probe in overlay.probes if not probe.gpu] for _, overlay in chosen]
    scripts = [probe.script for own in probes for probe in own]
    count = f"running {len(scripts)} probe{'s' * (len(scripts) != 1)}"
    watch(count)
    try:
        endings = iter(run(subject.python.python, scripts, lambda done: watch(f"{count}: {done} ended"), LIMIT_S))
    except Failure as failure:
        return [], [unreadable(problem) for problem in failure.problems]
    results = [
        Probed(verdict, overlay, {probe.name: next(endings) for probe in own})
        for (verdict, overlay), own in zip(chosen, probes, strict=True)
    ]
    return results, [*_findings(subject, results), *_rest(results, skipped)]


def _hindrance(subject: Subject) -> Finding | None:
    """Return why no probe can run: no interpreter is known that imports this vLLM, or vpatch may not run it."""
    python, root, refusal = subject.python, subject.tree.root, subject.located.refusal
    if python and python.root == root and not refusal:
        return None
    what = "no probe was run: no interpreter is known that imports this vLLM"
    do = "name the interpreter that runs this vLLM with --python"
    if refusal and (environment := subject.located.environment):
        what = f"no probe was run: vpatch does not run {environment.shown}: {refusal}"
        do = f"if you trust this environment: {shell('vpatch', 'doctor', '--run', '--python', environment.shown, root)}"
    elif python:
        command = shell("env", f"PYTHONPATH={root}", "vpatch", "doctor", "--run", "--python", python.python, root)
        do = f"if these sources belong to no environment, use the packages of that one: {command}"
    return Finding("probe", Level.WARNING, what, (str(root),), do)


def _findings(subject: Subject, results: Sequence[Probed]) -> Iterator[Finding]:
    """Yield a finding for each overlay, and one for all whose probes could not be run for the same reason."""
    unknown: dict[str, list[str]] = {}
    for one in results:
        oks = {end.ok: end.because for end in one.endings.values()}
        if None in oks and False not in oks:
            unknown.setdefault(oks[None], []).append(one.verdict.id)
        elif oks:
            yield _finding(subject, one)
    for because, names in unknown.items():
        yield Finding("probe", Level.NOTE, f"could not be run: {because}: {', '.join(names)}")


def _finding(subject: Subject, one: Probed) -> Finding:
    name, ends, state = one.verdict.id, one.endings.values(), one.verdict.state
    if failed := next((end for end in ends if end.ok is False), None):
        if failed.asserted:
            return _defect(subject, one, failed.because)
        what = f"{name}: its probe does not tell whether the defect is in this vLLM: {failed.because}"
        return Finding("probe", Level.WARNING, what, do="check that vLLM itself starts; if it does, report a bug")
    but = ", though it is not applied" if state is State.PENDING else ""
    return Finding("probe", Level.OK, f"{name} runs right here{but}: {one.overlay.summary.rstrip('.')}")


def _defect(subject: Subject, one: Probed, because: str) -> Finding:
    name, state = one.verdict.id, one.verdict.state
    what, commands = f"{name}: the defect is in this vLLM", subject.commands
    if state is State.PENDING:
        do = commands.again("apply") if subject.fits else commands.command("apply", "--overlay", name)
    elif state in MISFITS:
        do = commands.command("status", "-v", "--overlay", name)
    else:
        what = f"{what}, although the overlay is {state}"
        do = "check the other findings for the cause; if none explains it, report a bug"
    return Finding("probe", Level.PROBLEM, f"{what}: {because}", do=do)


def _rest(results: Sequence[Probed], skipped: Sequence[str]) -> Iterator[Finding]:
    if skipped:
        yield Finding("probe", Level.OK, f"nothing to run in this vLLM: {', '.join(skipped)}")
    if without := [one.verdict.id for one in results if not one.overlay.probes]:
        yield Finding("probe", Level.NOTE, f"no probe says whether these work: {', '.join(without)}")
    if on_gpus := [probe.name for one in results for probe in one.overlay.probes if probe.gpu]:
        do = "`vpatch test` with --gpus runs those of an image"
        yield Finding("gpu-probe", Level.NOTE, f"left out, since they need a GPU: {', '.join(on_gpus)}", do=do)


def run(python: Path, scripts: Sequence[str], done: Callable[[int], object], limit_s: float) -> list[Ending]:
    """Run scripts as `python -c SCRIPT`, each in its own folder, and return how each ended.

    Args:
        python: the interpreter.
        scripts: the scripts.
        done: called with the number of scripts that have ended.
        limit_s: the time for each script, in seconds.

    Raises:
        Failure: there is no place for temporary files, or the interpreter cannot be started.
    """
    there = python.absolute()  # a script runs in another folder, where a path of the user's leads to nothing
    with (
        naming("cannot run a probe", str(python)),
        TemporaryDirectory(prefix="vpatch-") as top,
        ThreadPoolExecutor(AT_ONCE) as pool,  # waits for its threads once their processes are killed
        _Processes() as processes,
    ):
        try:
            jobs = [
                pool.submit(_one, processes, there, script, Path(top, str(number)), limit_s)
                for number, script in enumerate(scripts)
            ]
            for number, job in enumerate(as_completed(jobs), 1):
                job.result()  # raises what stopped it
                done(number)
            return [job.result() for job in jobs]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class _Processes:
    """The processes that run; they are killed at the end of a `with` block, and none is started afterwards."""

    def __init__(self) -> None:
        self._lock, self._running, self._over = threading.Lock(), set[subprocess.Popen[bytes]](), False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            for process in self._running:
                _kill(process)

    @contextmanager
    def started(self, command: Sequence[str], home: Path, output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        """Start a process in a folder; at the end of the block, kill it and what it started."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        with self._lock:
            if self._over:
                raise InterruptedError
            process = subprocess.Popen(
                command,
                cwd=home,
                env=kept | _OFFLINE,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,  # a file: a child that keeps a pipe open would hold up its reader
                start_new_session=True,  # so that its children can be killed, and Ctrl-C reaches vpatch only
            )
            self._running.add(process)
        yield process
        with self._lock:
            if not self._over:
                self._running.remove(process)
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _one(processes: _Processes, python: Path, script: str, home: Path, limit_s: float) -> Ending:
    home.mkdir()
    with TemporaryFile(dir=home) as output:
        with processes.started([str(python), "-c", preamble(str(home)), script], home, output) as process:
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
        process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _MOST_OUTPUT))
        return ending(code, output.read().decode("utf-8", "replace"), limit_s, "the environment")
