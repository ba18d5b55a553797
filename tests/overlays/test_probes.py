"""Each overlay's probe on the real vLLM, without a GPU: fails on stock if pending, passes if patched or merged.

All probes of a tree run in copies of one process that has imported vLLM (tests/validation/cpu/probes.py). Those
in `ALONE` also run one by one, as in an image.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from vpatch.image.checks import outcome

from tests.overlays.probing import LIMIT_S, OF, PROBED, SCRIPTS, cell, found, on_both, run_scripts
from tests.paths import ROOT
from tests.releases import FACTS, shown, tree_of
from tests.tiers import sampled
from tests.validation.cpu.comparison import Comparison, each
from tests.validation.cpu.environment import environ, interpreter
from tests.validation.cpu.trees import patched_tree

pytestmark = pytest.mark.deep

ALONE = [("0.20.2", "turboquant_hybrid"), *(("0.33.0", name) for name in ("ct_fp8_lm_head", "turboquant_decode"))]

# Not a probe: it checks the GPU probe's checkpoint against the real model.
LOAD = "load_tiny_hybrid"

# By overlay, a text in the error by which its probe recognizes stock code.
MISSED = {
    "ampere-fp8": "the kernel for FP8 on compute capability 8.0: MarlinFP8ScaledMMLinearKernel expected, Cutlass",
    "compile-cache-key": "folders for the first start and one with another kernel: 2 expected, 1 found",
    "ct-fp8-lm-head": "parameters of language_model.lm_head, targeted as lm_head: ['weight', 'weight_scale'] expected",
    "custom-ar-expandable": "expandable segments, a capture: [('captured', False), ('registered', False)] expected",
    "hybrid-align-progress": "tokens of a long prompt that 12 steps compute beside decodes: 20000 expected, 0 found",
    "hybrid-block-units": "ends of chunks, with blocks of 7168 tokens for states: [7168, 14336, 21504] expected",
    "hybrid-mtp-gates": "gates `a` of the tokens that verify drafts: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0] expected",
    "hybrid-mtp-graphs": "a graph of decodes, on the V1 runner, for a prompt as long as a decode with drafts: False",
    "hybrid-mtp-prefix": "tokens of a prefix-cache hit, beyond its attention pages: 0 expected, 16 found",
    "hybrid-mtp-counts": "accepted tokens by request, with prefix caching, if their copy lands before the rows move:",
    "hybrid-mtp-states": "first column that _causal_conv1d_update_kernel reads, by accepted tokens [0, 1, 4, 9]: [0, 0",
    "hybrid-one-token": "a new prompt of one token, ",  # in a step's metadata; from 0.31 on, among what is scheduled
    "hybrid-zero-drafts": "states to go on from, on the V1 runner, of decodes without drafts: [2, 1] expected, [0, 0]",
    "mtp-capture-sizes": "PIECEWISE CUDA graphs and their sizes, with 3 drafts: ('PIECEWISE', [4, 8, 16, 24]) expected",
    "mtp-token-budget": "placeholders that reach the embedding, of a request that was left out of a step: [] expected",
    "qwen-parser-text": "text, if an answer mentions the tag: ('The tag `<tool_call>` opens a call, and `</tool_call>`",
    "receipt": "receipts that this process holds: 1 expected, 0 found",
    # On the trees of tests/overlays/test_sm12x_deepgemm_cpu.py: those of Python files alone have no DeepGEMM.
    "sm12x-deepgemm": "sources of the DeepGEMM that is claimed on compute capability 12.x: ['sm120_'] expected, []",
    "structured-mtp": 'output, if the last draft ends the reasoning: {"a":1} expected, ',
    "turboquant-auto-dtype": "the cache dtype turboquant_4bit_nc was to be passed on: Unknown TurboQuant cache dtype",
    "turboquant-decode": "kernels of a decode step: ['split_kernel', 'combine_kernel'] expected, ['_tq_decode_stage1',",
    "turboquant-hybrid": "a hybrid model with turboquant_4bit_nc was to be taken: TurboQuant KV cache is not supported",
    "turboquant-mtp": "CUDA graphs of steps that verify drafts: PIECEWISE expected, FULL_AND_PIECEWISE found",
    "turboquant-skip-list": "the name of a kind of layer was to be taken: invalid literal for int() with base 10",
    "turboquant-tiles": "keys for each call of attention: [16384, 16384, 612] expected, [33380] found",
    "turboquant-workspace": "the workspace was to be large enough",
}


release = each(sampled(PROBED[::-1], 8))


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return on_both(release, {LOAD: (ROOT / f"tests/validation/cpu/{LOAD}.py").read_text()})


def test_the_checkpoint_and_the_arguments_of_the_server_probe(seen: Comparison) -> None:
    code, stderr = seen.patched[LOAD]
    assert code == 0, stderr[-4000:]


@pytest.mark.parametrize("overlay", FACTS)
def test_stock_and_patched(seen: Comparison, release: str, overlay: str) -> None:
    stock, patched = (list(found(overlay, outcomes)) for outcomes in seen)
    text, right = cell(overlay, release, seen)
    assert right, [text, *(one.because for one in (*stock, *patched))]

    if shown(overlay, release) == "pending":
        for one in stock:
            assert "AssertionError: " in seen.stock[one.name][1]
            assert one.because.startswith(MISSED[overlay])


# One more part of some overlays to undo, other than the one that the probe misses first: its file, old and new code,
# and the error.
UNDONE = {
    "turboquant_hybrid": (
        "vllm/platforms/interface.py",
        "attn_page_size_1_token = attention_page_size_of_one_token(vllm_config)",
        "...",
        "bytes of a page of ",
    ),
    "turboquant_workspace": (
        "vllm/v1/attention/backends/turboquant_attn.py",
        "k_cached = k_buf",
        "layer._tq_k_dequant_buf = k_buf; k_cached = k_buf",
        "buffers that a layer keeps: [] expected, ['_tq_k_dequant_buf'] found",
    ),
    "turboquant_auto_dtype": (
        "vllm/v1/attention/backends/turboquant_attn.py",
        "verifies_exactly: ClassVar[bool] = True",
        "verifies_exactly: ClassVar[bool] = False",
        "TurboQuant with speculative decoding was to start: TurboQuant KV cache (turboquant_4bit_nc) with speculative",
    ),
    "turboquant_mtp": (
        "vllm/v1/attention/backends/turboquant_attn.py",
        " and attn_metadata.fresh_prompts:",
        ":",
        "contexts beside a new prompt: [37, 38, 39, 40] expected, None found",
    ),
    "ct_fp8_lm_head": (
        "vllm/_vpatch/ct_fp8_lm_head_weights.py",
        "if isinstance(param, BlockQuantScaleParameter):",
        "if not isinstance(param, object):",
        "scales of shape [8, 2] were to load: refused",
    ),
    "hybrid_mtp_states": (
        "vllm/v1/worker/mamba_utils.py",
        "tl.debug_barrier()",
        "...",
        "shifted_by_host: a window, with warps in the order [0, 1, 2, 3]: right expected, overwritten found",
    ),
}


def test_a_probe_fails_if_one_part_is_undone(tmp_path: Path) -> None:
    tree = shutil.copytree(patched_tree("0.20.2", *FACTS), tmp_path / "tree")
    for file, old, new, _ in UNDONE.values():
        text = (tree / file).read_text()
        assert text.count(old) == 1
        (tree / file).write_text(text.replace(old, new))
    seen = run_scripts("0.20.2", tree, {name: SCRIPTS[name] for name in UNDONE})

    for name, (*_, because) in UNDONE.items():
        assert outcome(name, *seen[name], limit_s=LIMIT_S).because.startswith(because)


def test_every_overlay_has_a_probe() -> None:
    assert OF.keys() == FACTS.keys() == MISSED.keys()
    assert all(OF.values())
    assert len(SCRIPTS) == sum(map(len, OF.values()))


@pytest.mark.parametrize(("release", "name"), ALONE, scope="function")
def test_a_probe_passes_alone(release: str, name: str, tmp_path: Path) -> None:
    """As in an image."""
    (tmp_path / "sitecustomize.py").write_text(
        "import tests.validation.cpu.platform as p\np.stand_in_for_torchvision()\n"
    )
    environment = environ(patched_tree(release, *FACTS), tmp_path)
    environment["PYTHONPATH"] += f":{tmp_path}"
    alone = run_alone(interpreter(release), name, environment, tmp_path)
    assert outcome(name, alone.returncode, alone.stderr, limit_s=LIMIT_S).ok, alone.stderr[-4000:]


def run_alone(python: Path, name: str, environment: dict[str, str], home: Path) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-c", SCRIPTS[name]]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)


def test_a_probe_fails_without_the_packages_that_vllm_needs(tmp_path: Path) -> None:
    alone = run_alone(Path(sys.executable), "turboquant_hybrid", environ(tree_of("0.20.2"), tmp_path), tmp_path)
    without = outcome("hybrid", alone.returncode, alone.stderr, limit_s=LIMIT_S)

    assert (without.ok, without.because) == (None, "the image lacks torch")
