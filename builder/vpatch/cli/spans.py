"""Verdicts on several vLLMs for people: one line for all that have the same, and runs of releases as "A to B"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from packaging.version import Version

from vpatch.cli.wording import Row
from vpatch.core.verdict import Verdict
from vpatch.wrapping import from_here

_RUN = 3  # releases from which a run is written by its ends


def rows(states: Mapping[str, Verdict]) -> Iterator[Row]:
    """Yield a row for each verdict, with the vLLMs that have it, the oldest releases first.

    Args:
        states: the verdicts, by releases, and "0.24.0 in FOLDER" for a vLLM in a folder.
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for name, found in states.items():
        why = f"{found.problems[0].where}: {found.problems[0].cause}" if found.problems else ""
        alike.setdefault((found.state, why), []).append(name)
    every = _releases([*states])
    groups = [(tuple(spans(names, every)), state, why) for (state, why), names in alike.items()]
    order = {key: number for number, key in enumerate(every)}
    for names, state, why in sorted(groups, key=lambda group: order.get(group[0][0].partition(" to ")[0], -1)):
        yield f"  {', '.join(names)}", state, why


def spans(names: Sequence[str], every: Sequence[str]) -> Iterator[str]:
    """Yield names of vLLMs; a folder with a release that is among them is left out.

    Args:
        names: the names.
        every: all releases that were looked at, the oldest first.
    """
    mine = _releases(names)
    for name in names:
        version, of_folder, folder = name.partition(" in ")
        if of_folder and version not in mine:
            yield f"{version} in {from_here(Path(folder))}"
    for _, run in groupby(enumerate(mine), key=lambda one: every.index(one[1]) - one[0]):
        found = [name for _, name in run]
        yield from found if len(found) < _RUN else [f"{found[0]} to {found[-1]}"]


def _releases(names: Sequence[str]) -> list[str]:
    return sorted((name for name in names if " in " not in name), key=Version)
