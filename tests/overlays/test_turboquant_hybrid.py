"""turboquant-hybrid on real releases: its states, and what drifts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.testing import Case, State, check

from tests.releases import cases

CONFIG = "vllm/model_executor/layers/quantization/turboquant/config.py"
ARG_UTILS = "vllm/engine/arg_utils.py"
INTERFACE = "vllm/platforms/interface.py"
CACHE = "vllm/config/cache.py"

CASES = (
    Case("0.18.0", State.NOT_APPLICABLE, says="lists no turboquant_*"),
    Case("0.19.1", State.NOT_APPLICABLE, says="lists no turboquant_*"),
    Case("0.20.0", State.PENDING),
    Case("0.20.1", State.PENDING),
    Case("0.20.2", State.PENDING, says="12 of 12 changes"),
    *(
        Case(release, State.MERGED, says="vllm-project/vllm#39931")
        for release in ("0.21.0", "0.23.0", "0.24.0", "0.28.0", "0.31.0", "0.33.0")
    ),
    Case(
        "0.20.2",
        State.DRIFTED,
        replace={CONFIG: ("n = min(n, num_layers // 2)", "n = min(n, num_layers // 3)")},
        says="its form",
    ),
    Case(
        "0.20.2",
        State.DRIFTED,
        replace={
            ARG_UTILS: (
                "if model_config.is_hybrid:\n                raise",
                "if model_config.is_mamba:\n                raise",
            )
        },
        says="`if model_config.is_hybrid:` is not there; nearest",
    ),
    Case(
        "0.20.2",
        State.DRIFTED,
        replace={INTERFACE: ("def _align_hybrid_block_size(", "def _align_hybrid_block_sizes(")},
        says="nearest: 'Platform._align_hybrid_block_sizes'",
    ),
    Case("0.20.2", State.DRIFTED, replace={CONFIG: ("import math\n", "import math (\n")}, says="not valid Python"),
    # A broken tree is never taken for one without the feature.
    Case(
        "0.18.0",
        State.DRIFTED,
        replace={CACHE: ("CacheDType = Literal[", "CacheDTypes = Literal[")},
        says="CacheDType 0 times",
    ),
    # Half of upstream's change is not merged.
    Case(
        "0.21.0",
        State.DRIFTED,
        replace={
            CONFIG: ("model_config: ModelConfig,\n        n: int = 2", "config: ModelConfig,\n        n: int = 2")
        },
    ),
)


@pytest.mark.parametrize("case", cases(CASES))
def test_case(case: Case, slim: Callable[[str], Path], tmp_path: Path) -> None:
    check(case, "turboquant-hybrid", tree=slim(case.release), scratch=tmp_path)
