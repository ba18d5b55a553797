"""Checks of claims about speculative decoding. `wrong`: the claim is that the tree shows the defect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from tests.validation.gpu.checks import ABOUT
from tests.validation.gpu.engines import PATCHED, STOCK, TILES
from tests.validation.gpu.evidence import Evidence, Figure, Missing, Unfit
from tests.validation.gpu.speculation import DRAFTED

STEPS = 500
BEYOND = 3.0
"""Factor of the noise from which on log-probabilities are wrong; stock 0.21.0 has 8 and more."""
RIGHT, WRONG = 0.1, 1.0
"""Bounds on the mean difference of answers to prompts of few tokens, where chunks make little noise: MTP without CUDA
graphs, which is right, makes 0.07 on 0.33.0 and 0.12 on 0.26.0, and a wrong state 1.4 and more."""
FORGOTTEN = 3 * RIGHT
"""Lower bound on the mean difference of answers of which a part was made by a state that lacks the last tokens."""
PRICE = 0.99
"""Share of stock's speed, as the median of turns that both took one after the other."""


def counted(here: Evidence, tree: str, probe: str, *, wrong: bool) -> Iterator[Figure]:
    (found,) = here.events(tree, probe, "mismatches")
    enough = found["steps"] >= STEPS and len(found["accepted"]) > 2
    span = f"{min(found['accepted'])} to {max(found['accepted'])}"
    yield Figure(enough, f"{probe}: {found['steps']:,} steps, {found['rows']:,} counts from {span}")
    amount = f"{found['mismatches']:,} of another request, in {found['wrong_steps']:,} steps"
    yield Figure((found["mismatches"] > 0) == wrong, amount)


def continued(here: Evidence, tree: str, *, wrong: bool) -> Iterator[Figure]:
    noise = _noise(here, STOCK, "prefix plain", f"prefix uncached, {STOCK}")
    yield Figure(holds=None, text=f"noise {noise:.3f}")
    cached = [event["cached"] for event in here.events(tree, "prefix mtp", "conversation")]
    yield Figure(holds=None, text=f"cached tokens of {len(cached)} prompts: {cached}")
    for part in ("first", "second"):
        gap = _replayed(here, STOCK, "prefix plain", f"prefix mtp, {tree}", part)
        yield _judged(gap, noise, wrong=wrong and part == "second", text=f"{part} turn")


def repeated(here: Evidence, tree: str, probe: str, *, wrong: bool, plain: str = "ngram plain") -> Iterator[Figure]:
    without, drafts = (
        {event["repetition"]: event for event in here.events(tree, name, "repetition")} for name in (plain, probe)
    )
    if drafts.keys() != without.keys():
        raise Unfit(f"{probe}: {here.result(tree, probe)['error'] or 'not the same prompts'}")
    different = [part for part, event in drafts.items() if event["digest"] != without[part]["digest"]]
    right = ", ".join(f"{event['right']} of {event['ids']}" for event in drafts.values())
    text = f"{probe}: {len(different)} of {len(without)} differ; as constructed: {right}"
    yield Figure(bool(different) == wrong, text)


def constructed(here: Evidence, tree: str, probe: str) -> Iterator[Figure]:
    for event in here.events(tree, probe, "repetition"):
        yield Figure(event["right"] == event["ids"] > 0, f"{event['repetition']}: {event['right']} of {event['ids']}")


def compiled(here: Evidence) -> Iterator[Figure]:
    if "mtp" not in here.scenarios:
        raise Missing("its noise is that of the scenario mtp")
    noise = _noise(here, PATCHED, "mtp plain", f"mtp synchronous, {PATCHED}")
    yield Figure(holds=None, text=f"noise {noise:.3f}")
    gap = _replayed(here, PATCHED, "mtp compiled plain", f"mtp compiled, {PATCHED}", "answer")
    yield _judged(gap, noise, wrong=False, text="difference")


def drafted(
    here: Evidence,
    tree: str,
    probes: tuple[str, ...],
    *,
    wrong: bool,
    on: str = PATCHED,
    plain: str = "mtp plain",
) -> Iterator[Figure]:
    """Log-probabilities with MTP are those of the same tokens without speculation, decoded by `plain` on the tree `on`.

    Its noise includes that of synchronous MTP, if `plain` has decoded its answers, too.
    """
    noise = _noise(here, on, plain, f"mtp synchronous, {on}")
    yield Figure(holds=None, text=f"noise {noise:.3f}")
    for probe in probes:
        here.events(tree, probe, "answers")
        gap = _replayed(here, on, plain, f"{probe}, {tree}", "answer")
        yield _judged(gap, noise, wrong=wrong, text=probe)


def short(
    here: Evidence, tree: str, probe: str, *, wrong: bool, on: str, plain: str, beyond: float = WRONG
) -> Iterator[Figure]:
    """Answers to prompts of few tokens have the log-probabilities of the same tokens, decoded by `plain` on `on`.

    They are right if they differ by about as much as MTP does without CUDA graphs, which decodes four tokens at once,
    too. `beyond`: the mean difference from which on they are wrong.
    """
    here.events(tree, probe, "answers")
    gap = _replayed(here, on, plain, f"{probe}, {tree}", "answer")
    eager = _without_graphs(here)
    holds = gap["mean"] > beyond if wrong else gap["mean"] <= max(RIGHT, ABOUT * eager)
    if not wrong and eager > RIGHT:
        yield Figure(holds=None, text=f"MTP without CUDA graphs: {eager:.3f}")
    yield Figure(holds, f"{probe}: {gap['mean']:.3f} (bias {gap['bias']:+.3f}, largest {gap['max']:.2f})")


