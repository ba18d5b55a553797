"""The lists beside our overlays are what the recorder finds, which resolves all calls but those that are named here."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from vpatch.calls.record import Recording, record
from vpatch.core.calls import Taken
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.tree.locate import locate

from tests.paths import CACHE
from tests.releases import SHAPES, shown, tree_of
from tests.tiers import sampled

UNRESOLVED = {
    "`kind`": "the class of any model",
    "`logger.info`": "vLLM's own line, in a module that is too large for Jedi's inference",
    **dict.fromkeys(("`new.any`", "`new.int`", "`new.int().argmax`"), "a tensor, from a field that may be None"),
    "`self.input_ids.gpu[:num_input_tokens].clamp_`": "a tensor, from a buffer of the runner",
    "`release.keys`": "a dictionary from JSON",
    "`self.model.lm_head.weight.cpu`": "a tensor of any model",
}
"""Calls that may stay unresolved, with what is called."""


def recorded(release: str) -> Recording:
    items = [item for item in discover() if shown(item.id, release) == "pending"]
    with TemporaryDirectory(dir=CACHE / "trees", prefix=".calls-") as scratch:  # for hard links
        return record(Engine(items), locate(tree_of(release)), Path(scratch))


def lacks(listed: Taken, found: Taken) -> list[str]:
    """Return what is found and not listed."""
    missing = [name for name in found.imports if name not in listed.imports]
    missing += [place for place in found.overrides if place not in listed.overrides]
    for place, call in found.calls.items():
        name = place.partition(" ")[2]
        known = [each for at, each in listed.calls.items() if at == place or (place in each.at and name in at)]
        fits = known and {*call.given} <= {*known[0].given} and call.interfaces.keys() <= known[0].interfaces.keys()
        missing += [] if fits else [place]
    return missing


@pytest.mark.deep
@pytest.mark.parametrize("release", sampled(SHAPES, 3))
def test_the_lists_are_true(release: str) -> None:
    found = recorded(release)

    lists = {item.id: item.calls for item in discover()}
    missing = {}
    for (name, key), taken in found.code.items():
        calls = lists[name]
        assert calls is not None
        assert release in calls.releases
        missing[name, key] = lacks(calls.code[key], taken)
    assert {key: names for key, names in missing.items() if names} == {}
    unresolved = {one.partition(": ")[2] for causes in found.unresolved.values() for one in causes}
    assert unresolved <= UNRESOLVED.keys()
