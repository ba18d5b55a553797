"""The tests that run in containers of an image."""

from __future__ import annotations

import json
from collections.abc import Iterator

from vpatch.image.checks import Provenance
from vpatch.image.engine.inside import Inside, script
from vpatch.image.model import Tested

_PATIENCE = 600  # seconds: a cold import of vLLM from a slow disk


def in_container(inside: Inside, said: Provenance, tests: frozenset[str]) -> Iterator[Tested]:
    """Run the tests of an image that `tests`, as in an `Order`, has.

    Raises:
        Failure: the engine refuses.
    """
    if tests:
        yield from _files(inside, said)


def _files(inside: Inside, said: Provenance) -> Iterator[Tested]:
    asked = {"root": said.root, "dist_info": said.dist_info, "said": said.text}
    ran = inside.run(script("files"), [json.dumps(asked)], seconds=_PATIENCE)
    try:
        yield from [Tested(*answer) for answer in json.loads(ran.out.splitlines()[-1])]
    except (ValueError, IndexError, TypeError):
        told = (ran.err.strip().splitlines() or [f"{inside.python} ends with exit code {ran.code}"])[-1]
        yield Tested("files", ok=False, because=told)
