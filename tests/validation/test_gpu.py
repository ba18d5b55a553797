"""The claims about GPUs, on an H200's recorded results: the verdicts are those of the document; each can be broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import pytest

from tests.validation.gpu import planned, report
from tests.validation.gpu.claims import CLAIMS, verdicts
from tests.validation.gpu.compare import Saved, gaps
from tests.validation.gpu.engines import DECODE, FARM, KEYED, PATCHED, STOCK, TILES, WORKSPACE
from tests.validation.gpu.evidence import BROKEN, HOLDS, SKIPPED, Evidence, gather, judge, read
from tests.validation.gpu.full_size import FAMILIES, FULL_SIZE
from tests.validation.gpu.models import DRAFTING, DUMMY, REAL, STRATEGIES
from tests.validation.gpu.scenarios import SCENARIOS

RECORDED = list(read(sorted(report.RESULTS.glob("*.json"))))
RUNS = gather(RECORDED)
FOUND = verdicts(RUNS)
DEAD = {"error": "OutOfMemoryError: CUDA out of memory"}
Change = tuple[str, str, Mapping[str, Any]] | tuple[str, str, Mapping[str, Any], Mapping[str, Any]]
"""Tree, probes, new values, and what an event or a comparison must have to get them."""


def differing(probe: str, name: str, mean: float, tree: str = PATCHED) -> Change:
    return tree, probe, {"mean": mean}, {"replayed": name}


def shape(batch: int, context: int) -> Mapping[str, int]:
    return {"decode_batch": batch, "context": context}


def to(tree: str, probe: str) -> Mapping[str, str]:
    return {"to_tree": tree, "to_probe": probe}


BREAKS: tuple[tuple[str, Change], ...] = (
    ("hybrid-refused", (STOCK, "hybrid", {"error": None})),
    ("hybrid-locked", (STOCK, "hybrid", {"error": "ValueError: something else"})),
    ("dense-locked", (STOCK, "dense", {"error": None})),
    ("prefix-locked", (STOCK, "prefix", {"error": None})),
    ("hybrid-auto-dtype", (STOCK, "hybrid", {"error": None})),
    ("hybrid-served", (PATCHED, "hybrid", DEAD)),
    ("hybrid-served-tiles", (TILES, "hybrid", {"prompt": 64})),
    ("hybrid-layout", (PATCHED, "hybrid", {"block_size": 2096})),
    ("hybrid-layout-tiles", (TILES, "hybrid", {"kv_blocks": 899})),
    ("dense-served", (PATCHED, "dense", DEAD)),
    ("dense-served-tiles", (TILES, "dense", {"prompt": 4096})),
    ("prefix-served-tiles", (TILES, "prefix", DEAD)),
    ("untouched-answers", (PATCHED, "dense auto", {"max": 1e-6})),
    ("untouched-answers-hybrid", (PATCHED, "hyb auto", {"max": 1e-6})),
    ("same-answers", (PATCHED, "dense tq 128", {"max": 1e-6}, to(STOCK, "dense tq 128"))),
    ("near-answers", (PATCHED, "dense tq", {"mean": 0.061}, to(STOCK, "dense tq"))),
    ("quantized-answers", (PATCHED, "hyb tq", {"mean": 0.31}, to(STOCK, "hyb auto"))),
    ("quantized-answers-tiles", (TILES, "dense tq 128", {"mean": 0.51}, to(STOCK, "dense auto 128"))),
    ("answers-tiles", (TILES, "hyb tq 8192", {"mean": 0.2})),
    ("head", (PATCHED, "hyb channel fp8", {"mean": 0.19})),
    ("head-shifted", (PATCHED, "dense block shifted", {"mean": 2.9})),
    ("head-refused", (STOCK, "hyb block fp8", {"error": None})),
    ("upstream", (PATCHED, "upstream", {"failed": 1})),
    ("upstream-tiles", (TILES, "upstream", {"skipped": 17})),
    ("layer-buffers", (PATCHED, "dense", {"layer_buffers_mib": 1})),
    ("layer-buffers", (STOCK, "dense", {"layer_buffers_mib": 0})),
    ("flat-memory", (TILES, "dense", {"used_mib": 99999}, {"prompt": 65000})),
    ("flat-memory", (STOCK, "dense", {"used_mib": 16000})),
    ("sizing", (TILES, "long tq", {"peak_minus_budget_mib": 4000})),
    ("sizing-eager", (TILES, "long tq eager", {"peak_minus_budget_mib": 4000})),
    ("prefill-dense", (TILES, "dense", {"tokens_per_s": [9.0, 9.0, 9e9]})),
    ("prefill-hybrid", (TILES, "long tq", {"tokens_per_s": [9.0, 9.0, 9e9]})),
    ("decode", (PATCHED, "decode", {"tokens_per_s": [9.0, 9.0, 9e9]})),
    ("decode-0.21", (PATCHED, "decode", {"tokens_per_s": [9.0, 9.0, 9e9]}, {"batch": 8})),
    ("counts-stock", (STOCK, "counts", {"mismatches": 0})),
    ("counts-early-stock", (STOCK, "counts early", {"mismatches": 0})),
    ("counts", (PATCHED, "counts", {"mismatches": 1})),
    ("counts-early", (PATCHED, "counts early", {"steps": 499})),
    ("continued-stock", differing("prefix plain", f"prefix mtp, {STOCK}", 0.1, STOCK)),
    ("continued", differing("prefix plain", f"prefix mtp, {PATCHED}", 0.8, STOCK)),
    ("ngram-locked", (STOCK, "ngram", {"error": None})),
    ("ngram-capture", (STOCK, "ngram", {"error": None})),
    ("ngram-auto-dtype", (STOCK, "ngram", {"error": None})),
    ("ngram-workspace", (WORKSPACE, "ngram workspace", {"error": None})),
    ("ngram", (PATCHED, "ngram", {"digest": "other"})),
    ("ngram-compiled", (PATCHED, "ngram compiled", {"right": 199})),
    ("mtp-stock", differing("mtp plain", f"mtp eager, {STOCK}", 0.1)),
    ("mtp-stock-graphs", differing("mtp plain", f"mtp, {STOCK}", 0.1)),
    ("mtp", differing("mtp plain", f"mtp eager, {PATCHED}", 0.5)),
    ("mtp-compiled", differing("mtp compiled plain", f"mtp compiled, {PATCHED}", 0.5)),
    ("soak", (TILES, "soak", {"answers": 899})),
    ("soak-answers", differing("soak plain", f"soak, {TILES}", 0.5, TILES)),
    ("soak-answers", (TILES, "soak plain", {"left": 1})),
    ("crowded", (PATCHED, "soak crowded", {"answers": 800})),
    ("crowded", (PATCHED, "soak crowded", {"most_at_once": 144})),
    ("crowded-grammars", (PATCHED, "soak grammars", {"against_grammar": ["r7"]})),
    ("crowded-answers", (STOCK, "crowded plain", {"max": 1.1}, {"replayed": f"soak crowded, {PATCHED}"})),
    ("crowded-answers", (STOCK, "crowded plain", {"left": 1})),
    ("unslowed-hybrid-prefill", (PATCHED, "speed hybrid", {"prefill_per_s": [9.0] * 12})),
    ("unslowed-hybrid-decode", (PATCHED, "speed hybrid", {"decode_per_s": [9.0] * 12})),
    ("unslowed-dense-decode", (PATCHED, "speed dense", {"decode_per_s": [9.0] * 12})),
    ("fast-decode-32", (STOCK, "decoding auto", {"tokens_per_s": [9e9, 9e9, 9.0]}, shape(32, 16384))),
    ("fast-decode-32", (DECODE, "decoding tq", {"decode_batch": 31}, shape(32, 16384))),
    ("fast-decode-32-large", (DECODE, "decoding tq", {"tokens_per_s": [9.0, 9.0, 9e9]}, shape(32, 16384))),
    ("fast-decode-8", (STOCK, "decoding auto", {"tokens_per_s": [9e9, 9e9, 9.0]}, shape(8, 16384))),
    ("fast-decode-32-0.20", (DECODE, "decoding tq", {"tokens_per_s": [9.0, 9.0, 9e9]}, shape(32, 16384))),
    ("fast-decode-8-0.20", (STOCK, "decoding auto", {"tokens_per_s": [9e9, 9e9, 9.0]}, shape(8, 16384))),
    ("fast-decode-1-0.20", (DECODE, "decoding tq", {"busy_ms": 9.0}, shape(1, 16384))),
    ("fast-decode-1", (STOCK, "decoding auto", {"busy_ms": 0.1}, shape(1, 16384))),
    ("fast-decode-short", (STOCK, "decoding auto", {"busy_ms": 0.1}, shape(32, 1024))),
    ("fast-decode-warm", (DECODE, "decoding tq", {"compiled_while_serving": ["split_kernel"]})),
    ("fast-answers", (DECODE, "hyb tq 128 long", {"mean": 0.5})),
    ("fast-upstream", (DECODE, "fast upstream", {"failed": 1})),
    ("fast-ngram", (DECODE, "fast ngram", {"digest": "other"})),
    ("fast-ngram-compiled", (DECODE, "fast ngram compiled", {"right": 199})),
    ("fast-mtp", differing("fast mtp plain", f"fast mtp eager, {DECODE}", 0.5, DECODE)),
    ("fast-drafts", (PATCHED, "4 drafts", {"answers_per_s": [9e9, 9e9]})),
    ("ngram-stock", (STOCK, "ngram*", {"digest": "the same"})),
    ("run-served", (FARM, "run hybrid", {"prompt": 64})),
    ("run-answers", (FARM, "run dense", {"max": 1e-6})),
    ("run-loaded", (FARM, "run hybrid", {"held": False})),
    ("run-start-loaded", (FARM, "run start 2", {"elsewhere": ["vllm.config: /usr/lib/vllm/config.py"]})),
    ("run-start-loaded", (FARM, "run start 2", {"changed": []})),
    ("run-start-loaded", (FARM, "run start 2", {"extensions": ["vllm/_moe_C.abi3.so"], "linked": 1})),
    ("run-start-loaded", (FARM, "run start 2", {"extensions": ["/usr/lib/vllm/_C.abi3.so"], "linked": 1})),
    ("run-start-loaded", (FARM, "run start 2", {"linked": 1})),
    ("run-start-loaded", (FARM, "run start 2", {"asked": "fedcba"})),
    ("run-start-loaded", (FARM, "run start 2", {"digest": None, "asked": None})),
    ("run-start-loaded", (FARM, "run start 2", {"digest": "ba" * 32, "asked": "ba" * 32})),
    ("run-start-loaded", (FARM, "run start cold 2", {"held": False})),
    ("run-start", (FARM, "run start [123]", {"entered_s": 9.0})),
    ("run-start-cold", (FARM, "run start cold *", {"ready_s": 99.0})),
    ("locked", (STOCK, "locked", {"error": None})),
    ("unlocked", (PATCHED, "locked", {"digest": "other"})),
    ("expandable-stock", (STOCK, "two expandable", {"cuda_error": "another"})),
    ("expandable", (PATCHED, "two expandable", {"digest": "other"})),
    ("progress-stock", (STOCK, "progress", {"computed": 4})),
    ("progress", (PATCHED, "progress", {"first_token": None})),
    ("progress-answers", differing("progress plain", f"progress, {PATCHED}", 0.5, STOCK)),
    ("units-stock", (STOCK, "units", {"cached": [544]})),
    ("units", (PATCHED, "units", {"cached": [0]})),
    ("units-answers", differing("units plain", f"units, {PATCHED}", 0.5, STOCK)),
    *(
        (name, differing("graphs plain", f"{probe}, {tree}", mean, STOCK))
        for name, probe, tree, mean in (
            ("graphs", "graphs mtp", PATCHED, 0.2),
            ("graphs-v1", "graphs mtp v1", PATCHED, 0.2),
            ("graphs-v1-stock", "graphs mtp v1", STOCK, 0.9),
            ("graphs-stock", "graphs mtp", STOCK, 0.9),
        )
    ),
    *(
        (f"one-token{name}", differing("one token plain", f"one token{probe}, {tree}", mean))
        for name, probe, tree, mean in (
            ("", "", PATCHED, 0.2),
            ("-stock", "", STOCK, 0.9),
            ("-v1", " v1", PATCHED, 0.2),
            ("-v1-stock", " v1", STOCK, 0.9),
            ("-mtp", " mtp", PATCHED, 0.2),
            ("-mtp-stock", " mtp", STOCK, 0.9),
            ("-mtp-v1", " mtp v1", PATCHED, 0.2),
            ("-mtp-v1-stock", " mtp v1", STOCK, 0.9),
        )
    ),
    ("zero-drafts-stock", differing("zero drafts plain", f"zero drafts, {STOCK}", 0.2, STOCK)),
    ("zero-drafts", differing("zero drafts plain", f"zero drafts, {PATCHED}", 0.2, STOCK)),
    ("cache-key-stock", (STOCK, "starts", {"loaded": None}, {"compiled": "other kernel"})),
    ("cache-key", (KEYED, "starts", {"loaded": None}, {"compiled": "again"})),
    ("fast-alone", (DECODE, "alone tq", {"turns_per_s": [[9.0]] * 7})),
    ("fast-mixed", (DECODE, "mixed tq", {"took_s": [9.0] * 3})),
    ("plan-layout", (PATCHED, "35b tq", {"kv_blocks": 5})),
    ("plan-layout", (PATCHED, "35b auto", DEAD)),
    ("plan-memory", (PATCHED, "35b tq", {"activations": 99 << 30})),
    ("plan-27b-layout", (PATCHED, "27b tq", {"groups": [16, 16, 16]})),
    ("plan-27b-memory", (PATCHED, "27b auto 256", {"weights": 99 << 30})),
    ("plan-delta-layout", (PATCHED, "qwen3.6-27b-text", {"groups": [1, 1, 1]})),
    ("plan-delta-memory", (PATCHED, "qwen3.6-27b-text again", {"activations": 9 << 30})),
    ("plan-states-layout", (PATCHED, "jamba-mini", {"block_size": 16})),
    ("plan-states-memory", (PATCHED, "nemotron-3-nano", {"weights": 99 << 30})),
    ("plan-others-layout", (PATCHED, "deepseek-v3", {"kv_blocks": 5})),
    ("plan-others-memory", (PATCHED, "gemma-3-27b", {"activations": 9 << 30})),
)


def changed(here: Evidence, tree: str, probes: str, values: Mapping[str, Any], only: Mapping[str, Any]) -> Evidence:
    """Return the evidence with other values for probes, wherever they have such a value."""

    def new(one: Mapping[str, Any]) -> dict[str, Any]:
        there = {key: value for key, value in values.items() if key in one}
        return {**one, **(there if only.items() <= one.items() else {})}

    def ours(one: Mapping[str, Any]) -> bool:
        return one["tree"] == tree and fnmatch(one["probe"], probes)

    results = {
        key: new(result) | {"events": [new(event) for event in result["events"]]} if ours(result) else result
        for key, result in here.results.items()
    }
    return replace(here, results=results, compared=[new(gap) if ours(gap) else gap for gap in here.compared])


@pytest.mark.parametrize(
    ("name", "change"), BREAKS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(BREAKS)]
)
def test_each_claim_can_be_broken(name: str, change: Change) -> None:
    tree, probes, values, *only = change
    about = [verdict for verdict in FOUND if verdict.claim.id == name and verdict.state == HOLDS]
    for verdict in about:
        other = changed(RUNS[verdict.release], tree, probes, values, *only or [{}])
        assert judge(verdict.claim, other).state == BROKEN

    assert about


def test_the_document_has_the_recorded_verdicts_and_explains_those_that_are_broken() -> None:
    text = report.DOCUMENT.read_text()

    assert text == report.fresh(text), "run `python -m tests.validation.gpu.report`"
    assert [(v.claim.id, v.release) for v in FOUND if v.state == BROKEN] == [
        ("unslowed-dense-prefill", "0.24.0"),
        ("unslowed-new-prompts", "0.24.0"),
        ("fast-decode-32-large", "0.33.0"),
    ]
    assert {(v.claim.scenario, v.release) for v in FOUND if v.state == SKIPPED} == {("eager", "0.21.0")}
    assert {claim.id for claim in CLAIMS} == {name for name, _ in BREAKS} | {
        *("unslowed-dense-prefill", "unslowed-new-prompts")
    }
    with pytest.raises(ValueError, match="0 places for gpu-claims"):
        report.fresh("# Validation\n")


def states(*runs: Mapping[str, Any]) -> dict[str, str]:
    """Return the states of claims about one release."""
    return {verdict.claim.id: verdict.state for verdict in verdicts(gather(runs))}


def run(release: str, *scenarios: str) -> dict[str, Any]:
    """Return the recorded run of these scenarios on a release."""
    (found,) = (one for one in RECORDED if one["vllm"] == release and {*scenarios} <= {*one["scenarios"]})
    return found


def test_what_was_not_run_breaks_its_claims_and_what_was_not_asked_for_is_skipped() -> None:
    served = run("0.21.0", "serves", "heads")
    failed = [one | {"ok": False, "error": "not run: out of time", "events": []} for one in served["results"]]
    heads = {probe.name for probe in SCENARIOS["heads"]}
    bare = served | {
        "scenarios": ["serves", "quality"], "results": [one for one in served["results"] if one["probe"] not in heads],
    }  # fmt: skip

    assert {*states(served | {"results": failed, "compared": []}).values()} == {BROKEN, SKIPPED}
    assert [states(bare)[name] for name in ("hybrid-served", "head")] == [HOLDS, SKIPPED]
    assert states(run("0.20.2", "decode"))["decode-0.21"] == SKIPPED, "it compares with another release"


def test_the_later_of_two_runs_counts() -> None:
    good = run("0.26.0", "serves")
    bad = [one | {"error": "OutOfMemoryError"} if one["probe"] == "hybrid" else one for one in good["results"]]
    before, after = (good | {"results": bad, "date": date} for date in ("2000-01-01", "3000-01-01"))

    assert states(good, before)["hybrid-served"] == HOLDS
    assert states(good, after)["hybrid-served"] == BROKEN


def test_the_fastest_of_the_starts_counts() -> None:
    here = changed(RUNS["0.20.2"], FARM, "run start 1", {"ready_s": 99.0}, {})
    (claim,) = (claim for claim in CLAIMS if claim.id == "run-start")

    assert judge(claim, here).state == HOLDS


def test_a_first_chunk_may_differ_as_two_versions_of_flash_attention() -> None:
    here = changed(RUNS["0.26.0"], DECODE, "* tq 128 long", {"mean": 0.07}, {"part": "first"})
    (claim,) = (claim for claim in CLAIMS if claim.id == "fast-answers")

    assert judge(claim, here).state == HOLDS


def test_an_engine_that_was_not_run_says_nothing_of_its_plan() -> None:
    here = changed(RUNS["0.20.2"], PATCHED, "35b auto", {"error": "not run: out of time"}, {})
    found = list(planned.check(here, "plan", planned.laid_out))

    assert [figure.holds for figure in found if figure.text == "35b auto: not run: out of time"] == [None]
    assert False not in {figure.holds for figure in found}


def test_parts_of_a_long_prompt() -> None:
    ours: Saved = {"prompt": [0.0] * 20000, "top": [1] * 20000}
    theirs: Saved = {"prompt": [0.0] * 19999 + [-4.096], "top": [1] * 19999 + [2]}
    found = {gap["part"]: (gap["mean"], gap["max"], gap["same_top"]) for gap in gaps(ours, theirs, 8192)}

    assert found == {"first": (0, 0, 1), "later": (0.000347, 4.096, 0.9999), "last": (0.001, 4.096, 0.9998)}
    with pytest.raises(ValueError, match="argument 2"):
        list(gaps(ours, {"prompt": [0.0], "top": [1]}, 8192))


def test_every_probe_has_a_name_of_its_own_references_and_a_checkpoint() -> None:
    probes = [probe for some in SCENARIOS.values() for probe in some]
    names = {probe.name for probe in probes}
    heads = (
        f"{name}_{strategy}_{kind}" for name in REAL for strategy in STRATEGIES for kind in ("fp8", "bf16", "shifted")
    )

    assert len(names) == len(probes)
    assert {name for probe in probes for _, name in (*probe.references, *probe.of)} <= names
    assert {probe.model for probe in probes if probe.steps} <= {*DUMMY, *REAL, *DRAFTING, *FULL_SIZE, *FAMILIES, *heads}
