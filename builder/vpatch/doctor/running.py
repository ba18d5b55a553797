"""Scripts on the interpreter of an installed vLLM: without its bytecode, caches or network, and for a limited time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Self

from vpatch.errors import naming
from vpatch.image.script import Ending, ending, preamble

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
    with (
        naming("cannot run a probe", str(python)),
        TemporaryDirectory(prefix="vpatch-") as top,
        ThreadPoolExecutor(AT_ONCE) as pool,  # waits for its threads once their processes are killed
        _Processes() as processes,
    ):
        try:
            jobs = [
                pool.submit(_one, processes, python, script, Path(top, str(number)), limit_s)
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
