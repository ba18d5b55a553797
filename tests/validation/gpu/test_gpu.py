"""Every claim on this machine's GPU; without one, with VPATCH_GPU_RESULTS=FILE[:FILE...], on recorded results.

VPATCH_GPU_DEADLINE bounds the run, in seconds; VPATCH_GPU_UPSTREAM is a folder with upstream's test files.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.validation.gpu import machine, session
from tests.validation.gpu.claims import CLAIMS
from tests.validation.gpu.evidence import BROKEN, HOLDS, Claim, Runs, gather, judge, read


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    if known := os.environ.get("VPATCH_GPU_RESULTS"):
        return gather(read(map(Path, known.split(os.pathsep))))
    if why := machine.hindrance():
        pytest.skip(f"{why}; VPATCH_GPU_RESULTS=FILE reads what was found elsewhere")
    deadline = float(os.environ.get("VPATCH_GPU_DEADLINE", "inf"))
    folder = os.environ.get("VPATCH_GPU_UPSTREAM")
    upstream = Path(folder) if folder else None
    names, out = session.default_scenarios(upstream), tmp_path_factory.mktemp("gpu")
    return gather(read([session.execute(names, out, deadline_s=deadline, upstream=upstream)]))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claim(claim: Claim, runs: Runs) -> None:
    found = [judge(claim, release, runs) for release in runs if claim.is_about(release)]
    told = [f"{verdict.release}: {verdict.figures}" for verdict in found]

    assert not [text for text, verdict in zip(told, found, strict=True) if verdict.state == BROKEN]
    if not any(verdict.state == HOLDS for verdict in found):
        pytest.skip("; ".join(told) or f"not of {', '.join(runs)}")
