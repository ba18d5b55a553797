"""A copy of a vLLM in a temporary folder, and a command that runs there."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from vpatch.foreign import CODE_BYTES, read_regular, walk

VARIABLE = "VLLM_SITE_PACKAGES"
DATA_BYTES = 1 << 20  # of a file beside the modules; kernels and weights are not what a patcher edits
_TAIL = 4096  # bytes of a command's output, whose last line says why it failed


def contents(root: Path, tops: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the files below some entries of a folder; of those that are no modules, only small ones.

    Raises:
        OSError: a folder cannot be read.
    """
    for top in tops:
        if not (root / top).is_dir():
            yield from _file(root / top, top)
            continue
        for folder, folders, names, _ in walk(root / top):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(names):
                yield from _file(Path(folder, name), Path(folder, name).relative_to(root).as_posix())


def _file(path: Path, name: str) -> Iterator[tuple[str, bytes]]:
    with suppress(OSError):  # too large, or no regular file
        if not name.endswith(".so"):
            yield name, read_regular(path, CODE_BYTES if name.endswith(".py") else DATA_BYTES)


def run_in(site: Path, command: str) -> str:
    """Run a command in a copy; return why it failed, "" if it did not.

    Its standard input is empty, and its output is read only if it fails.
    """
    search = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    own = {VARIABLE: str(site), "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1", "OLDPWD": str(Path.cwd())}
    with TemporaryFile() as output, ExitStack() as held:
        held.enter_context(_interrupts_held())
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=site,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # so that all that it starts can be ended
        )
        try:
            held.close()
            code = process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if code:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL))
            lines = output.read().decode("utf-8", "replace").strip().splitlines()
            how = f"it ends with {f'exit code {code}' if code > 0 else f'signal {-code}'}"
            return f"{how}: {lines[-1].strip()}" if lines else how
    return ""


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let SIGINT and SIGTERM take effect at the end of the block: the command may run before Popen has returned."""
    came: list[int] = []
    ours = threading.current_thread() is threading.main_thread()  # no other one gets them, or may set what they do
    numbers = [each for each in (signal.SIGINT, signal.SIGTERM) if ours and callable(signal.getsignal(each))]
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in numbers}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    for number in came:
        signal.raise_signal(number)
