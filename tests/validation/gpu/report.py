"""`python -m tests.validation.gpu.report`: write docs/validation.md's part about GPUs from docs/gpu/*.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.blocks import put
from tests.paths import ROOT
from tests.validation.gpu import tables
from tests.validation.gpu.claims import verdicts
from tests.validation.gpu.evidence import gather, read

DOCUMENT = ROOT / "docs/validation.md"
RESULTS = ROOT / "docs/gpu"

ABOUT = """\
## On a GPU

Each scenario runs three vLLMs: stock, with the default overlays ("patched"), and with `turboquant-tiles` as well
("tiles").

- The models are small: dense (Qwen3, head size 128) and hybrid (Qwen3.5, head size 256). `plan` and `plan-27b` start
  Qwen3.6-35B-A3B and 27B at full size, with dummy weights, the vision tower and torch.compile, and compare the memory
  that vLLM counted with that of `vpatch plan`.
- The KV cache is `turboquant_4bit_nc`, unless a claim names bf16.
- Log-probabilities are in nats, of the tokens of random prompts. They are computed without CUDA graphs, so that stock
  0.21 runs, too. Everything else runs with CUDA graphs, but without torch.compile.
- One process uses one GPU. On 0.26.0, the dense model runs on the V2 model runner, everything else on V1.

`counts`, `prefix`, `ngram`, `mtp` and `soak` decode with drafts. Most drafts of a random MTP layer would be rejected,
so vLLM accepts them at random (0.8, 0.5 and 0.2 for the first, second and third). vLLM reports the log-probability of
each token of an answer, accepted drafts too, as the answering model sees it. An engine without speculation decodes the
same tokens again, and the two are compared. The noise is the largest mean difference that two other pairs make: prompts
in smaller chunks, and speculation without the defect (no prefix caching, or synchronous scheduling). `speed` alternates
between the trees' engines, without speculation.

On 0.20.2, a hybrid model's log-probabilities differ from process to process, even in the first chunk, which no
overlay's code computes: by 0.04 on average in one run, by nothing in another. No claim says that they are equal there.

`python -m tests.validation.gpu` runs the scenarios on a machine with a GPU, and `python -m tests.validation.gpu.report`
writes this part from `docs/gpu/*.json`. `tests/validation/gpu/checks.py` has the limits of the claims, and where they
come from.
"""

NOT_RUN = """\
### What was not run, and what covers it

| not run | what covers it |
|---|---|
| several GPUs (TP > 1) | CPU: heads are loaded one rank after the other, with uneven and empty parts (`tests/overlays/test_ct_fp8_lm_head_cpu.py`); a hybrid's pages are those of one rank (`test_turboquant_hybrid_cpu.py`) |
| answers of mixture-of-experts models | `plan` starts the 35B-A3B; CPU: its head's configuration. That experts' kernels share the workspace: not covered |
| MTP heads of real checkpoints | CPU: the heads of MTP models, block sizes with MTP. Drafts are accepted at random here |
| other KV cache types (`turboquant_k8v4`, `turboquant_k3v4_nc`, `turboquant_3bit_nc`) | CPU: sizes and layouts of all; attention of `k3v4_nc` and `3bit_nc` in Triton's interpreter. The kernels of `k8v4`: upstream's tests in the scenario `upstream` |
| NVFP4 weights | not covered; no overlay touches their code |
| GPUs other than Hopper (SM120 in particular) | not covered; FP8 block heads run there in another kernel |
| releases after 0.26, which need another torch | CPU: every release's state, and the code of some (`tests/validation/README.md`) |
| releases before 0.20 | they have no TurboQuant; heads on the CPU |
| real checkpoints, tokenizers, the server | not covered |
"""  # noqa: E501


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """Render the part about GPUs."""
    if not runs:
        return "\n".join([ABOUT, "Nothing has been run yet.", "", NOT_RUN])
    claims = tables.claims(verdicts(gather(runs)))
    return "\n".join([ABOUT, "### Claims", "", *claims, "", *(line for run in runs for line in _run(run)), NOT_RUN])


def fresh(text: str) -> str:
    """Replace the part about GPUs in docs/validation.md's text.

    Raises:
        ValueError: the text has no place for the part about GPUs.
    """
    return put(text, "gpu", section(list(read(sorted(RESULTS.glob("*.json"))))))


def _run(run: Mapping[str, Any]) -> Iterator[str]:
    machine = run["machine"]
    yield from (f"### vLLM {run['vllm']}: {', '.join(run['scenarios'])}", "")
    yield from (f"Commit {run['commit']}, {run['date']}: `{run['command']}`", "")
    yield (
        f"{machine['gpu']} of {machine['memory_mib']:,} MiB, driver {machine['driver']}; {machine['cpu']}; "
        f"Python {machine['python']}, torch {machine['torch']}, CUDA {machine['cuda']}, Triton {machine['triton']}"
    )
    yield ""
    for tree, states in run["overlays"].items():
        yield f"- {tree}: {', '.join(f'{name} {state}' for name, state in states.items())}"
    yield from (f"- {tree}: {why}" for tree, why in run["missing"].items())
    yield from ("", *tables.probes(run), "")


if __name__ == "__main__":
    DOCUMENT.write_text(fresh(DOCUMENT.read_text()))
