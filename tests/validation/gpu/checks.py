"""Checks of claims against measurements: each yields the figures, and whether they are within the limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.validation.gpu.engines import PATCHED, STOCK, TILES
from tests.validation.gpu.evidence import PROBES, Evidence, Figure, Unfit, middle
from tests.validation.gpu.models import STRATEGIES

FAMILIES = ("dense", "hyb")

NOISE = 0.06
"""Mean difference in nats between FlashAttention 2 and 3, measured where no quantized key was read."""
ABOUT = 1.25
"""Factor between two samples of the same noise that still counts as "about as much"."""
QUANTIZED = {2048: 0.30, 128: 0.50}
"""Bound on the mean difference of TurboQuant 4bit_nc to bf16, by chunk; stock 0.21.0 has 0.21 and 0.37."""
HEAD = {"block": 0.25, "channel": 0.18, "tensor": 0.18}
"""Bound on the mean difference of an FP8 head to itself dequantized; quantized activations alone make 0.15."""
SHIFTED = 3.0
"""Lower bound on the mean difference that shifted block scales make."""
SLACK_MIB = 64
GROWTH_MIB = 1024
"""Lower bound on the device memory by which stock 0.20 grows over longer and longer prompts."""
PREFILL, DECODE = 0.95, 0.98
DECODE_BESIDE_021 = 0.65
"""0.21 also has vllm-project/vllm#40941 (decode in the shared workspace, results in half precision, no waiting for
lengths to be copied), which no overlay brings to 0.20: patched 0.20.2 is slower, by a third at worst."""
UPSTREAM_TESTS = 121
WARM = 65000
"""The longest prompt: once it is answered, no other prompt may take more device memory."""
FULL_CHUNK_MIB = 512
"""Upper bound on the activations of a chunk of 8,192 tokens."""


def serves(here: Evidence, tree: str, probe: str) -> Iterator[Figure]:
    wanted = [n for action, lengths in PROBES[probe].steps if action in ("serve", "watched") for n in lengths]
    answered = [event["prompt"] for event in here.events(tree, probe, "prompt")]
    yield Figure(answered == wanted, f"{probe}: prompts of {', '.join(f'{n:,}' for n in answered)} tokens")
    error = here.result(tree, probe)["error"]
    if error:
        yield Figure(holds=False, text=error)


def dies(here: Evidence, tree: str, probe: str, of: str) -> Iterator[Figure]:
    error = here.result(tree, probe)["error"]
    yield Figure(bool(error) and of in error, f"{probe}: {(error or 'it does not')[:160]}")


def layout(here: Evidence, tree: str, probe: str) -> Iterator[Figure]:
    merged = here.of_series("0.21")
    yield from equal_layout(probe, (here, tree), (merged, STOCK), f"stock {merged.release}")


def equal_layout(probe: str, ours: tuple[Evidence, str], theirs: tuple[Evidence, str], name: str) -> Iterator[Figure]:
    """Compare the blocks and tokens of two KV caches, each of a release and a tree."""
    mine, others = (
        {**one.result(tree, probe), **one.events(tree, probe, "block_size")[0]} for one, tree in (ours, theirs)
    )
    for key in ("block_size", "kv_blocks", "kv_tokens"):
        holds = mine.get(key) is not None and mine.get(key) == others.get(key)
        yield Figure(holds, f"{key} {mine.get(key)}, {name} {others.get(key)}")


def same(here: Evidence, probes: tuple[str, ...]) -> Iterator[Figure]:
    for probe in probes:
        largest = max(gap["max"] for gap in here.gaps(PATCHED, probe, STOCK, probe))
        yield Figure(largest == 0, f"{probe}: largest {largest:.4f}")


def close(here: Evidence, tree: str, probes: Mapping[str, tuple[str, str]], bound: float) -> Iterator[Figure]:
    for probe, reference in probes.items():
        for gap in here.gaps(tree, probe, *reference):
            text = f"{probe}, {gap['length']:,} tokens, {gap['part']}: {gap['mean']:.4f} (largest {gap['max']:.3f})"
            yield Figure(gap["mean"] <= bound, text)


def within_noise(here: Evidence, tree: str, probes: Mapping[str, tuple[str, str]]) -> Iterator[Figure]:
    for family in FAMILIES:
        noise = max(gap["mean"] for gap in here.gaps(STOCK, f"{family} auto 2", STOCK, f"{family} auto"))
        yield Figure(holds=None, text=f"{family}, bf16, FlashAttention 2 against the default: {noise:.4f}")
        own = {probe: reference for probe, reference in probes.items() if probe.startswith(family)}
        yield from close(here, tree, own, ABOUT * max(NOISE, noise))


def quantized(here: Evidence, tree: str) -> Iterator[Figure]:
    for family in FAMILIES:
        for probe, reference in ((f"{family} tq", f"{family} auto"), (f"{family} tq 128", f"{family} auto 128")):
            for gap in here.gaps(tree, probe, STOCK, reference):
                bound = QUANTIZED[PROBES[probe].chunk]
                yield Figure(gap["mean"] <= bound, f"{probe}, {gap['part']}: {gap['mean']:.3f}")


def heads(here: Evidence) -> Iterator[Figure]:
    for strategy, bound in HEAD.items():
        for family in FAMILIES:
            name = f"{family} {strategy}"
            for gap in here.gaps(PATCHED, f"{name} fp8", STOCK, f"{name} bf16"):
                yield Figure(gap["mean"] <= bound, f"{name}: {gap['mean']:.3f}")


def shifted(here: Evidence) -> Iterator[Figure]:
    for family in FAMILIES:
        for gap in here.gaps(PATCHED, f"{family} block shifted", STOCK, f"{family} block bf16"):
            yield Figure(gap["mean"] > SHIFTED, f"{family}: {gap['mean']:.2f}")


def refused_heads(here: Evidence) -> Iterator[Figure]:
    for family in FAMILIES:
        error = here.result(STOCK, f"{family} {STRATEGIES[0]} fp8")["error"]
        yield Figure(bool(error) and "Error" in error, f"{family}: {(error or 'it does')[:160]}")


def layer_buffers(here: Evidence) -> Iterator[Figure]:
    for tree in (PATCHED, STOCK):
        largest = max(event["layer_buffers_mib"] for event in here.events(tree, "dense", "prompt"))
        yield Figure((largest > 0) == (tree == STOCK), f"{tree} {largest:,} MiB")


def flat(here: Evidence) -> Iterator[Figure]:
    for tree in (TILES, PATCHED, STOCK):
        start, *later = here.events(tree, "dense", "used_mib")
        warm = [event["used_mib"] for event in later if event.get("prompt", 0) >= WARM or "prefill" in event]
        if len(warm) < 2:
            raise Unfit(f"dense, {tree}: {here.result(tree, 'dense')['error'] or 'too few prompts'}")
        since_start, since_warm = max(warm) - start["used_mib"], max(warm) - warm[0]
        bounded = since_start <= FULL_CHUNK_MIB and since_warm <= SLACK_MIB
        holds = {TILES: bounded, STOCK: since_start > GROWTH_MIB}.get(tree)
        yield Figure(holds, f"{tree} {since_start:+,} MiB since the start, {since_warm:+,} since {WARM:,} tokens")


def sizing(here: Evidence, ours: str, control: str, beside: tuple[str, ...] = ()) -> Iterator[Figure]:
    (auto,) = here.events(STOCK, control, "peak_minus_budget_mib")
    limit = auto["peak_minus_budget_mib"] + SLACK_MIB
    whole = here.events(STOCK, control, "prompt")[-1]["prompt"] == 131000
    yield Figure(whole, f"bf16 {auto['peak_minus_budget_mib']:+,} MiB")
    (tiles,) = here.events(TILES, ours, "peak_minus_budget_mib")
    whole = here.events(TILES, ours, "prompt")[-1]["prompt"] == 131000
    yield Figure(whole and tiles["peak_minus_budget_mib"] <= limit, f"tiles {tiles['peak_minus_budget_mib']:+,} MiB")
    for tree in beside:
        result = here.result(tree, ours)
        peaks = [f"{e['peak_minus_budget_mib']:+,} MiB" for e in result["events"] if "peak_minus_budget_mib" in e]
        died = [result["error"][:80]] if result["error"] else []
        yield Figure(holds=None, text=" ".join([tree, *peaks, *died]))


def prefill(here: Evidence, probe: str) -> Iterator[Figure]:
    tiles, whole = (middle(here.events(tree, probe, "prefill")[0]["tokens_per_s"]) for tree in (TILES, PATCHED))
    text = f"tiles {tiles:,.0f} tokens/s, in one piece {whole:,.0f}: {tiles / whole:.3f}"
    yield Figure(tiles >= PREFILL * whole, text)


def decode(here: Evidence, series: str, share: float) -> Iterator[Figure]:
    there = here.of_series(series)
    points = [
        {(e["context"], e["batch"]): middle(e["tokens_per_s"]) for e in one.events(tree, "decode", "batch")}
        for one, tree in ((here, PATCHED), (there, STOCK))
    ]
    if points[0].keys() != points[1].keys():
        raise Unfit("decode: not the same contexts and batches")
    for context, batch in points[0]:
        ours, theirs = (rates[context, batch] for rates in points)
        text = f"batch {batch} at {context:,}: {ours:,.0f} tokens/s, stock {there.release} {theirs:,.0f}"
        yield Figure(ours >= share * theirs, f"{text} ({ours / theirs:.3f})")


def upstream(here: Evidence, tree: str, probe: str = "upstream") -> Iterator[Figure]:
    for one in (tree, STOCK):
        (found,) = here.events(one, probe, "tests")
        passed = found["tests"] - found["failed"] - found["skipped"]
        holds = (passed == found["tests"] >= UPSTREAM_TESTS) if one == tree else None
        yield Figure(holds, f"{one} {passed} of {found['tests']} pass")
