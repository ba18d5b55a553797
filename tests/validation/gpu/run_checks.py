"""Checks of claims about `vpatch run`: what a farm serves and answers, what its processes load, and when they start."""

from __future__ import annotations

from collections.abc import Iterator

from tests.validation.gpu import checks
from tests.validation.gpu.engines import FARM, TILES
from tests.validation.gpu.evidence import Evidence, Figure, Runs
from tests.validation.gpu.running import DENSE, HYBRID, LOADED, ROUNDS, RUNNING, SERVED

WARM_S, WARM = 1.0, 0.05
"""What a start may take more than one after `vpatch apply`, in seconds or as a share, whichever is more.

`benchmarks/run.py` allows 0.2 s, beside a command that takes none. Starts of one engine differ by more than that.
"""
COLD_S = 2.0
"""What making the farm may take beside that: the target of `benchmarks/run.py`, where it took 1.9 s on two cores."""


def served(here: Evidence, runs: Runs) -> Iterator[Figure]:
    """Every prompt is answered, from a KV cache with the blocks and tokens of `tiles`."""
    yield from checks.serves(here, runs, FARM, SERVED)
    ours, theirs = (
        {**here.result(tree, SERVED), **here.events(tree, SERVED, "block_size")[0]} for tree in (FARM, TILES)
    )
    for name in ("block_size", "kv_blocks", "kv_tokens"):
        mine, other = ours.get(name), theirs.get(name)
        yield Figure(mine is not None and mine == other, f"{name} {mine}, tiles {other}")


def equal(here: Evidence, _: Runs) -> Iterator[Figure]:
    """The dense model's log-probabilities equal those of `tiles` exactly."""
    gaps = here.gaps(FARM, DENSE, TILES, DENSE)
    tokens, largest = sum(gap["tokens"] for gap in gaps if gap["part"] != "last"), max(gap["max"] for gap in gaps)
    yield Figure(largest == 0, f"{tokens:,} tokens: largest {largest:.4f}")


def near(here: Evidence, runs: Runs) -> Iterator[Figure]:
    """The hybrid model's log-probabilities are close to those of `tiles`, in each part of each prompt."""
    yield from checks.close(here, runs, FARM, {HYBRID: (TILES, HYBRID)}, checks.NOISE)


def loaded(here: Evidence, _: Runs) -> Iterator[Figure]:
    """Modules and compiled extensions come from the farm, and vLLM has called the receipt of what was asked for."""
    proven = [probe.name for probe in RUNNING["run"] if FARM in probe.trees and LOADED in probe.steps]
    digests = set()
    for probe in proven:
        (found,) = here.events(FARM, probe, "extensions")
        away, changed, linked = found["elsewhere"], found["changed"], found["linked"]
        core = [file for file in found["extensions"] if file.startswith("vllm/_C")]
        digests.add(found["digest"])
        yield Figure(not away, f"{probe}: {found['modules']:,} modules, {', '.join(away[:3]) or 'none'} from elsewhere")
        yield Figure(bool(changed), f"{len(changed)} that overlays change")
        yield Figure(bool(core) and linked == len(found["extensions"]), f"{linked} of {len(found['extensions'])} "
                     f"extensions by links, {', '.join(core) or 'no vllm/_C'}")  # fmt: skip
        same = bool(found["digest"]) and found["digest"] == found["asked"]
        yield Figure(same, f"digest {_short(found['digest'])}, asked for {_short(found['asked'])}")
        yield Figure(found["held"] is True, "receipt held" if found["held"] else "no receipt")
    yield Figure(len(digests) == 1, f"{len(digests)} digest in {len(proven)} processes")


def starts(here: Evidence) -> dict[str, list[float]]:
    """Return the seconds from the start of the process until the engine was ready, by way, for each round.

    Raises:
        Missing, Unfit: as `Evidence.events`.
    """
    ways = {"tiles": (TILES, "run start {}"), "warm": (FARM, "run start {}"), "cold": (FARM, "run start cold {}")}
    return {
        way: [here.events(tree, name.format(number), "ready_s")[0]["ready_s"] for number in ROUNDS]
        for way, (tree, name) in ways.items()
    }


def started(here: Evidence, _: Runs, way: str) -> Iterator[Figure]:
    """The faster of two starts takes hardly longer than that of `tiles`."""
    found = starts(here)
    ours, theirs = found[way], found["tiles"]
    more, allowed = min(ours) - min(theirs), max(WARM_S, WARM * min(theirs)) + (COLD_S if way == "cold" else 0)
    yield Figure(more <= allowed, f"farm, {way}: {_seconds(ours)}; tiles: {_seconds(theirs)}; {more:+.2f} s")


def _seconds(times: list[float]) -> str:
    return f"{' and '.join(f'{time:.2f}' for time in times)} s"


def _short(digest: str | None) -> str:
    return digest[:12] if digest else "nothing"
