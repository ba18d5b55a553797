"""ct-fp8-lm-head on real releases: its states, which parts upstream has, and what drifts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from vpatch.core.catalogue import discover, select
from vpatch.testing import Case, State
from vpatch.tree.locate import locate

from tests.engines import engine_of
from tests.overlays.tables import drifted, on, table
from tests.releases import RELEASES, tiered

LAYERS = "vllm/model_executor/layers/"
VOCAB = f"{LAYERS}vocab_parallel_embedding.py"
CT = f"{LAYERS}quantization/compressed_tensors/compressed_tensors.py"
QWEN3_5 = "vllm/model_executor/models/qwen3_5.py"
QWEN3_NEXT = "vllm/model_executor/models/qwen3_next.py"

ALWAYS = {"target-names", "config-of-head", "qwen3-next", "block-scales", "tied-heads", "draft-heads", "draft-heads-v2"}
UP_TO_0_30 = ALWAYS | {"geometry"}
UP_TO_0_27 = UP_TO_0_30 | {"tied-qwen3.5"}
UP_TO_0_22 = UP_TO_0_27 | {"qwen3.5", "scalar-scales"}
UP_TO_0_21 = UP_TO_0_22 - {"draft-heads-v2"}
UP_TO_0_19 = UP_TO_0_21 | {"dispatch"}

PENDING = {
    "<0.20": UP_TO_0_19,
    ">=0.20,<0.22": UP_TO_0_21,
    ">=0.22,<0.23": UP_TO_0_22,
    ">=0.23,<0.28": UP_TO_0_27,
    ">=0.28,<0.31": UP_TO_0_30,
    ">=0.31": ALWAYS,
}
"""By range of releases, the parts that are pending."""

NO_QUANT_CONFIG = "config.hidden_size,\n            prefix=maybe_prefix("
OTHER_CONFIG = "config.hidden_size,\n            quant_config=None,\n            prefix=maybe_prefix("

CASES = (
    *on(">=0.18", State.PENDING),
    # Half of upstream's change is completed if its halves are independent, and drifted if they are not.
    Case(
        "0.26.0",
        State.PENDING,
        replace={QWEN3_5: ("quant_config=self.quant_config,\n                    prefix=m", "prefix=m")},
        says="qwen3.5: matches the 0.18 layout; 1 of 2 changes to make",
    ),
    *drifted(
        "0.20.2", CT, ("(layer, ParallelLMHead)", "(layer, VocabParallelEmbedding)", "has `if isinstance(layer, Vocab")
    ),
    # A quantization config of something else.
    *drifted("0.33.0", QWEN3_NEXT, (NO_QUANT_CONFIG, OTHER_CONFIG, "already has `quant_config=None")),
    # Unrecognized code.
    *drifted("0.18.0", CT, ("if isinstance(layer, Attention):", "if isinstance(layer, MLAAttention):", "is not there")),
    *drifted(
        "0.33.0",
        CT,
        ("def get_scheme_dict(", "def get_scheme_dicts(", "nearest: 'CompressedTensorsConfig.get_sche"),
        ("if should_ignore_layer(", "if should_keep_layer(", "`should_ignore_layer` is not there; line"),
    ),
    *drifted(
        "0.33.0",
        VOCAB,
        ("import torch\nimport", "import torch (\nimport", "not valid Python"),
    ),
)

test_case = table("ct-fp8-lm-head", CASES)


@pytest.mark.parametrize("release", tiered(RELEASES))
def test_parts(release: str, slim: Callable[[str], Path]) -> None:
    (verdict,) = engine_of(select(discover(), ("ct-fp8-lm-head",))).status(locate(slim(release)).read)
    states = {part.name: part.state for part in verdict.parts}
    (pending,) = (parts for span, parts in PENDING.items() if SpecifierSet(span).contains(release))
    absent = {"tied-qwen3.5", "draft-heads-v2"} - pending

    assert states == {
        name: State.PENDING if name in pending else State.NOT_APPLICABLE if name in absent else State.MERGED
        for name in states
    }
    assert pending | absent <= states.keys()
