"""The table of tests/validation/README.md: which modules of which release run on the CPU, and in which tests."""

from __future__ import annotations

from tests.paths import ROOT
from tests.releases import tree_of
from tests.validation.cpu.comparison import ran

FILE = ROOT / "tests/validation/README.md"
BEGIN, END = "<!-- table: written by `python -m tests.validation.cpu.table` -->\n", "<!-- end -->\n"

RELEASES = ("0.20.2", "0.21.0", "0.23.0", "0.24.0", "0.26.0", "0.33.0")
RUNS = {
    "auto-dtype": ("overlays/test_turboquant_auto_dtype_cpu.py", ("0.24.0", "0.26.0")),
    "config": ("validation/test_cpu_environments.py", RELEASES),
    "counts": ("overlays/test_hybrid_mtp_counts_cpu.py", ("0.20.2", "0.24.0", "0.33.0")),
    "decode": (
        "overlays/test_turboquant_decode_dispatch_cpu.py",
        ("0.20.2", "0.21.0", "0.26.0", "0.33.0"),
    ),
    "deepgemm": ("overlays/test_sm12x_deepgemm_cpu.py", ("0.24.0", "0.26.0")),
    "gates": ("overlays/test_hybrid_mtp_gates_cpu.py", ("0.20.2", "0.21.0", "0.26.0", "0.33.0")),
    "head": ("overlays/test_ct_fp8_lm_head_cpu.py", RELEASES),
    "hybrid": ("overlays/test_turboquant_hybrid_cpu.py", ("0.20.2", "0.21.0")),
    "mtp": ("overlays/test_turboquant_mtp_cpu.py", ("0.20.2", "0.21.0", "0.26.0", "0.33.0")),
    "prefix": ("overlays/test_hybrid_mtp_prefix_cpu.py", RELEASES),
    "receipt": ("overlays/test_receipt.py", ("0.33.0",)),
    "skip-list": ("overlays/test_turboquant_skip_list_cpu.py", ("0.20.2", "0.21.0", "0.23.0", "0.24.0", "0.26.0")),
    "speculation": ("overlays/test_turboquant_speculation_cpu.py", ("0.20.2", "0.21.0", "0.23.0", "0.26.0")),
    "states": ("overlays/test_hybrid_mtp_states_cpu.py", ("0.20.2", "0.21.0", "0.26.0", "0.33.0")),
    "tiles": ("overlays/test_turboquant_tiles_cpu.py", RELEASES),
    "ultraquant": ("overlays/test_ultraquant_cpu.py", ("0.33.0",)),
    "workspace": ("overlays/test_turboquant_workspace_cpu.py", ("0.20.2", "0.21.0", "0.23.0", "0.24.0")),
}
"""Tests that run vLLM's code, by short name, with the releases on which they run it."""

EXERCISED = {
    "vllm.engine.arg_utils": (
        "auto-dtype",
        "config",
        "decode",
        "head",
        "hybrid",
        "skip-list",
        "tiles",
        "workspace",
    ),
    "vllm.model_executor.layers.attention.attention": ("auto-dtype", "hybrid", "skip-list", "workspace"),
    "vllm.model_executor.layers.fla.ops.fused_recurrent": ("states",),
    "vllm.model_executor.layers.fla.ops.fused_sigmoid_gating": ("gates", "states"),
    "vllm.model_executor.layers.logits_processor": ("head",),
    "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn": ("gates",),
    "vllm.model_executor.layers.mamba.gdn_linear_attn": ("gates",),
    "vllm.model_executor.layers.mamba.ops.causal_conv1d": ("gates", "states"),
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors": ("head",),
    "vllm.model_executor.layers.quantization.compressed_tensors.schemes": ("head",),
    "vllm.model_executor.layers.quantization.turboquant.config": (
        "auto-dtype",
        "hybrid",
        "skip-list",
        "tiles",
        "workspace",
    ),
    "vllm.model_executor.layers.vocab_parallel_embedding": ("head", "hybrid"),
    "vllm.model_executor.model_loader.utils": ("head",),
    "vllm.model_executor.models.qwen3_5": ("auto-dtype", "head", "hybrid"),
    "vllm.model_executor.models.qwen3_5_mtp": ("head",),
    "vllm.model_executor.models.qwen3_next": ("head", "hybrid"),
    "vllm.model_executor.models.qwen3_next_mtp": ("head",),
    "vllm.model_executor.warmup.kernel_warmup": (),
    "vllm.models.glm5next.amd.ops.third_party.kda.fused_recurrent": ("states",),
    "vllm.models.glm5next.nvidia.ops.third_party.kda.fused_recurrent": ("states",),
    "vllm.models.kimi_k3.amd.ops.third_party.kda.fused_recurrent": ("states",),
    "vllm.models.kimi_k3.nvidia.ops.third_party.kda.fused_recurrent": ("states",),
    "vllm.platforms.cuda": ("deepgemm",),
    "vllm.platforms.interface": ("auto-dtype", "config", "hybrid"),
    "vllm.plugins.__init__": ("receipt",),
    "vllm.third_party.flash_linear_attention.ops.fused_recurrent": ("states",),
    "vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating": ("gates", "states"),
    "vllm.v1.attention.backends.turboquant_attn": ("auto-dtype", "decode", "mtp", "speculation", "tiles", "workspace"),
    "vllm.v1.attention.backends.ultraquant_attn": ("ultraquant",),
    "vllm.v1.attention.ops.triton_turboquant_decode": ("decode", "mtp", "tiles", "workspace"),
    "vllm.v1.attention.ops.triton_turboquant_store": ("decode", "mtp", "workspace"),
    "vllm.v1.core.kv_cache_coordinator": ("prefix",),
    "vllm.v1.spec_decode.eagle": (),
    "vllm.v1.spec_decode.llm_base_proposer": ("head",),
    "vllm.v1.worker.gpu.model_runner": (),
    "vllm.v1.worker.gpu.spec_decode.eagle.utils": ("head",),
    "vllm.v1.worker.gpu_model_runner": ("auto-dtype", "counts", "mtp", "speculation"),
    "vllm.v1.worker.gpu_worker": (),
    "vllm.v1.worker.mamba_utils": ("states",),
    "vllm.v1.worker.workspace": ("decode", "tiles", "workspace"),
}


def hindrances(release: str) -> dict[str, str | None]:
    """Return why each module of `EXERCISED` cannot be imported in a release, as `probe_imports` reports it."""
    found = ran("probe_imports", release, tree_of(release), *EXERCISED)
    assert found["hybrid"] is True, f"{release} does not see that a hybrid model is one"
    modules: dict[str, str | None] = found["modules"]
    return modules


def cell(name: str, release: str, hindrance: str | None) -> str:
    """Return the table's cell for a module of a release."""
    if hindrance:
        return "-" if hindrance == "absent" else f"no: {hindrance}"
    return ", ".join(test for test in EXERCISED[name] if release in RUNS[test][1]) or "imported"


def table(found: dict[str, dict[str, str | None]]) -> str:
    """Render the table from each release's import errors."""
    lines = [f"| module | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for name in EXERCISED:
        cells = (cell(name, release, modules[name]) for release, modules in found.items())
        lines.append(f"| `{name.removeprefix('vllm.')}` | {' | '.join(cells)} |")
    lines += ["", *(f"- {name}: `{file}`" for name, (file, _) in RUNS.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table anew."""
    before, _, rest = FILE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    FILE.write_text(before + BEGIN + table({release: hindrances(release) for release in RELEASES}) + END + after)


if __name__ == "__main__":
    main()
