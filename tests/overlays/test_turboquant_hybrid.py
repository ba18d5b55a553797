"""turboquant-hybrid on real releases: its states, and what drifts."""

from __future__ import annotations

from vpatch.testing import State

from tests.overlays.tables import WITHOUT_TURBOQUANT, drifted, on, table

CONFIG = "vllm/model_executor/layers/quantization/turboquant/config.py"
ARG_UTILS = "vllm/engine/arg_utils.py"

REFUSES, OTHER = (f"if model_config.is_{kind}:\n                raise" for kind in ("hybrid", "mamba"))
SKIP = "model_config: ModelConfig,\n        n: int = 2"

CASES = (
    *WITHOUT_TURBOQUANT,
    *on(">=0.20,<0.21", State.PENDING, "12 changes"),
    *on(">=0.21", State.MERGED, "vllm-project/vllm#39931"),
    *drifted(
        "0.20.2",
        CONFIG,
        (
            "n = min(n, num_layers // 2)",
            "n = min(n, num_layers // 3)",
            "line 170 has `n = min(n, num_layers // 3)`",
        ),
        ("import math\n", "import math (\n", "not valid Python"),
    ),
    *drifted("0.20.2", ARG_UTILS, (REFUSES, OTHER, "`if model_config.is_hybrid: ...` is not there; nearest")),
    # Half of upstream's change is not merged.
    *drifted(
        "0.21.0",
        CONFIG,
        (SKIP, SKIP.replace("model_config", "config"), "nearest, line 170: `def get_boundary_skip_layers("),
    ),
)

test_case = table("turboquant-hybrid", CASES)
