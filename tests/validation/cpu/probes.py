"""Run scripts on one tree: `python -m tests.validation.cpu.probes SECONDS`, with {name: script} as JSON on stdin.

Prints each script's exit status and stderr, by name, as JSON. It imports vLLM once, on the platform that probes make
for it, and forks a process for every script, with this time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module

from tests.validation.cpu.platform import stand_in_for_torchvision

USED = (
    "vllm.engine.arg_utils",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.models.qwen3_5",
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "vllm.v1.attention.backends.turboquant_attn",
    "vllm.v1.worker.gpu_model_runner",
)


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


def main(seconds: str, modules: Sequence[str] = USED) -> None:
    """Run the scripts."""
    with contextlib.redirect_stdout(sys.stderr):
        stand_in_for_torchvision()
        from vpatch_overlays.probes.bare import settle

        settle()
        for name in modules:
            import_module(name)
        found = {name: run(script, int(seconds)) for name, script in json.load(sys.stdin).items()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
