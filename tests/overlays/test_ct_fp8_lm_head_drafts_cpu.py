"""The heads of drafts with a checkpoint of their own, on vLLM's own EAGLE classes, on the CPU."""

from __future__ import annotations

import pytest

from tests.overlays.test_ct_fp8_lm_head_cpu import NO_DISPATCH, release
from tests.validation.cpu import head_owners
from tests.validation.cpu.comparison import Comparison, compared

__all__ = ["release"]

DTYPES = {"bf16": "torch.bfloat16", "channel": "torch.float8_e4m3fn", "renamed": "torch.float8_e4m3fn"}


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_head_drafts", release, ("ct-fp8-lm-head",))


@pytest.mark.parametrize("target", head_owners.TARGETS)
@pytest.mark.parametrize("own", head_owners.OWN)
@pytest.mark.parametrize("kind", head_owners.CLASSES)
def test_a_draft_that_passes_the_targets_config_to_its_head_has_the_head_of_its_checkpoint(
    seen: Comparison, release: str, target: str, own: str, kind: str
) -> None:
    """Stock reads a plain head of the draft as FP8: vLLM starts, and the draft's tokens are random."""
    name = f"{target}, {kind}, {own}, nothing"

    assert seen.patched["own"][name] == {"class": kind, "dtype": DTYPES[own], "logits": True}
    if own == "bf16" and target != "plain" and not release.startswith(NO_DISPATCH):
        assert seen.stock["own"][name] == {"class": kind, "dtype": DTYPES["channel"], "logits": False}


@pytest.mark.parametrize("replaced", head_owners.REPLACED[1:])
@pytest.mark.parametrize("target", head_owners.TARGETS)
@pytest.mark.parametrize("own", head_owners.OWN)
def test_a_draft_has_the_head_of_its_checkpoint_where_vllms_config_names_the_draft_as_the_model(
    seen: Comparison, target: str, own: str, replaced: str
) -> None:
    kind = head_owners.REPLACEABLE

    found = seen.patched["own"][f"{target}, {kind}, {own}, {replaced}"]

    assert found == {"class": kind, "dtype": DTYPES[own], "logits": True}
