"""Claims about the overlays on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.validation.gpu import checks, decode_checks, draft_checks, planned, run_checks, schedule_checks, start_checks
from tests.validation.gpu.checks import FAMILIES
from tests.validation.gpu.engines import DECODE, KEYED, PATCHED, STOCK, TILES, WORKSPACE
from tests.validation.gpu.evidence import Claim, Figure, Runs, Verdict, judge
from tests.validation.gpu.scenarios import BY_NAME, SCENARIOS, WHOLE
from tests.validation.gpu.speculation import FAST, FORGETS, SPECULATION, UNEQUAL
from tests.validation.gpu.starting import CHUNKED, EXPANDABLE, LOCKED, ORDINARY

ALL, NO_HYBRID, UNRESERVED, AUTO_DTYPE = ">=0.20", "==0.20.*", ">=0.21,<0.24", ">=0.25,<0.27"
"""Every release, and the releases whose TurboQuant refuses hybrids, reserves no workspace, or fails at start."""
SYNTHETIC = ">=0.20.2"
"""Releases that can accept drafts at random."""
BLOCKING, RACING = ">=0.20.2,<0.22", ">=0.22"
"""Releases whose accepted counts reach the host before rows move, and releases where that is a race."""
MARGIN = ">=0.20.2,<0.26"
"""Releases whose prefix cache looks one block further for every group of a hybrid with MTP."""
ON_V2 = ">=0.29"
"""Releases that run hybrids on the V2 model runner; on V1, states of wrong places are found."""
V1_ONLY, TWO_RUNNERS = ">=0.20.2,<0.29", ">=0.29"
"""Releases that run hybrids on the V1 model runner, and releases that do so only if they are told to."""
RECYCLED, PADDING = ">=0.20.2,<0.31", ">=0.25"
"""Releases that take a new prompt of one token for a decode, and those that give it drafts."""
GRAPHS = "==0.24.*"
"""Of those that were run, the release whose stock TurboQuant starts with speculation and CUDA graphs."""
LOCKS = ">=0.30"
"""Releases whose V2 runner, the default of dense models, locks the workspace; until then it replaces the buffer."""
REPRODUCIBLE = ">=0.21"
"""Releases on which a hybrid's log-probabilities are the same in every process."""

PACES = (("", ">=0.21", decode_checks.USUAL), ("-0.20", NO_HYBRID, decode_checks.SLOW))
"""What decoding has to reach, by release."""
LARGE_PAGES = ">=0.26"

AT_MOST = f"at most {draft_checks.RIGHT}, or {checks.ABOUT} times that of MTP without CUDA graphs"
AT_LOCK, UNKNOWN = "Workspace is locked", "Unknown TurboQuant cache dtype: 'auto'"
DEATHS = (
    ("hybrid-refused", "refuses hybrid models with TurboQuant", NO_HYBRID, "serves", "hybrid", "NotImplementedError"),
    ("hybrid-locked", "dies at the first continued prompt, hybrid", UNRESERVED, "serves", "hybrid", AT_LOCK),
    ("dense-locked", "dies at the first continued prompt, dense", UNRESERVED, "dense", "dense", AT_LOCK),
    ("prefix-locked", "dies at a cached prefix without chunked prefill", UNRESERVED, "serves", "prefix", AT_LOCK),
    ("hybrid-auto-dtype", "dies at start, hybrid", AUTO_DTYPE, "serves", "hybrid", UNKNOWN),
    ("ngram-locked", "TurboQuant dies with n-gram drafts", UNRESERVED, "ngram", "ngram", AT_LOCK),
    ("ngram-capture", "TurboQuant with n-gram drafts dies at start", NO_HYBRID, "ngram", "ngram",
     "during CUDA graph capture"),
    ("ngram-auto-dtype", "TurboQuant with n-gram drafts dies at start", AUTO_DTYPE, "ngram", "ngram", UNKNOWN),
)  # fmt: skip
"""With what error stock dies of a probe."""

