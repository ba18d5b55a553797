"""Would the list that was recorded before a release have refused it? `python -m tests.calls.left_out [ID]...`.

It takes ten minutes.
For each release, the lists are made from the earlier ones alone, and judge every overlay that is pending there.
"""
# ruff: noqa: T201

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from vpatch.calls.merge import merged
from vpatch.calls.record import Recording, record
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State
from vpatch.tree.locate import locate

from tests.paths import CACHE
from tests.releases import RELEASES, shown, tree_of


def pending(release: str) -> list[Catalogued]:
    """Return the overlays that are pending on a release, without their lists."""
    ids = sys.argv[1:]
    return [
        replace(item, calls=None)
        for item in discover()
        if shown(item.id, release) == "pending" and (not ids or item.id in ids)
    ]


def recording(release: str) -> Recording:
    """Record what overlays take from a release."""
    with TemporaryDirectory(dir=CACHE / "trees", prefix=".calls-") as scratch:
        return record(Engine(pending(release)), locate(tree_of(release)), Path(scratch))


def main() -> int:
    """Print each overlay that its earlier list refuses, and the count; return the exit status."""
    with ProcessPoolExecutor() as pool:
        recorded = dict(zip(RELEASES, pool.map(recording, RELEASES), strict=True))
    judged, refused = 0, 0
    for number, release in enumerate(RELEASES):
        earlier = {name: recorded[name] for name in RELEASES[:number]}
        read = locate(tree_of(release)).read
        for item in pending(release):
            calls = merged(item.id, earlier, {name: locate(tree_of(name)).read for name in earlier})
            if not calls.releases:
                continue
            code = {key: taken for key, taken in calls.code.items() if (item.id, key) in recorded[release].code}
            (verdict,) = Engine(
                [replace(item, calls=replace(calls, known=dict.fromkeys(calls.known, ()), code=code))]
            ).status(read)
            judged += 1
            if verdict.state is not State.PENDING:
                refused += 1
                print(f"{release} {item.id}: {verdict.because}")
    print(f"{refused} of {judged} verdicts lost")
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main())
