"""The table of tests/README.md: which module of which release runs on the CPU, and which tests run it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.conftest import tree_of
from tests.cpu.environment import ROOT, interpreter, probe

FILE = ROOT / "tests/README.md"
BEGIN, END = "<!-- table: written by `python -m tests.cpu.table` -->\n", "<!-- end -->\n"

RELEASES = ("0.20.2", "0.21.0", "0.23.0", "0.24.0", "0.26.0", "0.33.0")
HYBRID = "overlays/test_turboquant_hybrid_cpu.py"
EXERCISED = {
    "vllm.engine.arg_utils": (HYBRID, "test_cpu_environments.py"),
    "vllm.model_executor.layers.attention.attention": (HYBRID,),
    "vllm.model_executor.layers.logits_processor": (),
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors": (),
    "vllm.model_executor.layers.quantization.compressed_tensors.schemes": (),
    "vllm.model_executor.layers.quantization.turboquant.config": (HYBRID,),
    "vllm.model_executor.layers.vocab_parallel_embedding": (HYBRID,),
    "vllm.model_executor.models.qwen3_5": (HYBRID,),
    "vllm.model_executor.models.qwen3_5_mtp": (),
    "vllm.model_executor.models.qwen3_next": (HYBRID,),
    "vllm.model_executor.models.qwen3_next_mtp": (),
    "vllm.platforms.interface": (HYBRID,),
    "vllm.v1.attention.backends.turboquant_attn": (HYBRID,),
    "vllm.v1.worker.gpu.model_runner": (),
    "vllm.v1.worker.gpu_model_runner": (),
    "vllm.v1.worker.gpu_worker": (),
    "vllm.v1.worker.workspace": (),
}
SAID = {None: "yes", "absent": "-"}


def hindrances(release: str) -> dict[str, str | None]:
    """Give what hinders each module of `EXERCISED` in a release; `probe_imports` says how."""
    with tempfile.TemporaryDirectory() as home:
        found = probe(interpreter(release), "probe_imports", tree_of(release), Path(home), *EXERCISED)
    assert found["hybrid"] is True, f"{release} does not see that a hybrid model is one"
    modules: dict[str, str | None] = found["modules"]
    return modules


def table(found: dict[str, dict[str, str | None]]) -> str:
    """Give the table, from what hinders the modules of each release."""
    lines = [f"| module | {' | '.join(found)} | run by |", "|---" * (len(found) + 2) + "|"]
    for name, tests in EXERCISED.items():
        cells = [SAID.get(modules[name], f"no: {modules[name]}") for modules in found.values()]
        run_by = ", ".join(f"`{test}`" for test in tests) or "only imported"
        lines.append(f"| `{name.removeprefix('vllm.')}` | {' | '.join(cells)} | {run_by} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table anew."""
    before, _, rest = FILE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    FILE.write_text(before + BEGIN + table({release: hindrances(release) for release in RELEASES}) + END + after)


if __name__ == "__main__":
    main()