def soaked(here: Evidence, tree: str = TILES, probe: str = "soak") -> Iterator[Figure]:
    (found,) = here.events(tree, probe, "soak_s")
    text = f"{found['answers']:,} of {found['asked']:,} answers in {found['soak_s']} s, {found['tokens']:,} tokens"
    yield Figure(found["answers"] == found["asked"] > 0, f"{text}, at most {found['most_at_once']} at once")


def crowded(here: Evidence, tree: str, probe: str) -> Iterator[Figure]:
    """As `soaked`, with more decodes at once than a step has tokens for, and what was structured as asked for."""
    yield from soaked(here, tree, probe)
    (found,) = here.events(tree, probe, "soak_s")
    wanted = found["most_at_once"] * (1 + DRAFTED)
    yield Figure(wanted > found["budget"], f"decodes of {wanted} tokens at once, {found['budget']} in a step")
    if "structured" in found:
        against = found["against_grammar"]
        yield Figure(
            found["structured"] > 0 and not against, f"{found['structured']:,} structured, {len(against)} wrong"
        )


def crowded_answers(here: Evidence, tree: str, probes: tuple[str, ...], plain: str) -> Iterator[Figure]:
    """Each answer that has no grammar has the log-probabilities of the same tokens without speculation.

    The noise is that of chunks and batches, and is shown only: decoding four tokens at once makes some of its own.
    """
    (noise,) = here.events(STOCK, f"{plain} noise", "replayed")[:1]
    yield Figure(holds=None, text=f"noise: {noise['mean']:.3f} (largest {noise['max']:.2f})")
    for probe in probes:
        (found,) = here.events(tree, probe, "soak_s")
        gap = _replayed(here, STOCK, plain, f"{probe}, {tree}", "answer")
        whole = gap["requests"] == found["answers"] - found.get("structured", 0) and not gap["left"]
        yield Figure(whole, f"{probe}: {gap['requests']:,} answers decoded again")
        text = f"difference: {gap['mean']:.3f} (bias {gap['bias']:+.3f}, largest {gap['max']:.2f})"
        yield Figure(gap["mean"] <= RIGHT and gap["max"] <= WRONG, text)


def soaked_answers(here: Evidence) -> Iterator[Figure]:
    """Each answer of the soak has the log-probabilities of the same tokens without speculation.

    The noise is that of chunks and batches alone. The control, without prefix caching and asynchronous scheduling,
    speculates as well, and so shares its defects.
    """
    (found,) = here.events(TILES, "soak", "soak_s")
    gap, control = (_replayed(here, TILES, "soak plain", f"{name}, {TILES}", "answer")
                    for name in ("soak", "soak synchronous"))  # fmt: skip
    whole = gap["requests"] == found["answers"] and gap["tokens"] == found["tokens"] and not gap["left"]
    yield Figure(whole, f"{gap['requests']:,} answers decoded again")
    (noise,) = here.events(TILES, "soak plain noise", "replayed")
    for name, one in (("noise", noise), ("synchronous and uncached", control)):
        yield Figure(holds=None, text=f"{name}: {one['mean']:.3f} (one of 100 tokens over {one['p99']:.2f})")
    yield _judged(gap, noise["mean"], wrong=False, text="difference")
    yield Figure(holds=None, text=f"one of 100 tokens over {gap['p99']:.2f}")


def unslowed(here: Evidence, probe: str, what: str) -> Iterator[Figure]:
    (ours,), (theirs,) = (here.events(tree, probe, "decode_per_s") for tree in (PATCHED, STOCK))
    mine = ours[f"{what}_per_s"]
    shares = sorted(a / b for a, b in zip(mine, theirs[f"{what}_per_s"], strict=True))
    share = float(median(shares))
    text = f"{median(mine):,.0f} tokens/s, {share:.3f} of stock's, in single turns {shares[0]:.3f} to {shares[-1]:.3f}"
    yield Figure(share >= PRICE, f"{probe}, {what}: {text}")


def _judged(gap: Mapping[str, Any], noise: float, *, wrong: bool, text: str) -> Figure:
    holds = gap["mean"] > BEYOND * noise if wrong else gap["mean"] <= ABOUT * noise
    return Figure(holds, f"{text}: {gap['mean']:.3f} (bias {gap['bias']:+.3f}, largest {gap['max']:.2f})")


def _noise(here: Evidence, tree: str, plain: str, control: str) -> float:
    """Return the largest mean difference that chunks, batches, and a control without the defect make."""
    again = [event["mean"] for event in here.events(tree, f"{plain} noise", "replayed")]
    first = [event["mean"] for event in here.events(tree, plain, "replayed") if event["replayed"] == control]
    return float(max(again + first))


def _replayed(here: Evidence, tree: str, plain: str, of: str, part: str) -> Mapping[str, Any]:
    found = [e for e in here.events(tree, plain, "replayed") if (e["replayed"], e["part"]) == (of, part)]
    if not found:
        raise Unfit(f"{of}: no answer was decoded again")
    return found[0]


def _without_graphs(here: Evidence) -> float:
    """Return the mean difference that MTP without CUDA graphs makes; 0 where the scenario `graphs` was not run."""
    events = here.results.get((STOCK, "graphs plain"), {"events": ()})["events"]
    return max((e["mean"] for e in events if e.get("replayed") == f"graphs mtp eager, {STOCK}"), default=0.0)
