"""Checks of claims about `vpatch run`: what a farm serves and answers, what its processes load, and when they start."""

from __future__ import annotations

from collections.abc import Iterator

from tests.validation.gpu import checks
from tests.validation.gpu.engines import FARM, TILES
from tests.validation.gpu.evidence import Evidence, Figure
from tests.validation.gpu.running import AGAIN, DENSE, HYBRID, LOADED, ROUNDS, RUNNING, SERVED

BEGUN_S = {"warm": 0.5, "cold": 3.0}
"""What `vpatch run` may take until the process begins, in seconds.

The targets of `benchmarks/run.py` are 0.2 and 2 s. Here Python keeps no bytecode, so that vpatch is compiled anew.
"""
READY = 0.1
"""What an engine may take longer from then on than one after `vpatch apply`, as a share: it runs the same code."""


def served(here: Evidence) -> Iterator[Figure]:
    yield from checks.serves(here, FARM, SERVED)
    yield from checks.equal_layout(SERVED, (here, FARM), (here, TILES), "tiles")


def equal(here: Evidence) -> Iterator[Figure]:
    for tree, name, as_name in ((TILES, AGAIN, HYBRID), (FARM, HYBRID, HYBRID), (FARM, DENSE, DENSE)):
        gaps = here.gaps(tree, name, TILES, as_name)
        tokens, largest = sum(gap["tokens"] for gap in gaps if gap["part"] != "last"), max(gap["max"] for gap in gaps)
        yield Figure(largest == 0, f"{name}, {tree}, {tokens:,} tokens: largest difference {largest:.4f}")


def loaded(here: Evidence, scenario: str) -> Iterator[Figure]:
    proven = [probe.name for probe in RUNNING[scenario] if FARM in probe.trees and LOADED in probe.steps]
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


def starts(here: Evidence) -> dict[str, list[tuple[float, float]]]:
    """Return when the process began and when its engine was ready, in seconds after the command, for each round.

    Raises:
        Unfit: as `Evidence.events`.
    """
    ways = {"tiles": (TILES, "run start {}"), "warm": (FARM, "run start {}"), "cold": (FARM, "run start cold {}")}
    events = {
        way: [here.events(tree, name.format(number), "entered_s")[0] for number in ROUNDS]
        for way, (tree, name) in ways.items()
    }
    return {way: [(one["entered_s"], one["ready_s"]) for one in found] for way, found in events.items()}


def started(here: Evidence, way: str) -> Iterator[Figure]:
    """The process begins hardly later than that of `tiles`, and its engine is ready as soon from then on.

    The fastest of the starts count.
    """
    found = starts(here)
    began, then = ([start for start, _ in found[one]] for one in (way, "tiles"))
    more = min(began) - min(then)
    yield Figure(more <= BEGUN_S[way], f"farm, {way}: began after {_seconds(began)}; tiles: {_seconds(then)}")
    took, took_then = ([end - start for start, end in found[one]] for one in (way, "tiles"))
    text = f"ready {_seconds(took)} after that; tiles: {_seconds(took_then)}"
    yield Figure(min(took) <= (1 + READY) * min(took_then), text)


def _seconds(times: list[float]) -> str:
    return f"{', '.join(f'{time:.2f}' for time in times)} s"


def _short(digest: str | None) -> str:
    return digest[:12] if digest else "nothing"
