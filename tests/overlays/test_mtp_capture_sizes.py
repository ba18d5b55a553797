"""mtp-capture-sizes on real releases: its states, and what drifts."""

from __future__ import annotations

from vpatch.testing import State

from tests.overlays.tables import drifted, on, table

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
COMPILATION = "vllm/config/compilation.py"

ROUNDS = (
    "if (\n            not use_v2_model_runner\n            and cudagraph_mode.decode_mode() == CUDAGraphMode.FULL\n"
)
IN_ALL = ROUNDS.replace(".decode_mode() == CUDAGraphMode.FULL", " != CUDAGraphMode.NONE")

CASES = (
    *on("<0.20", State.PENDING, "matches the 0.18 layout; 1 change"),
    *on(">=0.20,<0.32", State.PENDING, "matches the 0.20 layout; 1 change"),
    *on(">=0.32", State.PENDING, "matches the 0.32 layout; 1 change"),
    # vllm-project/vllm#46324 rounds sizes there. vpatch does not round them once more.
    *drifted("0.33.0", COMPILATION, (ROUNDS, IN_ALL, "resolve_cudagraph_mode_and_sizes has no")),
    *drifted(
        "0.18.0",
        RUNNER,
        ("            and cudagraph_mode.separate_routine()\n", "", "is not there; nearest"),
    ),
)

test_case = table("mtp-capture-sizes", CASES)
