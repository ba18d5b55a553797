"""Checks of claims about `turboquant-decode`: the speed of decode steps and of drafts, and what they answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.validation.gpu import draft_checks
from tests.validation.gpu.checks import ABOUT, FAMILIES, NOISE
from tests.validation.gpu.engines import DECODE, PATCHED, STOCK
from tests.validation.gpu.evidence import PROBES, Evidence, Figure, Unfit, middle


class Bounds(NamedTuple):
    """What decoding at 16K has to reach on some releases: tokens/s as multiples of stock TurboQuant's and of bf16's.

    busy_stock: the most GPU time of a step of one request, as a multiple of stock TurboQuant's. Such a step takes 2 ms.
        The host's time in it is not steady, so tokens/s say little.
    """

    stock: float
    bf16: float
    busy_stock: float


USUAL = Bounds(stock=2.8, bf16=1.1, busy_stock=0.3)
SLOW = Bounds(stock=2.4, bf16=1.1, busy_stock=0.4)
"""Of 0.20, whose steps take 1.2 ms for a copy, with a bf16 cache as well."""
LARGE_BF16 = 1.2
"""The multiple of a bf16 cache's tokens/s for 32 requests from 0.26 on. On 0.21.0 an H200 reached 1.17."""
BUSY_BF16 = 1.1
"""Upper bound on the GPU's time in a step of one request at 16K, as a multiple of a bf16 cache's."""
ALONE_BF16 = 0.97
"""Lower bound on one request's tokens/s at 16K, as a multiple of a bf16 cache's; the GPU's time alone makes 0.985."""
SHORT_BF16 = 1 / 0.9
"""Upper bound on the GPU's time in a step at 1K, as a multiple of a bf16 cache's."""
OWN_KERNELS = {"split_kernel", "combine_kernel", "rotate_kernel"}
"""Triton kernels of the overlay."""
DRAFTS = (2, 4, 8)

TREES = {"stock": (STOCK, "decoding tq"), "decode": (DECODE, "decoding tq"), "bf16": (STOCK, "decoding auto")}
"""The engines that decode in turn: trees and probes of the scenario `fast-decode`."""

Shape = tuple[int, int]
"""A batch and its context, in tokens."""


def speeds(here: Evidence) -> dict[str, dict[Shape, float]]:
    """Return the tokens/s of each engine of `TREES`, by shape: the median of its windows."""
    return {
        name: {(e["decode_batch"], e["context"]): middle(e["tokens_per_s"]) for e in here.events(*one, "tokens_per_s")}
        for name, one in TREES.items()
    }


def busy(here: Evidence) -> dict[str, dict[Shape, float]]:
    """Return the GPU's time in a step of each engine of `TREES`, in milliseconds, by shape."""
    return {
        name: {(e["decode_batch"], e["context"]): e["busy_ms"] for e in here.events(*one, "busy_ms")}
        for name, one in TREES.items()
    }


def draft_speeds(here: Evidence, tree: str) -> dict[int, float]:
    """Return the tokens/s of a tree's answers by the number of drafts, 0 for no speculation: medians of its turns."""
    return {
        drafts: middle(here.events(tree, f"{drafts} drafts", "answers_per_s")[0]["answers_per_s"])
        for drafts in (0, *DRAFTS)
    }


def faster(here: Evidence, batch: int, context: int, over_stock: float, over_bf16: float) -> Iterator[Figure]:
    ours, stock, bf16 = _of_shape(speeds(here), (batch, context))
    yield Figure(holds=None, text=f"{ours:,.0f} tokens/s")
    yield Figure(ours >= over_stock * stock, f"stock {stock:,.0f} ({ours / stock:.2f} x)")
    yield Figure(ours >= over_bf16 * bf16, f"bf16 {bf16:,.0f} ({ours / bf16:.2f} x)")


def alone(here: Evidence) -> Iterator[Figure]:
    """One request's decode steps, turn by turn beside those with a bf16 cache."""
    ours, bf16 = (
        [middle(turn) for turn in here.events(*one, "alone")[0]["turns_per_s"]]
        for one in ((DECODE, "alone tq"), (STOCK, "alone auto"))
    )
    shares = sorted(a / b for a, b in zip(ours, bf16, strict=True))
    text = f"{middle(ours):,.0f} tokens/s, bf16 {middle(bf16):,.0f}: {middle(shares):.3f} x"
    yield Figure(middle(shares) >= ALONE_BF16, f"{text}, in single turns {shares[0]:.3f} to {shares[-1]:.3f}")


