"""Models whose configs ship with vpatch, small and with the source of every number: those that the presets serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from vpatch.plan import weights
from vpatch.plan.checkpoint import model_of
from vpatch.plan.estimate import scaled
from vpatch.plan.jsonfile import load
from vpatch.plan.model import GIB, Model

FOLDER = Path(__file__).with_name("recorded")


@dataclass(frozen=True)
class Recorded:
    """A recorded checkpoint: `config` as its config.json would say it, what it weighs in GiB where that is known.

    `source` says where each number comes from, and which are ours.
    """

    name: str
    revision: str
    source: tuple[str, ...]
    config: Mapping[str, Any]
    weights_gib: float | None = None


@cache
def models() -> tuple[Recorded, ...]:
    """Give every recorded checkpoint, by name; of one name, the default revision first."""
    found = []
    for path in FOLDER.glob("*.json"):
        data = load(path)
        found.append(Recorded(**data | {"source": tuple(data["source"])}))
    return tuple(sorted(found, key=lambda one: (one.name, one.revision != "main", one.revision)))


def named(name: str) -> tuple[Recorded, ...]:
    """Give the revisions of the checkpoint with a name, its default first; none if there is no such, or no one such.

    A name is `ORGANISATION/NAME` or, where one only has it, `NAME`; upper and lower case are the same.
    """
    wanted = name.casefold()
    found = [one for one in models() if wanted in (one.name.casefold(), one.name.casefold().rpartition("/")[2])]
    return tuple(found) if len({one.name for one in found}) == 1 else ()


def model(recorded: Recorded, weights_gib: float | None = None) -> Model:
    """Give a recorded checkpoint as a model; `weights_gib` goes before what is recorded."""
    where = f"the recorded config of {recorded.name} ({recorded.revision})"
    found = model_of(recorded.config, where, name=recorded.name, revision=recorded.revision)
    if weights_gib is not None:
        return weights.given(found, weights_gib)
    if recorded.weights_gib is None:
        return found
    source = f"{recorded.weights_gib} GiB as recorded, split by the shapes in the config"
    return replace(found, weights=scaled(found.weights, found, round(recorded.weights_gib * GIB), source))