QUANTIZED = tuple(f"{family} tq{chunk}" for family in FAMILIES for chunk in ("", " 128"))
DENSE = {name: (STOCK, name) for name in ("dense tq", "dense tq 128")}
TILED = {name: (PATCHED, name) for family in FAMILIES for name in (f"{family} tq", f"{family} tq 8192")}


def _on(
    name: str,
    says: str,
    releases: str,
    scenario: str,
    check: Callable[..., Iterator[Figure]],
    trees: tuple[str, ...] = (PATCHED, TILES),
    **fixed: Any,
) -> list[Claim]:
    """Make the same claim about several trees, each with its own id."""
    suffixes = {PATCHED: "", STOCK: "", TILES: "-tiles"}
    return [
        Claim(name + suffixes[tree], f"{tree}: {says}", releases, scenario, partial(check, tree=tree, **fixed))
        for tree in trees
    ]


def _planned(name: str, says: str, rows: planned.Rows) -> list[Claim]:
    """Make a claim about `vpatch plan` for each scenario with models of full size."""
    return [
        Claim(f"{scenario}-{name}", says, ALL, scenario, partial(planned.check, scenario=scenario, rows=rows))
        for scenario in WHOLE
    ]


def _decode(
    name: str, says: str, scenario: str, check: Callable[..., Iterator[Figure]], releases: str = ALL, **fixed: Any
) -> Claim:
    return Claim(f"fast-{name}", f"turboquant-decode: {says}", releases, scenario, partial(check, **fixed))


def _farm(name: str, says: str, check: Callable[..., Iterator[Figure]], **fixed: Any) -> Claim:
    scenario = "run-start" if name.startswith("start") else "run"
    return Claim(f"run-{name}", f"vpatch run: {says}", ALL, scenario, partial(check, **fixed))


def _short(name: str, what: str, probe: str, wrong_on: str, on: str) -> Iterator[Claim]:
    """Yield the claims about short prompts: stock is wrong, and from 0.29 on so on V1 only; patched is right on both.

    Args:
        name: of the claims.
        what: the prompts.
        probe: on the release's default runner; its twin on V1 has a name that ends with "v1".
        wrong_on: the releases on whose default runner stock is wrong.
        on: the tree that decodes the answers again.
    """
    scenario = name.removesuffix("-mtp")
    plain = f"{scenario.replace('-', ' ')} plain"
    beyond = f"{what}: mean difference to an engine without the defect over {draft_checks.WRONG}"
    right = f"{what}: the same {AT_MOST}"
    for end, where, broken, whole in (("", "", wrong_on, SYNTHETIC), ("-v1", ", V1", TWO_RUNNERS, TWO_RUNNERS)):
        fixed = {"probe": probe + end.replace("-", " "), "on": on, "plain": plain}
        for suffix, says, releases, tree in (("-stock", beyond, broken, STOCK), ("", right, whole, PATCHED)):
            yield from _on(name + end + suffix, says + where, releases, scenario, draft_checks.short, (tree,),
                           wrong=tree == STOCK, **fixed)  # fmt: skip


