"""hybrid-mtp-states on real releases: its states, and what drifts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vpatch.core.catalogue import discover, select
from vpatch.testing import State
from vpatch.tree.locate import locate

from tests.engines import engine_of
from tests.overlays.tables import drifted, on, table

COPIES = "vllm/v1/worker/mamba_utils.py"
DELTA = "vllm/model_executor/layers/fla/ops/fused_recurrent.py"
SIGMOID = "vllm/third_party/flash_linear_attention/ops/fused_sigmoid_gating.py"
REGISTRY = "vllm/model_executor/models/registry.py"

ACCEPTED = "tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1"
SELECTED = f"                i_t = {ACCEPTED}\n"
CLAMPED = f"                i_t = tl.maximum({ACCEPTED}, 0)\n"
GUARDED = f"{SELECTED}                if i_t >= stride_indices_seq:\n                    return\n"
STORE = "        tl.store(curr_dst_ptr, data, mask=mask)\n"
IF_BARRIER = "        if src_ptr > dst_ptr:\n            tl.debug_barrier()\n"
BYTES = "            tl.store(curr_dst, data, mask=mask)\n        return\n\n    # Temporal"
ORDERED_TOKENS = "        for token_idx in range(0, num_dst_tokens):\n            src_token"

HOST = "overlap: matches the 0.18 layout; 1 change to make"
GUARD = "has `if i_t >= stride_indices_seq: ...`, which the hunk does not have"


def found(*parts: str) -> str:
    """Return what vpatch says of parts; a bare version is the layout of the bounds."""
    bounds = "bounds: matches the {} layout; 4 changes to make"
    return "; ".join(bounds.format(part) if part[0] == "0" else part for part in parts)


FUSED = "overlap-fused: matches the {} layout; {} to make"
KIMI_K3 = "bounds-kimi-k3: matches the 0.27 layout; 2 changes to make"
GLM5_NEXT = "bounds-glm5-next: matches the 0.30 layout; 2 changes to make"

CASES = (
    *on("<0.22", State.PENDING, found(HOST, "0.18")),
    *on(">=0.22,<0.24", State.PENDING, found(HOST, FUSED.format("0.22", "1 change"), "0.18")),
    *on(">=0.24,<0.25", State.PENDING, found(HOST, FUSED.format("0.24", "2 changes"), "0.18")),
    *on(">=0.25,<0.26", State.PENDING, found(HOST, FUSED.format("0.25", "2 changes"), "0.18")),
    *on(">=0.26,<0.27", State.PENDING, found(HOST, FUSED.format("0.25", "2 changes"), "0.26")),
    *on(">=0.27,<0.28", State.PENDING, found(HOST, FUSED.format("0.25", "2 changes"), "0.26", KIMI_K3)),
    *on(">=0.28,<0.29", State.PENDING, found(HOST, FUSED.format("0.28", "3 changes"), "0.26", KIMI_K3)),
    *on(">=0.29,<0.30", State.PENDING, found("0.26", KIMI_K3)),
    *on(">=0.30", State.PENDING, found("0.26", KIMI_K3, GLM5_NEXT)),
    *drifted(
        "0.20.2",
        DELTA,
        (SELECTED, CLAMPED, "line 106 has `i_t = tl.maximum("),  # as #48475
        (SELECTED, GUARDED, GUARD),  # as #50021
    ),
    *drifted(
        "0.20.2",
        COPIES,
        (
            STORE,
            "        tl.debug_barrier()\n" + STORE,
            "has `tl.debug_barrier()`, which the hunk does not have",
        ),
    ),
    # The copy by rows has changed: the layout of releases without one does not fit, though their other copy is there.
    *drifted(
        "0.24.0",
        COPIES,
        (
            "                tl.store(curr_dst, data, mask=mask)\n        return",
            "                tl.debug_barrier()\n                tl.store(curr_dst, data, mask=mask)\n        return",
            "has `tl.debug_barrier()`, which the hunk does not have",
        ),
    ),
    *drifted("0.26.0", SIGMOID, (SELECTED, GUARDED, GUARD)),
    *drifted(
        "0.26.0",
        COPIES,
        (BYTES, "            tl.debug_barrier()\n" + BYTES, "has `tl.debug_barrier()`, which the hunk does not have"),
    ),
    # Half of upstream's change is not merged.
    *drifted(
        "0.31.0",
        COPIES,
        (ORDERED_TOKENS, ORDERED_TOKENS.replace("num_dst_tokens", "n"), "no block `for d in range(0, dim_rows):`"),
    ),
    # A model whose kernels are not there is another thing than a vLLM without the model.
    *drifted("0.18.0", REGISTRY, ('"KimiVLForConditionalGeneration": (', '"KimiK3ForCausalLM": (', "kimi_k3")),
)

test_case = table("hybrid-mtp-states", CASES)


def test_with_upstreams_barrier_only_the_bounds_are_left(slim: Callable[[str], Path]) -> None:
    tree, chosen = locate(slim("0.20.2")), select(discover(), ("hybrid-mtp-states",))

    def read(file: str) -> bytes | None:
        text = tree.read(file)
        return text.replace(STORE.encode(), (IF_BARRIER + STORE).encode()) if text and file == COPIES else text

    (found,) = engine_of(chosen).status(read)
    states = {part.name: part.state for part in found.parts}
    assert (states["overlap"], states["bounds"]) == (State.MERGED, State.PENDING)
