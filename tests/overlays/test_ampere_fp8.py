"""ampere-fp8 on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.testing import State

from tests.overlays.tables import check_result, drifted, on, table

ID = "ampere-fp8"
CUTLASS = "vllm/model_executor/kernels/linear/scaled_mm/cutlass.py"
KERNELS = "vllm/model_executor/kernels/linear/__init__.py"

LISTED = "        CutlassFP8ScaledMMLinearKernel,\n        B12x"
LACKS = "requires FP8 kernels of CUTLASS, from compute capability 8.9 on."
IMPORTED = "    Int8ScaledMMLinearLayerConfig,\n)\n"
IMPORT = "from vllm.model_executor.layers.quantization.utils.w8a8_utils import cutlass_fp8_supported\n"
ASKS = "if not cutlass_fp8_supported():"

CASES = (
    *on("<0.19", State.NOT_APPLICABLE, "this vLLM takes Marlin on GPUs before Ada"),
    *on(">=0.19,<0.29", State.NOT_APPLICABLE, "this vLLM takes Marlin first"),
    *on(">=0.29,<0.31", State.PENDING, "matches the 0.29 layout; 2 changes"),
    *on(">=0.31", State.MERGED, "merged upstream (vllm-project/vllm#55884): "),
    *drifted(
        "0.29.0",
        KERNELS,
        # A list without CUTLASS tells nothing.
        (LISTED, "        B12x", "does not match the 0.29 layout"),
    ),
    *drifted(
        "0.33.0",
        CUTLASS,
        (ASKS, "if not current_platform.has_device_capability(89):", "is not there"),
        (ASKS, "if not current_platform.is_cuda():", "is not there"),
    ),
)

test_case = table(ID, CASES)


@pytest.mark.deep
def test_only_the_question_changes(slim: Callable[[str], Path], tmp_path: Path) -> None:
    """The kernel for INT8, which Ampere has, asks as before."""
    method = "class CutlassFP8ScaledMMLinearKernel(FP8ScaledMMLinearKernel):"
    text = (slim("0.29.0") / CUTLASS).read_text()
    before = text[text.index(method) :].partition("        return True, None\n")[0]
    after = f'{before}        {ASKS}\n            return False, "{LACKS}"\n'

    check_result(ID, "0.29.0", slim("0.29.0"), tmp_path, CUTLASS, (before, after), (IMPORTED, IMPORTED + IMPORT))
