"""A change of what an overlay's code calls in vLLM is refused, or does no harm."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from vpatch.core.calls import Calls
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.verdict import State, Verdict
from vpatch.tree.locate import locate

from tests.overlays.called import Mutant, by_position, judged, mutants
from tests.releases import tree_of
from tests.tiers import deep

VOCAB = "vllm/model_executor/layers/vocab_parallel_embedding.py"
BODY_ONLY = {"returns-other-value"}
"""Mutations that neither a header nor a return statement shows."""


def verdict(old: str, new: str, calls: Calls | None) -> Verdict:
    """Judge `ct-fp8-lm-head` on 0.20.2, after a replacement in the module of the head."""
    tree = locate(tree_of("0.20.2"))
    (item,) = select(discover(), ["ct-fp8-lm-head"])

    def read(file: str) -> bytes | None:
        data = tree.read(file)
        if file != VOCAB or data is None:
            return data
        assert data.count(old.encode()) == 1
        return data.replace(old.encode(), new.encode())

    return Engine([replace(item, calls=calls)]).status(read)[0]


def test_swapped_parameters() -> None:
    """The last two of `_get_indices`: its only caller in vLLM names them, so that vLLM is right as before."""
    (item,) = select(discover(), ["ct-fp8-lm-head"])
    swap = "        tp_rank: int,\n        tp_size: int,\n", "        tp_size: int,\n        tp_rank: int,\n"

    positional = verdict(*swap, by_position(item).calls)

    assert positional.state is State.DRIFTED
    says = "argument 6 is `tp_size`; ct_fp8_lm_head_weights.py passes `tp_rank` there"
    assert says in "\n".join(map(str, positional.problems))
    assert verdict(*swap, item.calls).state is State.PENDING  # it names its arguments, and is right


def drawn(release: str, ids: Sequence[str], number: int) -> list[Mutant]:
    every = [mutant for item in select(discover(), ids) for mutant in mutants(release, item)]
    return random.Random(release).sample(every, number)  # noqa: S311 - it is to be repeatable


@pytest.mark.parametrize(
    ("release", "overlay", "number"),
    [
        ("0.20.2", "turboquant-workspace", 12),
        deep("0.20.2", "ct-fp8-lm-head", 30),
        deep("0.26.0", "turboquant-decode", 30),
        deep("0.33.0", "turboquant-tiles", 30),
    ],
)
def test_a_mutant_is_refused_or_harmless(release: str, overlay: str, number: int) -> None:
    (item,) = select(discover(), [overlay])

    outcomes = judged(drawn(release, [overlay], number), item.calls)

    assert [str(one.mutant) for one in outcomes if one.wrong and one.mutant.kind not in BODY_ONLY] == []
    assert [one.why for one in outcomes if one.mutant.harmless and one.before is not one.after] == []
