"""Who needs the overlays for hybrid models, and those for draft tokens."""

from __future__ import annotations

import pytest
from vpatch import Use
from vpatch.core.catalogue import discover

ANY_MODEL = ("mtp-token-budget", "structured-mtp")
FOR_CACHES = ("hybrid-align-progress", "hybrid-block-units")
NEEDED = {
    item.id: item.overlay.needed
    for item in discover()
    if item.id.startswith(("hybrid-", "mtp-")) or item.id in ANY_MODEL
}
ALSO_WITHOUT_DRAFTS = {
    "hybrid-mtp-graphs": "a new prompt of one token is",
    "hybrid-one-token": "a new prompt of one token",
}
WITHOUT = {
    "hybrid": (False, "no layer of the model keeps a state"),
    "speculative_tokens": (0, "there is no speculative decoding"),
    "prefix_caching": (False, "prefix caching is off"),
}
BECAUSE = {
    "hybrid-mtp-counts": "the count of accepted tokens, of 3 draft tokens, ",
    "hybrid-mtp-graphs": "prompts and last chunks of 4 tokens are computed",
    "hybrid-mtp-states": "3 draft tokens a step select and shift states unchecked",
}


@pytest.mark.parametrize("overlay", NEEDED)
def test_who_needs_it(overlay: str) -> None:
    needed = NEEDED[overlay]
    assert needed
    use = Use(hybrid=True, kv_cache_dtype="auto", longest=8192, chunk=2048, speculative_tokens=3, prefix_caching=True)

    assert needed(use).needed
    assert needed(use).because.startswith(BECAUSE.get(overlay, ""))
    for name, (value, because) in WITHOUT.items():
        need = needed(Use(**{**vars(use), name: value}))
        matters = {
            "hybrid": overlay not in ANY_MODEL,
            "speculative_tokens": overlay not in (*ALSO_WITHOUT_DRAFTS, *FOR_CACHES),
            "prefix_caching": overlay in ("hybrid-mtp-prefix", *FOR_CACHES),
        }
        if matters[name]:
            assert (need.needed, because in need.because) == (False, True)
        else:
            assert need.needed
            if name == "speculative_tokens":
                assert ALSO_WITHOUT_DRAFTS.get(overlay, "") in need.because
