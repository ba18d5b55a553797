"""Checks of claims about servers that default overlays keep alive."""

from __future__ import annotations

from collections.abc import Iterator

from tests.validation.gpu.compiling import STARTS
from tests.validation.gpu.engines import PATCHED, STOCK
from tests.validation.gpu.evidence import Evidence, Figure, Unfit
from tests.validation.gpu.starting import EXPANDABLE, LENGTHS

OF_CAPTURE = ("custom_all_reduce.cuh", "'invalid argument'")


def same_answers(here: Evidence, probe: str, plain: str, *, cached: bool) -> Iterator[Figure]:
    """Every answer is that of the other engine, on stock; with `cached`, the last prompt went on from a prefix."""
    ours, theirs = here.events(PATCHED, probe, "continued"), here.events(STOCK, plain, "continued")
    answered = [one["continued"] for one in ours]
    yield Figure(answered == [*LENGTHS], f"{probe}: prompts of {', '.join(f'{n:,}' for n in answered)} tokens")
    same = sum(one["digest"] == other["digest"] for one, other in zip(ours, theirs, strict=False))
    yield Figure(same == len(LENGTHS), f"{same} of {len(LENGTHS)} answers as {plain}, stock")
    if cached:
        yield Figure(ours[-1]["cached"] > LENGTHS[0] // 2, f"{ours[-1]['cached']:,} tokens were cached")


def dies_at_capture(here: Evidence) -> Iterator[Figure]:
    """Stock does not start, and the extension says why; vLLM's own error does not."""
    found = here.result(STOCK, EXPANDABLE)
    said = str(found.get("cuda_error"))
    dead = bool(found["error"]) and not any("continued" in event for event in found["events"])
    yield Figure(dead and all(part in said for part in OF_CAPTURE), f"{EXPANDABLE}: {said}")


def compiled_models(here: Evidence, tree: str, *, wrong: bool) -> Iterator[Figure]:
    """A start alike compiles nothing, and one with another kernel compiles a model of its own; `wrong`: it does not."""
    starts = {event["compiled"]: event for event in here.events(tree, "starts", "compiled")}
    if [*starts] != [*STARTS]:
        raise Unfit(f"starts, {tree}: {here.result(tree, 'starts')['error']}")
    first, again, other = starts.values()
    alike = again["loaded"] == first["saved"] is not None
    yield Figure(alike, f"alike: {'loads what the first compiled' if alike else 'compiles again'}")
    yield Figure(other["kernel"] != first["kernel"], f"{first['kernel']}, then {other['kernel']}")
    reused = other["loaded"] == first["saved"]
    same = sum(a == b for a, b in zip(first["ids"], other["ids"], strict=True))
    said = "reuses the model of the first kernel" if reused else "compiles a model of its own"
    yield Figure(reused == wrong, f"{said}; {same} of {len(first['ids'])} tokens are those of the first")
