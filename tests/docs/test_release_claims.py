"""What a page says of a defect that vpatch leaves to upstream: up to which release vLLM has it, as its code shows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from packaging.version import Version

from tests.paths import ROOT
from tests.releases import RELEASES, tiered, tree_of

PAGE = "docs/speculation.md"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
V2 = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"


@pytest.mark.parametrize("release", tiered(RELEASES))
@pytest.mark.parametrize(
    ("says", "last", "mended"),
    [
        (
            "n-gram and suffix decoding drift or loop | 0.18.0 to 0.31.0 | #56531", "0.31.0",
            {RUNNER: "zero_draft_decode_mask = ", V2: "is_decode, num_draft_tokens_per_req, -1"},
        ),
    ],
)  # fmt: skip
def test_the_defect_ends_with_the_release_that_the_page_names(
    release: str, says: str, last: str, mended: Mapping[str, str]
) -> None:
    files = {tree_of(release) / file: code for file, code in mended.items()}
    found = [file.exists() and code in file.read_text("utf-8") for file, code in files.items()]

    assert says in " ".join((ROOT / PAGE).read_text().split())
    assert found == [Version(release) > Version(last)] * len(found)
