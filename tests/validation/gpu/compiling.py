"""Starts with torch.compile on one cache: a second one alike, and one whose layers get another kernel.

Each start is a process of its own, `compiling.py NAME SPEC.json`, with the engine of the spec of `probe.py`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.validation.gpu import traffic
from tests.validation.gpu.probe import prompt, run, say, start, worker_of
from tests.validation.gpu.traffic import Ask

*_, OTHER = STARTS = ("first", "again", "other kernel")
PROMPTS, LENGTH, ANSWERED, PATIENCE_S = 4, 300, 16, 200.0
LOADED, SAVED = "Directly load AOT compilation", "saved AOT compiled function"
"""How the lines begin that vLLM logs of a compiled model's folder."""


def starts(_llm: Any, _: Sequence[int], spec: Mapping[str, Any]) -> None:
    """Start the engine with torch.compile three times, one after another, on a cache that is empty at first."""
    file = Path(f"{spec['save']}.compiled.json")
    engine = {name: value for name, value in spec["engine"].items() if name != "compilation_config"}
    file.write_text(json.dumps({**spec, "engine": engine}))
    environ = os.environ | {"VLLM_CACHE_ROOT": f"{spec['save']}.cache"}
    for name in STARTS:
        sys.stdout.flush()
        command = [sys.executable, "-P", str(Path(__file__)), name, str(file)]
        subprocess.run(command, env=environ, check=True, timeout=PATIENCE_S)


def refuse() -> None:
    """Have the FP8 kernels of Cutlass say that they do not support this GPU, as on another one."""
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    for kernel in linear._POSSIBLE_FP8_KERNELS[PlatformEnum.CUDA]:
        if "Cutlass" in kernel.__name__:
            kernel.is_supported = classmethod(lambda *_, **__: (False, "as on another GPU"))


def main(name: str, spec: Mapping[str, Any]) -> None:
    log = Log()
    if name == OTHER:
        refuse()
    llm = start(spec["engine"], time.monotonic())
    layer = next(
        one for one in worker_of(llm).model_runner.model.modules() if type(one).__name__ == "QKVParallelLinear"
    )
    asks = [Ask(f"r{i}", tuple(prompt(LENGTH, seed=i)["prompt_token_ids"]), ANSWERED) for i in range(PROMPTS)]
    answers = sorted(traffic.run(llm, traffic.in_turn(asks, PROMPTS)), key=lambda one: one.name)
    kernel = type(getattr(layer.quant_method, "fp8_linear", None)).__name__
    ids = [token for one in answers for token in one.ids]
    say(compiled=name, kernel=kernel, loaded=log.folder(LOADED), saved=log.folder(SAVED), ids=ids)


class Log(logging.Handler):
    """What vLLM logs of the folders of compiled models."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        from vllm.logger import init_logger

        init_logger("vllm.compilation.decorators").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def folder(self, begin: str) -> str | None:
        """Return the name of the folder in the line that begins so."""
        found = [re.search(r"/torch_aot_compile/(\w{12})", line) for line in self.lines if line.startswith(begin)]
        return next((one[1] for one in found if one), None)


if __name__ == "__main__":
    run(lambda: main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text())))
