"""turboquant-decode on real releases: its states, what drifts, and what it adds to some releases."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from vpatch.testing import State
from vpatch.tree.locate import locate

from tests.engines import over, together
from tests.overlays.tables import WITHOUT_TURBOQUANT, drifted, on, table

ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
LAUNCHER = "vllm/v1/attention/ops/triton_turboquant_decode.py"
FLASH = "vllm/v1/attention/backends/flash_attn.py"
ARGUMENTS = "vllm/engine/arg_utils.py"

SHAPE = "    B, Hq, D = query.shape\n    Hk = kv_cache.shape[2]\n"
DOT = SHAPE + "    scores = tl.dot(query, kv_cache)\n"
HADAMARD = "            layer._tq_Pi = H\n"
SPLITS = "        S = self.max_num_kv_splits\n"
BATCH = "        self._init_reorder_batch_threshold(1, supports_spec_as_decode=False)\n"
SIZES = "        max_num_splits = (\n"
SKIPS = "        if not isinstance(layer.impl, FlashAttentionImpl):\n            continue\n"
ASSERTS = "        assert isinstance(layer.impl, FlashAttentionImpl)\n"
VARIANT = "            if isinstance(impl, FlashAttentionImpl):\n"
TOO_NEW = "attention_config.flash_attn_version >= 3"

CASES = (
    *WITHOUT_TURBOQUANT,
    # Each layer has buffers of its own, and `buffers` has nothing to do.
    *on(">=0.20,<0.21", State.PENDING, "flash-attention: matches the 0.20 layout; 3 changes"),
    # The last part for the buffers that has something to do.
    *on(">=0.21,<0.24", State.PENDING, "buffers: matches the 0.21 layout; "),
    *on(">=0.24", State.PENDING, "reservation: matches the 0.24 layout; "),
    *drifted(
        "0.26.0",
        LAUNCHER,
        # If upstream does the same one day, the overlay needs a review.
        (SHAPE, DOT, "it seems merged upstream"),
    ),
    *drifted(
        "0.26.0",
        ATTENTION,
        # The kernels rotate queries by the matrix by which the keys were rotated.
        (HADAMARD, "            layer._tq_Pi = H * signs\n", "_ensure_on_device has no `H = _build_hadamard(D, str("),
        # Buffers would stay as large as upstream's.
        (SIZES, SIZES.replace("max_num_splits", "splits"), "`max_num_splits` is not there; line"),
        (SPLITS, SPLITS.replace("self.max", "self._max"), "`S = self.max_num_kv_splits` is not there"),
    ),
    *drifted(
        "0.21.0",
        ATTENTION,
        # A method of the base class, say: its buffers would stay as large, too.
        (BATCH, f"{BATCH}        self._reserve_workspace()\n", "no 'TurboQuantMetadataBuilder._reserve_workspace'"),
    ),
    # Flash attention 3 would stop on a layer that is not its own.
    *drifted("0.26.0", FLASH, (SKIPS, ASSERTS, "_get_sliding_window_configs")),
    *drifted("0.33.0", FLASH, (VARIANT, VARIANT.replace("if ", "if True or "), "_get_sliding_window_configs")),
    *(
        case
        for release in ("0.20.2", "0.26.0")
        for case in drifted(
            release, ARGUMENTS, (TOO_NEW, TOO_NEW.replace("3", "4"), "flash_attn_version >= 3` is not there")
        )
    ),
)

test_case = table("turboquant-decode", CASES)


def test_0_20_has_no_buffers_to_share_and_verifies_no_drafts(slim: Callable[[str], Path]) -> None:
    """Steps of drafts need what the part `buffers` sets. Without it `turboquant-mtp` must keep them out of graphs."""
    made = together(locate(slim("0.20.2")).read, ("turboquant-decode",))

    assert ATTENTION not in made
    assert not [file for file in made if file.endswith(("_buffers.py", "_drafts.py"))]


@pytest.mark.deep
def test_a_reservation_without_its_change_is_not_applied(slim: Callable[[str], Path]) -> None:
    """Without it, vLLM's reservation is back, and the rest of the overlay is what 0.21 to 0.23 get."""
    read = cache(locate(slim("0.26.0")).read)
    made = dict(together(read, ("turboquant-decode",)))
    before, change, after = made[ATTENTION].partition(
        b"        max_num_splits = splits_to_reserve(self, max_num_splits)  # vpatch: turboquant-decode\n"
    )
    assert change
    again = together(over({**made, ATTENTION: before + after}, read), ("turboquant-decode",))

    assert again == {ATTENTION: made[ATTENTION]}


@pytest.mark.deep
def test_the_kernels_come_without_turboquant_workspace_too(slim: Callable[[str], Path]) -> None:
    """0.21.0 reserves nothing by itself: then only decode steps, and the pass that sizes the cache, take less."""
    made = together(locate(slim("0.21.0")).read, ("turboquant-decode",))

    text = made[ATTENTION].decode()
    assert text.count("S = decode_splits(self, query, attn_metadata, S)") == 1
    assert text.count("reserve_while_profiling(self, kv_cache, query)") == 1
    assert "splits_to_reserve(self" not in text
