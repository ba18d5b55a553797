"""What a page says of a defect that vpatch leaves to upstream: up to which release vLLM has it, as its code shows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from packaging.version import Version

from tests.paths import ROOT
from tests.releases import RELEASES, tiered, tree_of

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
V2 = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"


@dataclass(frozen=True)
class Claim:
    """A sentence of a page, with the last release that has the defect, and by file the code that mends it."""

    page: str
    says: str
    last: str
    mended: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.page} {self.last}"


CLAIMS = (
    Claim(
        "docs/speculation.md",
        "By the code this is so up to 0.31.0 without prefix caching",
        "0.31.0",
        ((RUNNER, "zero_draft_decode_mask = "), (V2, "is_decode, num_draft_tokens_per_req, -1")),
    ),
    Claim(
        "docs/speculation.md",
        "the others up to 0.24.0 have the same code",
        "0.24.0",
        ((RUNNER, "self.input_ids.gpu[:num_input_tokens].clamp_(min=0)"),),
    ),
)
claims = pytest.mark.parametrize("claim", CLAIMS, ids=str)


@claims
def test_the_page_says_so(claim: Claim) -> None:
    assert claim.says in " ".join((ROOT / claim.page).read_text().split())


@claims
@pytest.mark.parametrize("release", tiered(RELEASES))
def test_the_defect_ends_with_that_release(claim: Claim, release: str) -> None:
    tree = tree_of(release)
    mended = [(tree / file).exists() and code in (tree / file).read_text("utf-8") for file, code in claim.mended]

    assert mended == [Version(release) > Version(claim.last)] * len(mended)
