"""The companion module without vLLM; `test_turboquant_workspace_cpu.py` runs it inside the real one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from math import prod
from types import SimpleNamespace
from typing import Any, cast

import pytest
from vpatch_overlays.companions import turboquant_workspace as companion

SHAPE: Any = ((2, 3), "float16")
CUDA: Any = "cuda"


class Workspace:
    """A stand-in for vLLM's workspace of `size` elements, which records the requests."""

    def __init__(self, size: int = 1 << 40, *, locked: bool = False) -> None:
        self.size, self.locked = size, locked
        self.asked: list[Any] = []

    def get_simultaneous(self, *wanted: Any) -> list[Any]:
        if sum(prod(shape) for shape, _ in wanted) > self.size:
            raise AssertionError("Workspace is locked" if self.locked else "somebody else's mistake")
        self.asked.append(wanted)
        return [("view", *one) for one in wanted]

    def is_locked(self) -> bool:
        return self.locked


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def empty(shape: object, dtype: object, device: object) -> object:
        return ("own", shape, dtype, device)

    def round_up(number: int, unit: int) -> int:
        return -(-number // unit) * unit

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(float16="float16", float32="float32", empty=empty))
    monkeypatch.setitem(sys.modules, "vllm.utils.math_utils", SimpleNamespace(round_up=round_up))
    companion._say_that_it_is_too_small.cache_clear()
    yield
    companion._say_that_it_is_too_small.cache_clear()


def reserved(*, chunked: bool = True, batch: int = 4096, length: int = 1000) -> list[Any]:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=5, enable_chunked_prefill=chunked, max_num_batched_tokens=batch),
        model_config=SimpleNamespace(
            dtype="bfloat16", max_model_len=length, get_num_attention_heads=lambda ranks: 24 // ranks
        ),
        parallel_config=2,
        attention_config=SimpleNamespace(tq_max_kv_splits_for_cuda_graph=32),
    )
    spec = SimpleNamespace(num_kv_heads=4, head_size=64, block_size=16)
    workspace: Any = Workspace()
    builder: Any = SimpleNamespace(vllm_config=config, kv_cache_spec=spec)
    companion.reserve_workspace(builder, workspace, 128)
    decode, *continuation = workspace.asked
    assert decode == (((5, 12, 32, 65), "float32"), ((5, 12, 64), "bfloat16"), ((5, 12), "float32"))
    return list(continuation)


@pytest.mark.parametrize(("length", "tokens"), [(1000, 1008), (1009, 1008), (1010, 1024), (17, 16), (1, 0), (0, 0)])
def test_all_tokens_but_one_of_the_longest_context_are_reserved(length: int, tokens: int) -> None:
    assert reserved(length=length) == [(((1, 4, tokens, 64), "float16"),) * 2]


def test_chunks_that_decode_serves_need_no_more() -> None:
    assert reserved(batch=128) == reserved(chunked=False) == []
    assert len(reserved(batch=129)) == 1


def test_scratch_is_in_a_workspace_that_has_room_and_else_the_callers_own(caplog: pytest.LogCaptureFixture) -> None:
    enough, small, unlocked = (cast("Any", Workspace(size, locked=size > 4)) for size in (6, 5, 4))

    assert companion.scratch(enough, CUDA, SHAPE) == [("view", *SHAPE)]
    assert companion.scratch(None, CUDA, SHAPE, SHAPE) == [("own", *SHAPE, CUDA)] * 2
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert companion.scratch(small, CUDA, SHAPE) == [("own", *SHAPE, CUDA)]
    assert len(caplog.messages) == 1
    with pytest.raises(AssertionError, match="somebody else's"):
        companion.scratch(unlocked, CUDA, SHAPE)
