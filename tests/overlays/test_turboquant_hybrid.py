"""turboquant-hybrid on real releases: its states, and what drifts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.testing import Case, State, check

from tests.overlays.tables import BROKEN, WITHOUT_TURBOQUANT, drifted
from tests.releases import cases

CONFIG = "vllm/model_executor/layers/quantization/turboquant/config.py"
ARG_UTILS = "vllm/engine/arg_utils.py"
INTERFACE = "vllm/platforms/interface.py"

REFUSES, OTHER = (f"if model_config.is_{kind}:\n                raise" for kind in ("hybrid", "mamba"))
ALIGN = "def _align_hybrid_block_size"
SKIP = "model_config: ModelConfig,\n        n: int = 2"

CASES = (
    *WITHOUT_TURBOQUANT,
    BROKEN,
    Case("0.20.0", State.PENDING),
    Case("0.20.1", State.PENDING),
    Case("0.20.2", State.PENDING, says="12 changes"),
    *(
        Case(release, State.MERGED, says="vllm-project/vllm#39931")
        for release in ("0.21.0", "0.23.0", "0.24.0", "0.28.0", "0.31.0", "0.33.0")
    ),
    *drifted(
        "0.20.2",
        CONFIG,
        ("n = min(n, num_layers // 2)", "n = min(n, num_layers // 3)", "its form"),
        ("import math\n", "import math (\n", "not valid Python"),
    ),
    *drifted("0.20.2", ARG_UTILS, (REFUSES, OTHER, "`if model_config.is_hybrid:` is not there; nearest")),
    *drifted("0.20.2", INTERFACE, (f"{ALIGN}(", f"{ALIGN}s(", "nearest: 'Platform._align_hybrid_block_sizes'")),
    # Half of upstream's change is not merged.
    *drifted("0.21.0", CONFIG, (SKIP, SKIP.replace("model_config", "config"), "its form")),
)


@pytest.mark.parametrize("case", cases(CASES))
def test_case(case: Case, slim: Callable[[str], Path], tmp_path: Path) -> None:
    check(case, "turboquant-hybrid", tree=slim(case.release), scratch=tmp_path)
