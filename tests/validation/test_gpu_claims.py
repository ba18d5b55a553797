"""Verdicts on GPU claims: every claim holds on a good run, and each can be broken."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from tests.validation.gpu.claims import CLAIMS, verdicts
from tests.validation.gpu.engines import DECODE, FARM, PATCHED, STOCK, TILES, WORKSPACE
from tests.validation.gpu.evidence import BROKEN, HOLDS, SKIPPED, Runs, gather
from tests.validation.gpu.running import DENSE, ROUNDS, SERVED
from tests.validation.gpu_runs import RELEASES, Run, good, result_of, without

GOOD = {release: good(release) for release in RELEASES}
Break = Callable[[Run], None]


def event(run: Run, tree: str, probe: str, key: str) -> Run:
    found: Run = [one for one in result_of(run, tree, probe)["events"] if key in one][-1]
    return found


def setting(tree: str, probe: str, **values: object) -> Break:
    def change(run: Run) -> None:
        for key, value in values.items():
            event(run, tree, probe, key)[key] = value

    return change


def failing(tree: str, probe: str, error: str | None = "OutOfMemoryError: CUDA out of memory") -> Break:
    def change(run: Run) -> None:
        result_of(run, tree, probe).update({"ok": not error, "error": error})

    return change


def gap(tree: str, probe: str, to: tuple[str, str], **values: float) -> Break:
    def change(run: Run) -> None:
        key = {"tree": tree, "probe": probe, "to_tree": to[0], "to_probe": to[1]}
        found = [one for one in run["compared"] if key.items() <= one.items()]
        assert found
        found[-1].update(values)

    return change


def repeating(tree: str, probe: str, **values: object) -> Break:
    def change(run: Run) -> None:
        for one in result_of(run, tree, probe)["events"][1:]:
            one.update(values)

    return change


def differing(tree: str, probe: str, of: str, mean: float) -> Break:
    def change(run: Run) -> None:
        found = [e for e in result_of(run, tree, probe)["events"] if e.get("replayed") == of]
        assert found
        found[-1]["mean"] = mean

    return change


def decoding(tree: str, probe: str, shape: tuple[int, int], key: str, value: object) -> Break:
    def change(run: Run) -> None:
        events = [e for e in result_of(run, tree, probe)["events"] if key in e]
        (found,) = (e for e in events if (e["decode_batch"], e["context"]) == shape)
        found[key] = value

    return change


def late(name: str, **times: float) -> Break:
    def change(run: Run) -> None:
        for number in ROUNDS:
            event(run, FARM, f"{name} {number}", "ready_s").update(times)

    return change


BREAKS: dict[str, Break] = {
    "hybrid-refused": failing(STOCK, "hybrid", None),
    "hybrid-locked": failing(STOCK, "hybrid", "ValueError: something else"),
    "dense-locked": failing(STOCK, "dense", None),
    "prefix-locked": failing(STOCK, "prefix", None),
    "hybrid-auto-dtype": failing(STOCK, "hybrid", None),
    "hybrid-served": failing(PATCHED, "hybrid"),
    "hybrid-served-tiles": setting(TILES, "hybrid", prompt=64),
    "hybrid-layout": setting(PATCHED, "hybrid", block_size=2096),
    "hybrid-layout-tiles": setting(TILES, "hybrid", kv_blocks=899),
    "dense-served": failing(PATCHED, "dense"),
    "dense-served-tiles": setting(TILES, "dense", prompt=4096),
    "prefix-served-tiles": failing(TILES, "prefix"),
    "untouched-answers": gap(PATCHED, "dense auto", (STOCK, "dense auto"), max=1e-6),
    "untouched-answers-hybrid": gap(PATCHED, "hyb auto", (STOCK, "hyb auto"), max=1e-6),
    "same-answers": gap(PATCHED, "dense tq 128", (STOCK, "dense tq 128"), max=1e-6),
    "near-answers": gap(PATCHED, "dense tq", (STOCK, "dense tq"), mean=0.061),
    "quantized-answers": gap(PATCHED, "hyb tq", (STOCK, "hyb auto"), mean=0.31),
    "quantized-answers-tiles": gap(TILES, "dense tq 128", (STOCK, "dense auto 128"), mean=0.51),
    "answers-tiles": gap(TILES, "hyb tq 8192", (PATCHED, "hyb tq 8192"), mean=0.076),
    "head": gap(PATCHED, "hyb channel fp8", (STOCK, "hyb channel bf16"), mean=0.19),
    "head-shifted": gap(PATCHED, "dense block shifted", (STOCK, "dense block bf16"), mean=2.9),
    "head-refused": failing(STOCK, "hyb block fp8", None),
    "upstream": setting(PATCHED, "upstream", failed=1),
    "upstream-tiles": setting(TILES, "upstream", skipped=17),
    "layer-buffers": setting(PATCHED, "dense", layer_buffers_mib=1),
    "flat-memory": setting(TILES, "dense", used_mib=16165),
    "sizing": setting(TILES, "long tq", peak_minus_budget_mib=465),
    "sizing-eager": setting(TILES, "long tq eager", peak_minus_budget_mib=465),
    "prefill-dense": setting(TILES, "dense", tokens_per_s=[94000, 94000, 200000]),
    "prefill-hybrid": setting(TILES, "long tq", tokens_per_s=[94000, 94000, 200000]),
    "decode": setting(PATCHED, "decode", tokens_per_s=[176.0, 176.0, 200.0]),
    "decode-0.21": setting(PATCHED, "decode", tokens_per_s=[116.0, 116.0, 200.0]),
    "counts-stock": setting(STOCK, "counts", mismatches=0),
    "counts-early-stock": setting(STOCK, "counts early", mismatches=0),
    "counts": setting(PATCHED, "counts", mismatches=1),
    "counts-early": setting(PATCHED, "counts early", steps=499),
    "continued-stock": differing(STOCK, "prefix plain", f"prefix mtp, {STOCK}", 0.29),
    "continued": differing(STOCK, "prefix plain", f"prefix mtp, {PATCHED}", 0.126),
    "ngram-locked": failing(STOCK, "ngram", None),
    "ngram-capture": failing(STOCK, "ngram", None),
    "ngram-auto-dtype": failing(STOCK, "ngram", None),
    "ngram-stock": repeating(STOCK, "ngram", digest="aa"),
    "ngram-workspace": failing(WORKSPACE, "ngram workspace", None),
    "ngram": repeating(PATCHED, "ngram", digest="ac"),
    "ngram-compiled": repeating(PATCHED, "ngram compiled", right=199),
    "mtp-stock": differing(PATCHED, "mtp plain", f"mtp eager, {STOCK}", 0.29),
    "mtp-stock-graphs": differing(PATCHED, "mtp plain", f"mtp, {STOCK}", 0.29),
    "mtp": differing(PATCHED, "mtp plain", f"mtp eager, {PATCHED}", 0.126),
    "mtp-compiled": differing(PATCHED, "mtp compiled plain", f"mtp compiled, {PATCHED}", 0.126),
    "soak": setting(TILES, "soak", answers=899),
    "soak-answers": differing(TILES, "soak plain", f"soak, {TILES}", 0.126),
    "unslowed-hybrid-prefill": setting(PATCHED, "speed hybrid", prefill_per_s=[98000.0, 197500.0]),
    "unslowed-hybrid-decode": setting(PATCHED, "speed hybrid", decode_per_s=[980.0, 1975.0]),
    "unslowed-dense-prefill": setting(PATCHED, "speed dense", prefill_per_s=[98000.0, 197500.0]),
    "unslowed-dense-decode": setting(PATCHED, "speed dense", decode_per_s=[980.0, 1975.0]),
    "unslowed-new-prompts": setting(PATCHED, "new prompts", prefill_per_s=[98000.0, 197500.0]),
    "fast-decode-32": decoding(STOCK, "decoding auto", (32, 16384), "tokens_per_s", [273.0, 273.0, 100.0]),
    "fast-decode-32-large": decoding(DECODE, "decoding tq", (32, 16384), "tokens_per_s", [299.0, 299.0, 400.0]),
    "fast-decode-8": decoding(STOCK, "decoding auto", (8, 16384), "tokens_per_s", [273.0, 273.0, 100.0]),
    "fast-decode-32-0.20": decoding(DECODE, "decoding tq", (32, 16384), "tokens_per_s", [239.0, 239.0, 400.0]),
    "fast-decode-8-0.20": decoding(STOCK, "decoding auto", (8, 16384), "tokens_per_s", [273.0, 273.0, 100.0]),
    "fast-decode-1-0.20": decoding(DECODE, "decoding tq", (1, 16384), "busy_ms", 2.41),
    "fast-decode-1": decoding(DECODE, "decoding tq", (1, 16384), "busy_ms", 1.81),
    "fast-decode-short": decoding(STOCK, "decoding auto", (32, 1024), "busy_ms", 1.5),
    "fast-decode-warm": setting(DECODE, "decoding tq", compiled_while_serving=["split_kernel"]),
    "fast-answers": gap(DECODE, "hyb tq 128 long", (PATCHED, "hyb tq 128 long"), mean=0.0751),
    "fast-upstream": setting(DECODE, "fast upstream", failed=1),
    "fast-ngram": repeating(DECODE, "fast ngram", digest="ac"),
    "fast-ngram-compiled": repeating(DECODE, "fast ngram compiled", right=199),
    "fast-mtp": differing(DECODE, "fast mtp plain", f"fast mtp eager, {DECODE}", 0.126),
    "fast-drafts": setting(PATCHED, "4 drafts", answers_per_s=[1326.0, 1326.0]),
    "run-served": setting(FARM, SERVED, prompt=64),
    "run-answers": gap(FARM, DENSE, (TILES, DENSE), max=1e-6),
    "run-loaded": setting(FARM, SERVED, held=False),
    "run-start-loaded": setting(FARM, "run start cold 2", held=False),
    "run-start": late("run start", entered_s=0.61),
    "run-start-cold": late("run start cold", ready_s=19.0),
    "plan-layout": setting(PATCHED, "35b tq", kv_blocks=5),
    "plan-memory": setting(PATCHED, "35b fp8", activations=99 << 30),
    "plan-27b-layout": setting(PATCHED, "27b auto", groups=[16, 16, 16]),
    "plan-27b-memory": setting(PATCHED, "27b auto 256", weights=99 << 30),
    "plan-delta-layout": setting(PATCHED, "qwen3.6-27b-text", groups=[1, 1, 1]),
    "plan-delta-memory": setting(PATCHED, "qwen3.6-27b-text again", activations=9 << 30),
    "plan-states-layout": setting(PATCHED, "jamba-mini", block_size=16),
    "plan-states-memory": setting(PATCHED, "nemotron-3-nano", weights=99 << 30),
    "plan-others-layout": setting(PATCHED, "deepseek-v3", kv_blocks=5),
    "plan-others-memory": setting(PATCHED, "gemma-3-27b", activations=9 << 30),
}


def judged(*runs: Run) -> dict[tuple[str, str], str]:
    return {(verdict.claim.id, verdict.release): verdict.state for verdict in verdicts(gather(runs))}


def test_every_claim_holds_on_a_good_run() -> None:
    found = judged(*GOOD.values())

    assert {name for name, _ in found} == {claim.id for claim in CLAIMS} == BREAKS.keys()
    assert set(found.values()) == {HOLDS}


@pytest.mark.parametrize("name", BREAKS)
def test_each_claim_can_be_broken(name: str) -> None:
    runs = deepcopy(GOOD)
    about = [release for claim in CLAIMS for release in RELEASES if claim.id == name and claim.is_about(release)]
    for release in about:
        BREAKS[name](runs[release])
    found = judged(*runs.values())

    assert about
    assert [found[name, release] for release in about] == [BROKEN] * len(about)


def test_the_memory_claim_breaks_if_stock_does_not_grow() -> None:
    run = deepcopy(GOOD["0.20.2"])
    for each in result_of(run, STOCK, "dense")["events"]:
        each["used_mib"] = 16000

    assert judged(run)["flat-memory", "0.20.2"] == BROKEN


def test_a_batch_that_was_not_measured_breaks_its_claims() -> None:
    run = deepcopy(GOOD["0.26.0"])
    found = result_of(run, STOCK, "decoding auto")
    found["events"] = [e for e in found["events"] if e.get("decode_batch") != 8]
    (verdict,) = (v for v in verdicts(gather([run])) if v.claim.id == "fast-decode-8")

    assert (verdict.state, verdict.figures) == (BROKEN, "batch 8 at 16,384: not measured by bf16")
    assert judged(run)["fast-decode-32", "0.26.0"] == HOLDS


def test_a_first_chunk_may_differ_as_two_versions_of_flash_attention() -> None:
    run = deepcopy(GOOD["0.26.0"])
    for one in run["compared"]:
        if one["probe"].endswith((" tq 128 long", " tq 128 long 8")):
            one |= {"part": "first", "mean": 0.07 if one["tree"] == DECODE else 0.0}

    assert judged(run)["fast-answers", "0.26.0"] == HOLDS


def test_a_probe_that_was_not_run_breaks_its_claims() -> None:
    run = deepcopy(GOOD["0.21.0"])
    for one in run["results"]:
        one |= {"ok": False, "error": "not run: out of time", "events": []}
    run["compared"] = []

    assert set(judged(run).values()) == {BROKEN}


def test_claims_about_missing_trees_and_unrequested_scenarios_are_skipped() -> None:
    bare = without(GOOD["0.26.0"], TILES)
    found = judged(bare | {"scenarios": ["serves", "quality"]})

    assert found["hybrid-served", "0.26.0"] == HOLDS
    assert found["hybrid-served-tiles", "0.26.0"] == SKIPPED
    assert found["head", "0.26.0"] == SKIPPED
    assert BROKEN not in found.values()


def test_a_comparison_of_releases_needs_both() -> None:
    alone = judged(GOOD["0.20.2"])

    assert {name for (name, _), state in alone.items() if state == SKIPPED} == {
        *("hybrid-layout", "hybrid-layout-tiles", "decode-0.21")
    }
    assert BROKEN not in alone.values()


def test_two_runs_of_a_release_are_combined_and_the_later_counts() -> None:
    def part(date: str, *scenarios: str, probes: tuple[str, ...]) -> Run:
        run = deepcopy(GOOD["0.26.0"])
        results = [one for one in run["results"] if one["probe"] in probes]
        return run | {"date": date, "scenarios": scenarios, "results": results, "compared": []}

    early, late = part("1", "serves", probes=("hybrid", "prefix")), part("2", "dense", probes=("dense",))
    again = part("3", "serves", probes=("hybrid",))
    failing(PATCHED, "hybrid")(early)

    def states(*runs: Run) -> tuple[str, ...]:
        found = judged(*runs)
        return tuple(found[name, "0.26.0"] for name in ("hybrid-served", "dense-served"))

    assert states(early, late) == (BROKEN, HOLDS)
    assert states(again, late, early) == (HOLDS, HOLDS)


def test_runs_are_kept_apart_by_release() -> None:
    runs: Runs = gather(GOOD.values())

    assert tuple(runs) == RELEASES
    assert all(evidence.release == release for release, evidence in runs.items())
