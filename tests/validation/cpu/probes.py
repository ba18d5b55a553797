"""Run scripts on one tree, each in a fork with a time limit; return each one's exit status and stderr, by name."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import traceback
from pathlib import Path
from typing import Any


def run(script: str, seconds: int) -> tuple[int, str]:
    """Run a script as `python -c` would, after vLLM is imported; returns -SIGALRM if it took too long."""
    with tempfile.TemporaryFile() as told:
        if not (child := os.fork()):
            os.dup2(told.fileno(), 2)
            os._exit(_run(script, seconds))
        _, status = os.waitpid(child, 0)
        told.seek(0)
        return os.waitstatus_to_exitcode(status), told.read().decode(errors="replace")


def _run(script: str, seconds: int) -> int:
    signal.alarm(seconds)
    try:
        exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(_home: str, file: str, seconds: str) -> dict[str, Any]:
    return {name: run(script, int(seconds)) for name, script in json.loads(Path(file).read_text()).items()}
