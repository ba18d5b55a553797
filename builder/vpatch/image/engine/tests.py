"""The tests that run in containers of an image."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from vpatch.core.overlay import Catalogued
from vpatch.image.checks import Provenance
from vpatch.image.engine.inside import Inside, script
from vpatch.image.model import Tested
from vpatch.image.probe_result import imported, outcome
from vpatch.image.shapes import read_json

_PATIENCE = 600  # seconds: a cold import of vLLM from a slow disk
_GPU_PATIENCE = 1800  # seconds: a server that compiles kernels before its first answer


def in_containers(
    inside: Inside, said: Provenance, tests: frozenset[str], installed: Sequence[Catalogued]
) -> Iterator[Tested]:
    """Run the tests of an image that `tests`, as in an `Order`, has.

    Probes are those of the `installed` overlays that are in the image, by vpatch or upstream.

    Raises:
        Failure: the engine refuses.
    """
    if tests:
        yield from _files(inside, said)
    if "containers" in tests:
        ran = inside.run(script("imports"), [json.dumps(said.modules)], seconds=_PATIENCE)
        yield from imported(said.modules, ran.code, ran.out, ran.err, _PATIENCE)
    for item in (item for item in installed if item.id in said.applied):
        for probe in item.overlay.probes:
            if ("gpus" if probe.gpu else "containers") in tests:
                seconds = _GPU_PATIENCE if probe.gpu else _PATIENCE
                ran = inside.run(probe.script, seconds=seconds, gpus=probe.gpu)
                yield outcome(f"probe {probe.name}", ran.code, ran.err, seconds)


def _files(inside: Inside, said: Provenance) -> Iterator[Tested]:
    asked = {"root": said.root, "dist_info": said.dist_info, "said": said.text}
    ran = inside.run(script("files"), [json.dumps(asked)], seconds=_PATIENCE)
    try:
        yield from [Tested(*answer) for answer in read_json(ran.out.splitlines()[-1])]
    except (ValueError, IndexError, TypeError):
        told = (ran.err.strip().splitlines() or [f"{inside.python} ends with exit code {ran.code}"])[-1]
        yield Tested("files", ok=False, because=told)