def mixed(here: Evidence) -> Iterator[Figure]:
    """A prompt beside decodes, turn by turn beside stock TurboQuant; a bf16 cache is shown."""
    ours, stock, bf16 = (
        here.events(*one, "beside")[0]["took_s"]
        for one in ((DECODE, "mixed tq"), (STOCK, "mixed tq"), (STOCK, "mixed auto"))
    )
    for name, theirs, bound in (("stock", stock, draft_checks.PRICE), ("bf16", bf16, None)):
        shares = sorted(b / a for a, b in zip(ours, theirs, strict=True))
        text = f"{middle(ours):.2f} s, {name} {middle(theirs):.2f}: {middle(shares):.3f} of its speed"
        holds = None if bound is None else middle(shares) >= bound
        yield Figure(holds, f"{text}, in single turns {shares[0]:.3f} to {shares[-1]:.3f}")


def busy_alone(here: Evidence, context: int, over_stock: float) -> Iterator[Figure]:
    ours, stock, bf16 = _of_shape(busy(here), (1, context))
    yield Figure(holds=None, text=f"{ours:.2f} ms")
    yield Figure(ours <= over_stock * stock, f"stock {stock:.2f} ({ours / stock:.2f} x)")
    yield Figure(ours <= BUSY_BF16 * bf16, f"bf16 {bf16:.2f} ({ours / bf16:.2f} x)")


def busy_short(here: Evidence, batches: tuple[int, ...], context: int) -> Iterator[Figure]:
    for batch in batches:
        ours, stock, bf16 = _of_shape(busy(here), (batch, context))
        yield Figure(ours < stock, f"batch {batch}: {ours:.2f} ms, stock {stock:.2f} ({ours / stock:.2f} x)")
        yield Figure(ours <= SHORT_BF16 * bf16, f"bf16 {bf16:.2f} ({ours / bf16:.2f} x)")


def warm(here: Evidence) -> Iterator[Figure]:
    (found,) = here.events(DECODE, "decoding tq", "compiled_while_serving")
    compiled = found["compiled_while_serving"]
    own = sorted(OWN_KERNELS.intersection(compiled))
    yield Figure(not own, f"vpatch's: {', '.join(own) or 'none'}")
    yield Figure(holds=None, text=f"vLLM's: {', '.join(sorted({*compiled} - OWN_KERNELS)) or 'none'}")


def answered(here: Evidence, probe: str) -> Iterator[Figure]:
    yield from draft_checks.repeated(here, DECODE, probe, wrong=False, plain="fast ngram plain")
    right = all(figure.holds for figure in draft_checks.constructed(here, DECODE, probe))
    yield Figure(right, "all right" if right else "not all right")


def drafts(here: Evidence) -> Iterator[Figure]:
    slow, fast = (draft_speeds(here, tree) for tree in (PATCHED, DECODE))
    without = max(slow[0], fast[0])
    yield Figure(holds=None, text=f"no speculation {without:,.0f} tokens/s")
    for count in DRAFTS:
        text = f"{count} drafts: {fast[count]:,.0f} tokens/s ({fast[count] / without:.2f} x), slow form"
        yield Figure(fast[count] > max(slow[count], without),
                     f"{text} {slow[count]:,.0f} ({fast[count] / slow[count]:.2f} x)")  # fmt: skip


def near(here: Evidence) -> Iterator[Figure]:
    """Log-probabilities differ from those of vLLM's kernels by about as much as rounding makes.

    That is what another order of sums in vLLM's decode kernel makes, or another version of FlashAttention, whichever is
    more: the overlay changes both. The first chunk reads no cache, so another order of sums changes nothing there.
    """
    for family in FAMILIES:
        name = f"{family} tq 128 long"
        (reference,) = PROBES[name].references
        others, ours = (
            {(gap["length"], gap["part"]): gap for gap in here.gaps(tree, probe, *reference)}
            for tree, probe in ((reference[0], f"{name} 8"), (DECODE, name))
        )
        if others.keys() != ours.keys():
            raise Unfit(f"{name}: not the same prompts")
        for (length, part), gap in ours.items():
            sums = others[length, part]["mean"]
            text = f"{family}, {length:,} tokens, {part}: {gap['mean']:.4f} (other sums {sums:.4f})"
            yield Figure(gap["mean"] <= ABOUT * max(NOISE, sums), text)


def _of_shape(found: dict[str, dict[Shape, float]], shape: Shape) -> tuple[float, float, float]:
    if missing := [name for name, by_shape in found.items() if shape not in by_shape]:
        raise Unfit(f"batch {shape[0]} at {shape[1]:,}: not measured by {', '.join(missing)}")
    return found["decode"][shape], found["stock"][shape], found["bf16"][shape]
