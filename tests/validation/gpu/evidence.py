"""Results of runs, read from their files, and the verdicts on claims about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from packaging.specifiers import SpecifierSet

from tests.validation.gpu.scenarios import SCENARIOS

HOLDS, BROKEN, SKIPPED = "holds", "broken", "skipped"
PROBES = {probe.name: probe for probes in SCENARIOS.values() for probe in probes}


class Unfit(Exception):
    """The probe of a claim ran, but its result cannot be judged."""


class Missing(Exception):
    """The measurement that a claim needs was impossible or not requested here."""


@dataclass(frozen=True)
class Figure:
    """One measured figure of a claim; `holds` is None if it is shown for comparison only."""

    holds: bool | None
    text: str


@dataclass(frozen=True)
class Evidence:
    """Results of all runs of one release. If a probe ran twice, the later run counts.

    runs: the evidence of every release, for claims that compare two.
    """

    release: str
    scenarios: frozenset[str] = frozenset()
    results: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    compared: Sequence[Mapping[str, Any]] = ()
    runs: Mapping[str, Evidence] = field(default_factory=dict, repr=False)

    def result(self, tree: str, probe: str) -> Mapping[str, Any]:
        """Return a probe's result.

        Raises:
            Unfit: the probe has no result.
        """
        if (tree, probe) not in self.results:
            raise Unfit(f"{probe}, {tree}: no result")
        return self.results[tree, probe]

    def events(self, tree: str, probe: str, key: str) -> list[Mapping[str, Any]]:
        """Return a probe's events that have a key.

        Raises:
            Unfit: it has no result, or no such event.
        """
        result = self.result(tree, probe)
        found = [event for event in result["events"] if key in event]
        if not found:
            raise Unfit(f"{probe}, {tree}: {result['error'] or f'nothing of {key}'}")
        return found

    def gaps(self, tree: str, probe: str, to_tree: str, to_probe: str) -> list[Mapping[str, Any]]:
        """Return the differences between two probes' log-probabilities, for each prompt and part of it.

        Raises:
            Unfit: one has no result, or a prompt of both was not compared.
        """
        lengths = set(_logprobs(probe)) & set(_logprobs(to_probe))
        for one in ((tree, probe), (to_tree, to_probe)):
            self.events(*one, "start_s")
        key = {"tree": tree, "probe": probe, "to_tree": to_tree, "to_probe": to_probe}
        found = [gap for gap in self.compared if key.items() <= gap.items()]
        if lengths - {gap["length"] for gap in found}:
            error = self.result(tree, probe)["error"] or self.result(to_tree, to_probe)["error"]
            raise Unfit(f"{probe}, {tree}: {error or 'prompts were not compared'}")
        return found

    def of_series(self, series: str) -> Evidence:
        """Return the evidence of the other release that a claim compares with.

        Raises:
            Missing: no run of that release.
        """
        for release, evidence in self.runs.items():
            if SpecifierSet(f"=={series}.*").contains(release):
                return evidence
        raise Missing(f"it compares with {series}, of which there is no run")


Runs = Mapping[str, Evidence]
Check = Callable[[Evidence], Iterable[Figure]]


@dataclass(frozen=True)
class Claim:
    """A claim about some releases.

    scenario: the scenario whose results it needs.
    """

    id: str
    says: str
    releases: str
    scenario: str
    check: Check

    def is_about(self, release: str) -> bool:
        return SpecifierSet(self.releases).contains(release)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim (holds, broken or skipped), with the figures or the reason."""

    claim: Claim
    release: str
    state: str
    figures: str


def judge(claim: Claim, here: Evidence) -> Verdict:
    if claim.scenario not in here.scenarios:
        return Verdict(claim, here.release, SKIPPED, f"scenario {claim.scenario} was not asked for")
    try:
        figures = list(claim.check(here))
    except Missing as missing:
        return Verdict(claim, here.release, SKIPPED, str(missing))
    except Unfit as unfit:
        return Verdict(claim, here.release, BROKEN, str(unfit))
    judged = [figure.holds for figure in figures if figure.holds is not None]
    state = HOLDS if judged and all(judged) else BROKEN
    return Verdict(claim, here.release, state, "; ".join(figure.text for figure in figures))


def read(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the results in the files, the earliest first."""
    yield from sorted((json.loads(file.read_text()) for file in files), key=lambda run: str(run["date"]))


def gather(runs: Iterable[Mapping[str, Any]]) -> Runs:
    """Combine the results of each release's runs.

    A scenario was run, too, if all of its probes have results: earlier, another scenario may have had them.
    """
    found: dict[str, Evidence] = {}
    for run in sorted(runs, key=lambda run: str(run["date"])):
        before = found.get(run["vllm"], Evidence(run["vllm"]))
        results = {(one["tree"], one["probe"]): one for one in run["results"]}
        anew = {probe for _, probe in results}
        whole = {name for name, probes in SCENARIOS.items() if {probe.name for probe in probes} <= anew}
        found[run["vllm"]] = Evidence(
            run["vllm"],
            before.scenarios | {*run["scenarios"]} | whole,
            {**before.results, **results},
            [*(gap for gap in before.compared if gap["probe"] not in anew), *run["compared"]],
            found,
        )
    return found


def middle(rates: Sequence[float]) -> float:
    return float(median(rates))


def _logprobs(probe: str) -> tuple[int, ...]:
    return tuple(n for action, lengths in PROBES[probe].steps if action == "logprobs" for n in lengths)