CLAIMS: tuple[Claim, ...] = (
    *(claim for name, says, releases, scenario, probe, error in DEATHS[:5]
      for claim in _on(name, says, releases, scenario, checks.dies, (STOCK,), probe=probe, of=error)),
    *_on("hybrid-served", "serves a hybrid model, with CUDA graphs", ALL, "serves", checks.serves, probe="hybrid"),
    *_on("hybrid-layout", "blocks and tokens of a hybrid's KV cache are those of stock 0.21", NO_HYBRID, "serves",
         checks.layout, probe="hybrid"),
    *_on("dense-served", "serves a dense model, with CUDA graphs", ALL, "dense", checks.serves, probe="dense"),
    *_on("prefix-served", "goes on from a cached prefix without chunked prefill", ALL, "serves", checks.serves,
         (TILES,), probe="prefix"),
    Claim("untouched-answers", "bf16 cache, dense: log-probabilities are those of stock, exactly", ALL, "quality",
          partial(checks.same, probes=("dense auto",))),
    Claim("untouched-answers-hybrid", "bf16 cache, hybrid: log-probabilities are those of stock, exactly",
          REPRODUCIBLE, "quality", partial(checks.same, probes=("hyb auto",))),
    Claim("same-answers", "TurboQuant: log-probabilities are those of stock, exactly", UNRESERVED, "quality",
          partial(checks.same, probes=QUANTIZED)),
    *_on("near-answers", f"TurboQuant, dense: mean difference to stock at most {checks.NOISE}", NO_HYBRID, "quality",
         checks.close, (PATCHED,), probes=DENSE, bound=checks.NOISE),
    *_on("quantized-answers", "mean difference between TurboQuant and bf16 as known", ALL, "quality", checks.quantized),
    *_on("answers", f"mean difference to dequantizing in one piece at most {checks.ABOUT} times what another attention "
         f"kernel makes, or of {checks.NOISE}", ALL, "quality", checks.within_noise, (TILES,), probes=TILED),
    Claim("head", "FP8 heads load, mean difference to themselves dequantized at most 0.25 (block), 0.18", ALL,
          "heads", checks.heads),
    Claim("head-shifted", f"block scales one block off come to more than {checks.SHIFTED}", ALL, "heads",
          checks.shifted),
    Claim("head-refused", "stock does not load a head with block scales", ALL, "heads", checks.refused_heads),
    *_on("upstream", "upstream's TurboQuant tests pass", NO_HYBRID, "upstream", checks.upstream),
    Claim("layer-buffers", "no layer has dequantization buffers, as each of stock's has", NO_HYBRID, "dense",
          checks.layer_buffers),
    Claim("flat-memory", f"tiles: at most {checks.FULL_CHUNK_MIB} MiB more in use since the start, and "
          f"{checks.SLACK_MIB} since the first {checks.WARM:,} tokens; stock: more than {checks.GROWTH_MIB:,}",
          NO_HYBRID, "dense", checks.flat),
    Claim("sizing", f"131,000 tokens: peak over the budget at most bf16's and {checks.SLACK_MIB} MiB", ALL, "sizing",
          partial(checks.sizing, ours="long tq", control="long auto", beside=(PATCHED, STOCK))),
    Claim("sizing-eager", "the same without CUDA graphs", ALL, "eager",
          partial(checks.sizing, ours="long tq eager", control="long auto eager")),
    Claim("prefill-dense", f"65,000 tokens, dense: at least {checks.PREFILL} of the speed in one piece", ALL, "dense",
          partial(checks.prefill, probe="dense")),
    Claim("prefill-hybrid", f"65,000 tokens, hybrid: at least {checks.PREFILL} of the speed in one piece", ALL,
          "sizing", partial(checks.prefill, probe="long tq")),
    Claim("decode", f"decoding at least {checks.DECODE} of stock's speed", NO_HYBRID, "decode",
          partial(checks.decode, series="0.20", share=checks.DECODE)),
    Claim("decode-0.21", f"decoding at least {checks.DECODE_BESIDE_021} of the speed of stock 0.21, which has #40941",
          NO_HYBRID, "decode", partial(checks.decode, series="0.21", share=checks.DECODE_BESIDE_021)),
    *_on("counts-stock", "requests read accepted counts of others", BLOCKING, "counts", draft_checks.counted, (STOCK,),
         probe="counts", wrong=True),
    *_on("counts-early-stock", "the same, if counts arrive before rows move", RACING, "counts", draft_checks.counted,
         (STOCK,), probe="counts early", wrong=True),
    *_on("counts", "every request reads its own accepted count", SYNTHETIC, "counts", draft_checks.counted, (PATCHED,),
         probe="counts", wrong=False),
    *_on("counts-early", "the same, if counts arrive before rows move", RACING, "counts", draft_checks.counted,
         (PATCHED,), probe="counts early", wrong=False),
    *_on("continued-stock", f"MTP, a conversation's next turn: mean difference to no prefix caching over "
         f"{draft_checks.BEYOND} times the noise", MARGIN, "prefix", draft_checks.continued, (STOCK,), wrong=True),
    *_on("continued", f"the same at most {checks.ABOUT} times the noise", SYNTHETIC, "prefix", draft_checks.continued,
         (PATCHED,), wrong=False),
    *_on("progress-stock", "a long prompt beside a decode, with a budget of one block: no token in 200 steps",
         SYNTHETIC, "progress", schedule_checks.goes_on, (STOCK,), wrong=True),
    *_on("progress", "the same: its first token within two steps a block", SYNTHETIC, "progress",
         schedule_checks.goes_on, (PATCHED,), wrong=False),
    *_on("progress-answers", f"answers from what was cached then: mean difference to no speculation at most "
         f"{checks.ABOUT} times the noise", SYNTHETIC, "progress", draft_checks.drafted, (PATCHED,),
         probes=("progress",), wrong=False, on=STOCK, plain="progress plain"),
    *_on("units-stock", "with a layer of smaller blocks, no next turn finds a state in the cache", ON_V2, "units",
         schedule_checks.found_again, (STOCK,), wrong=True),
    *_on("units", "the same: each next turn finds one", UNEQUAL, "units", schedule_checks.found_again, (PATCHED,),
         wrong=False),
    *_on("units-answers", f"answers from it: mean difference to no speculation at most {checks.ABOUT} times the noise",
         UNEQUAL, "units", draft_checks.drafted, (PATCHED,), probes=("units",), wrong=False, on=STOCK,
         plain="units plain"),
    *_short("graphs", "prompts of 1 + k tokens", "graphs mtp", V1_ONLY, STOCK),
    *_short("one-token", "no speculation, prompts of one token", "one token", RECYCLED, PATCHED),
    *_short("one-token-mtp", "MTP, prompts of one token", "one token mtp", PADDING, PATCHED),
    *(claim for suffix, says, tree in (("-stock", f"over {draft_checks.FORGOTTEN:.1f}", STOCK),
                                       ("", AT_MOST, PATCHED))
      for claim in _on(f"zero-drafts{suffix}", "n-gram drafts that come and go: mean difference to no speculation "
                       f"{says}", FORGETS, "zero-drafts", draft_checks.short, (tree,), probe="zero drafts",
                       wrong=tree == STOCK, on=STOCK, plain="zero drafts plain", beyond=draft_checks.FORGOTTEN)),
    *(claim for name, says, releases, scenario, probe, error in DEATHS[5:]
      for claim in _on(name, says, releases, scenario, checks.dies, (STOCK,), probe=probe, of=error)),
    *_on("ngram-stock", "TurboQuant with n-gram drafts: other tokens than without", GRAPHS, "ngram",
         draft_checks.repeated, (STOCK,), probe="ngram", wrong=True),
    Claim("ngram-workspace", "turboquant-workspace alone: refuses n-gram drafts, and names turboquant-mtp", "==0.21.0",
          "ngram", partial(checks.dies, tree=WORKSPACE, probe="ngram workspace", of="turboquant-mtp")),
    *_on("ngram", "TurboQuant with n-gram drafts: the tokens without, exactly", ALL, "ngram", draft_checks.repeated,
         (PATCHED,), probe="ngram", wrong=False),
    Claim("ngram-compiled", "the same with torch.compile: all tokens as constructed", ALL, "ngram",
          partial(draft_checks.constructed, tree=PATCHED, probe="ngram compiled")),
    *_on("mtp-stock", f"TurboQuant with MTP, eager: mean difference to no speculation over {draft_checks.BEYOND} times "
         "the noise", ">=0.21,<0.25", "mtp", draft_checks.drafted, (STOCK,), probes=("mtp eager",), wrong=True),
    *_on("mtp-stock-graphs", "the same with CUDA graphs", GRAPHS, "mtp", draft_checks.drafted, (STOCK,),
         probes=("mtp",), wrong=True),
    *_on("mtp", f"TurboQuant with MTP: mean difference to no speculation at most {checks.ABOUT} times the noise",
         SYNTHETIC, "mtp", draft_checks.drafted, (PATCHED,), probes=("mtp", "mtp eager"), wrong=False),
    Claim("mtp-compiled", "the same with torch.compile, to no speculation with torch.compile", SYNTHETIC,
          "mtp-compiled", draft_checks.compiled),
    Claim("soak", "32 clients, MTP, prefix caching, TurboQuant, tiles, no decode left out of a step: no answer lost",
          SYNTHETIC, "soak", draft_checks.soaked),
    Claim("soak-answers", f"the same: mean difference to no speculation at most {checks.ABOUT} times the noise of "
          "chunks", SYNTHETIC, "soak", draft_checks.soaked_answers),
    *(Claim(name, f"160 clients, MTP, prefix caching, bf16, {says}, decodes left out of steps: no answer lost",
            SYNTHETIC, "soak-crowded", partial(draft_checks.crowded, tree=PATCHED, probe=probe))
      for name, says, probe in (("crowded", "drafts accepted at random", "soak crowded"),
                                ("crowded-grammars", "a third structured output", "soak grammars"))),
    Claim("crowded-answers", f"the same: mean difference to no speculation at most {draft_checks.RIGHT}, and of no "
          f"token more than {draft_checks.WRONG:.0f} nat", SYNTHETIC, "soak-crowded",
          partial(draft_checks.crowded_answers, tree=PATCHED, probes=("soak crowded", "soak grammars"),
                  plain="crowded plain")),
    *(Claim(f"unslowed-{model}-{what}", f"{kind}, {model}, no speculation: {what} at least {draft_checks.PRICE} of "
            "stock's speed", releases, "speed", partial(draft_checks.unslowed, probe=f"speed {model}", what=what))
      for model, kind, releases in (("hybrid", "bf16", ALL), ("dense", "TurboQuant", ">=0.21"))
      for what in ("prefill", "decode")),
    Claim("unslowed-new-prompts", f"TurboQuant, dense: new prompts alone in their step at least {draft_checks.PRICE} "
          "of stock's speed", ">=0.21", "new-prompts",
          partial(draft_checks.unslowed, probe="new prompts", what="prefill")),
    *(_decode(name, f"batch {batch} at 16K: at least {stock} times the tokens/s of stock TurboQuant, and {bf16} times "
              "those of a bf16 cache", "fast-decode", decode_checks.faster, releases, batch=batch, context=16384,
              over_stock=stock, over_bf16=bf16)
      for name, batch, releases, stock, bf16 in (
          *((f"decode-{batch}{suffix}", batch, releases, bounds.stock, bounds.bf16)
            for suffix, releases, bounds in PACES for batch in (32, 8)),
          ("decode-32-large", 32, LARGE_PAGES, decode_checks.USUAL.stock, decode_checks.LARGE_BF16),
      )),
    *(_decode(f"decode-1{suffix}", f"batch 1 at 16K: the GPU is busy for at most {bounds.busy_stock} of stock "
              f"TurboQuant's time, and {decode_checks.BUSY_BF16} of a bf16 cache's", "fast-decode",
              decode_checks.busy_alone, releases, context=16384, over_stock=bounds.busy_stock)
      for suffix, releases, bounds in PACES),
    _decode("decode-short", "batch 1 and 32 at 1K: the GPU is busy for less than stock TurboQuant's time, and for at "
            f"most {decode_checks.SHORT_BF16:.2f} of a bf16 cache's", "fast-decode", decode_checks.busy_short,
            batches=(1, 32), context=1024),
    _decode("alone", f"batch 1 at 16K, in turns: at least {decode_checks.ALONE_BF16} times a bf16 cache's tokens/s",
            "fast-alone", decode_checks.alone),
    _decode("mixed", f"a prompt of 32K beside 8 decodes at 16K: at least {draft_checks.PRICE} of stock TurboQuant's "
            "speed", "fast-mixed", decode_checks.mixed, ">=0.24"),
    _decode("decode-warm", "none of its kernels is compiled after the start", "fast-decode", decode_checks.warm),
    _decode("answers", f"prompts in chunks of 128: mean difference to vLLM's kernels at most {checks.ABOUT} times what "
            f"another order of sums makes, or two versions of FlashAttention ({checks.NOISE})", "fast-decode-quality",
            decode_checks.near),
    _decode("upstream", "upstream's TurboQuant tests pass", "fast-upstream", checks.upstream, tree=DECODE,
            probe="fast upstream"),
    _decode("ngram", "n-gram drafts: all tokens as constructed, and those without drafts", "fast-drafts",
            decode_checks.answered, FAST, probe="fast ngram"),
    _decode("ngram-compiled", "the same with torch.compile", "fast-drafts", decode_checks.answered, FAST,
            probe="fast ngram compiled"),
    _decode("mtp", f"MTP: mean difference to no speculation at most {checks.ABOUT} times the noise of chunks",
            "fast-drafts-mtp", draft_checks.drafted, FAST, tree=DECODE, on=DECODE, plain="fast mtp plain",
            probes=("fast mtp", "fast mtp eager"), wrong=False),
    _decode("drafts", "2, 4 and 8 n-gram drafts: more tokens/s than by the slow form of turboquant-mtp, and than "
            "without speculation", "draft-speed", decode_checks.drafts, FAST),
    _farm("served", "serves a hybrid model, with CUDA graphs, from a KV cache as that of tiles", run_checks.served),
    _farm("answers", "TurboQuant, dense and hybrid: log-probabilities are those of tiles, exactly", run_checks.equal),
    _farm("loaded", "all of vLLM's modules and extensions come from the farm, and the process holds its receipt",
          run_checks.loaded, scenario="run"),
    _farm("start-loaded", "the same in the processes that are timed", run_checks.loaded, scenario="run-start"),
    _farm("start", f"the process begins at most {run_checks.BEGUN_S['warm']} s later than that of tiles, and its "
          f"engine takes at most {run_checks.READY:.0%} longer from then on", run_checks.started, way="warm"),
    _farm("start-cold", f"the same with {run_checks.BEGUN_S['cold']} s, if the farm is made first", run_checks.started,
          way="cold"),
    *_on("locked", "dies at a cached prefix without chunked prefill", LOCKS, "locked", checks.dies, (STOCK,),
         probe=LOCKED, of=AT_LOCK),
    Claim("unlocked", "goes on from a cached prefix without chunked prefill: the tokens with it, exactly", LOCKS,
          "locked", partial(start_checks.same_answers, probe=LOCKED, plain=CHUNKED, cached=True)),
    Claim("cache-key-stock", "stock: with another kernel, reuses the model that was compiled for the first", ">=0.26",
          "cache-key", partial(start_checks.compiled_models, tree=STOCK, wrong=True)),
    Claim("cache-key", "compile-cache-key: compiles another model for another kernel, and none for a start alike",
          ">=0.26", "cache-key", partial(start_checks.compiled_models, tree=KEYED, wrong=False)),
    Claim("expandable-stock", "two GPUs, expandable_segments: dies at the capture of CUDA graphs", ALL, "expandable",
          start_checks.dies_at_capture),
    Claim("expandable", "two GPUs, expandable_segments: starts, and the tokens are those without them, exactly", ALL,
          "expandable", partial(start_checks.same_answers, probe=EXPANDABLE, plain=ORDINARY, cached=False)),
    *_planned("layout", "in the memory that vLLM found, block size, groups, blocks, tokens and concurrency are the "
              "plan's, exactly", planned.laid_out),
    *_planned("memory", "what vLLM counted, and what is in use in the end, lies within the plan's bounds, in GiB",
              planned.counted),
)  # fmt: skip


def verdicts(runs: Runs) -> list[Verdict]:
    """Check each claim against the evidence of each release that it covers.

    Claims about scenarios that run by name only, or of speculative decoding, are left out where those were not run; and
    all others where only these were run.
    """
    by_name = {*BY_NAME, *SPECULATION}
    unasked = {
        release: (by_name if here.scenarios - by_name else {*SCENARIOS}) - here.scenarios
        for release, here in runs.items()
    }
    return [
        judge(claim, here)
        for claim in CLAIMS
        for release, here in runs.items()
        if claim.is_about(release) and claim.scenario not in unasked[release]
    ]
