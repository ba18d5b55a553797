"""The companion modules of turboquant-decode without vLLM, torch and Triton, all of which are stood in for.

`test_turboquant_decode_*_cpu.py` run them inside the real vLLM.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import product
from math import prod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

NAMES = ("launch", "switch", "supported", "drafts", "buffers")
"""Of the modules, in an order in which each finds those that it imports."""
FOUR = (4, 4)


@dataclass
class Tensor:
    """What the modules ask of a tensor."""

    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    strides: tuple[int, ...] | None = None
    device: str = "cuda:0"

    def __len__(self) -> int:
        return self.shape[0]

    def storage_offset(self) -> int:
        return 0

    def stride(self, axis: int | None = None) -> Any:
        strides = self.strides or tuple(prod(self.shape[at + 1 :]) for at in range(len(self.shape)))
        return strides if axis is None else strides[axis]


class Layer:
    """Attention; `TurboQuantAttentionImpl` of the stand-in for vLLM."""

    def __init__(self) -> None:
        self._decode_need: Any = None


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`modules["launch"]` and so on: the companions, imported anew."""
    types = {name: name for name in ("float16", "bfloat16", "float32", "uint8", "int32", "int64")}
    cuda = SimpleNamespace(
        is_available=lambda: True,
        get_device_capability=lambda: (9, 0),
        get_device_properties=lambda _device: SimpleNamespace(multi_processor_count=132),
    )
    builder = type("TurboQuantMetadataBuilder", (), {"verifies_exactly": True})
    attention = SimpleNamespace(TurboQuantAttentionImpl=Layer, TurboQuantMetadataBuilder=builder)
    stood_in = {
        "torch": SimpleNamespace(**types, version=SimpleNamespace(hip=None), cuda=cuda, Tensor=Tensor),
        "vllm": ModuleType("vllm"),
        "vllm.triton_utils": SimpleNamespace(triton=None),
        "vllm._vpatch": ModuleType("vllm._vpatch"),
        "vllm.v1.attention.backends.turboquant_attn": attention,
    }
    for name, module in stood_in.items():
        monkeypatch.setitem(sys.modules, name, module)
    found: dict[str, Any] = {}
    for name in NAMES:
        full = f"turboquant_decode_{name}"
        monkeypatch.delitem(sys.modules, f"vpatch_overlays.companions.{full}", raising=False)
        found[name] = import_module(f"vpatch_overlays.companions.{full}")
        monkeypatch.setitem(sys.modules, f"vllm._vpatch.{full}", found[name])
    monkeypatch.delenv("VPATCH_TQ_DECODE", raising=False)
    yield found
    for module in found.values():
        sys.modules.pop(module.__name__, None)


def config(*layers: Layer, speculation: Any = None, ranks: int = 1, max_num_seqs: int = 64) -> Any:
    return SimpleNamespace(
        compilation_config=SimpleNamespace(
            static_forward_context={str(at): SimpleNamespace(impl=layer) for at, layer in enumerate(layers)}
        ),
        speculative_config=speculation,
        parallel_config=SimpleNamespace(decode_context_parallel_size=ranks),
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
        model_config=SimpleNamespace(
            max_model_len=65_536, dtype="bfloat16", get_num_attention_heads=lambda parallel_config: 32
        ),
    )


def drafting(count: int, **more: Any) -> Any:
    return SimpleNamespace(num_speculative_tokens=count, **more)


def call(**changed: Any) -> dict[str, Any]:
    """Return a call of the launcher that the kernels take, but for what is changed."""
    return {
        "query": Tensor((3, 32, 128)),
        "kv_cache": Tensor((9, 16, 8, 134), "uint8"),
        "block_table": Tensor((3, 4), "int32"),
        "seq_lens": Tensor((3,), "int32"),
        "mse_bits": 4,
        "key_packed_size": 66,
        "value_quant_bits": 4,
    } | changed


LAUNCHES = {
    (1, 8, 128, 4, FOUR): (16, 128, 4, 2),
    (2, 8, 128, 4, FOUR): (16, 32, 1, 8),
    (1, 8, 128, 4, (3, 3)): (16, 32, 1, 8),
    (1, 8, 64, 4, FOUR): (16, 32, 1, 8),
    (8, 8, 128, 20, FOUR): (32, 32, 1, 8),
    (1, 2, 256, 8, FOUR): (16, 128, 8, 1),
    (8, 2, 256, 8, FOUR): (16, 64, 4, 2),
    (32, 2, 256, 8, FOUR): (16, 32, 2, 4),
    (33, 2, 256, 8, FOUR): (16, 32, 2, 8),
    (32, 2, 256, 8, (8, 4)): (16, 64, 4, 8),
    (8, 2, 256, 32, FOUR): (32, 64, 4, 2),
}


def test_the_table(modules: Any) -> None:
    for asked, launch in LAUNCHES.items():
        found = modules["launch"].choose(*asked)
        assert (found.rows, found.tile, found.warps, found.programs) == launch, asked


@pytest.mark.deep
def test_every_launch_is_one_that_the_kernels_have(modules: Any) -> None:
    covered, launch = modules["supported"], modules["launch"]
    every = {group * window for group, window in product(covered.GROUPS, covered.WINDOWS)}
    batches = (*range(1, 18), 32, 33, 64, 128, 256, 1024)
    for bits, size, rows, requests, kv_heads in product(
        covered.PRESETS, covered.HEAD_SIZES, every, batches, (1, 2, 4, 8, 16)
    ):
        found = launch.choose(requests, kv_heads, size, rows, bits)
        assert (found.rows in (16, 32), found.tile in (32, 64, 128), found.warps in (1, 2, 4, 8)) == (True,) * 3
        assert 1 <= launch.split_count(found, requests, kv_heads, 65_536, 132) <= 256
        assert -(-rows // found.rows) <= 5


def test_the_most_parts_are_those_of_some_batch(modules: Any) -> None:
    launch = modules["launch"]
    limits = {"max_num_seqs": 200, "max_model_len": 65_536, "processors": 132}

    parts = [n * launch.split_count(launch.choose(n, 8, 128, 4, FOUR), n, 8, 65_536, 132) for n in range(1, 201)]
    assert launch.most_parts(8, 128, 4, FOUR, **limits) == max(parts) == 200
    assert launch.batches_to_compile(200, 8, 128, 4, FOUR) == [1, 2]
    assert launch.batches_to_compile(39, 2, 256, 8, FOUR) == [1, 3, 9, 33]  # up to 4, to 16 and to 64 heads, and more


def test_the_users_file(modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It precedes the table for up to 16 heads, and for the codes that were measured."""
    launch = modules["launch"]
    own = asdict(launch.Launch(16, tile=64, warps=2, prefetch=False, programs=5))
    entry = {"head_size": 128, "rows": 4, "requests": 4, "kv_heads": 8, "key_bits": 4, "value_bits": 4, "launch": own}
    file = tmp_path / "launches.json"
    file.write_text(json.dumps({"launches": [entry]}))
    monkeypatch.setenv("VPATCH_TQ_DECODE_LAUNCHES", str(file))

    assert launch.choose(1, 8, 128, 4, FOUR) == launch.choose(4, 8, 128, 4, FOUR) == launch.Launch(**own)
    assert launch.choose(5, 8, 128, 4, FOUR) == launch.Launch(16, tile=32, warps=1)
    assert launch.choose(4, 8, 128, 4, (3, 3)) != launch.Launch(**own)
    wgmma = json.dumps({"launches": [entry | {"launch": own | {"rows": 64, "warps": 4}}]})
    for text, why in ((None, "No such file"), ("{}", "'launches'"), (wgmma, "64 rows with 4 warps give wrong results")):
        bad = tmp_path / f"{why}.json"
        if text:
            bad.write_text(text)
        monkeypatch.setenv("VPATCH_TQ_DECODE_LAUNCHES", str(bad))
        with pytest.raises(ValueError, match=rf"not what `python -m benchmarks.decode --part tune` prints: .*{why}"):
            launch.choose(4, 8, 128, 4, FOUR)


TAKEN: tuple[tuple[dict[str, Any], str | None], ...] = (
    ({}, None),
    ({"block_table": Tensor((3, 4), "int32", (9, 1))}, None),
    ({"block_table": Tensor((3, 4), "int32", (0, 1))}, None),  # one row for all
    ({"query": Tensor((7, 32, 128)), "seq_lens": Tensor((7,), "int32"), "window": 3}, None),
    ({"mse_bits": 5}, "keys of 5 and values of 4 bits"),
    ({"value_quant_bits": 8}, "keys of 4 and values of 8 bits"),
    ({"query": Tensor((3, 32, 96))}, "head size 96"),
    ({"query": Tensor((3, 136, 128))}, "136 query heads on 8 KV heads"),
    ({"query": Tensor((3, 34, 128))}, "34 query heads on 8 KV heads"),
    ({"window": 10}, "3 tokens in windows of 10, with 3 lengths and 3 rows of pages"),
    ({"seq_lens": Tensor((2,), "int32")}, "3 tokens in windows of 1, with 2 lengths and 3 rows of pages"),
    (
        {"block_table": Tensor((1, 4), "int32"), "window": 2},
        "3 tokens in windows of 2, with 3 lengths and 1 rows of pages",
    ),
    ({"query": Tensor((0, 32, 128)), "seq_lens": Tensor((0,)), "block_table": Tensor((0, 4))}, "0 tokens"),
    ({"query": Tensor((3, 32, 128), "float32")}, "queries of type float32 with strides (4096, 128, 1)"),
    ({"block_table": Tensor((3, 4), "int64")}, "a block table of type int64 with strides (4, 1)"),
    ({"seq_lens": Tensor((3,), "float32")}, "lengths of type float32 with strides (1,)"),
    ({"kv_cache": Tensor((9, 8, 8, 134), "uint8")}, "pages of 8 tokens"),
    ({"kv_cache": Tensor((9, 16, 8, 135), "uint8")}, "a cache of type uint8 with strides (17280, 1080, 135, 1)"),
    ({"key_packed_size": 64}, "keys of 64 bytes in slots of 134"),
)


def test_what_the_kernels_take(modules: Any) -> None:
    for changed, reason in TAKEN:
        assert modules["supported"].supported(**call(**changed)) == reason, changed


def test_gpus(modules: Any) -> None:
    torch: Any = sys.modules["torch"]
    no_gpu = modules["supported"].no_gpu

    found = []
    for available, capability in ((True, (9, 0)), (True, (7, 5)), (False, (9, 0))):
        torch.cuda.is_available = lambda available=available: available
        torch.cuda.get_device_capability = lambda capability=capability: capability
        no_gpu.cache_clear()
        found.append(no_gpu())
    assert found == [None, "a GPU before Ampere", "no GPU of NVIDIA"]


def test_tokens_of_a_verification(modules: Any) -> None:
    window = modules["drafts"].draft_window

    assert window(config()) == 1
    assert [window(config(speculation=drafting(count))) for count in (3, 8, 9)] == [4, 9, 1]
    assert window(config(speculation=drafting(3, parallel_drafting=True))) == 1
    assert window(config(speculation=drafting(3), ranks=2)) == 1


def need(modules: Any, window: int = 1, head_size: int = 128) -> Any:
    return modules["buffers"].Need(32, 8, head_size, FOUR, 64, 65_536, window)


def test_layers_verify_if_all_of_them_can(modules: Any) -> None:
    one, other = Layer(), Layer()
    verifies = modules["drafts"].verifies

    assert not verifies(config())
    one._decode_need = other._decode_need = need(modules, window=4)
    assert verifies(config(one, other))
    other._decode_need = None
    assert not verifies(config(one, other))


def test_buffers_are_for_the_layer_that_needs_most(modules: Any) -> None:
    buffers, one, other = modules["buffers"], Layer(), Layer()
    one._decode_need, other._decode_need = need(modules), need(modules, head_size=256)
    spec = SimpleNamespace(head_size=128)

    def reserved(*layers: Layer) -> int:
        builder: Any = SimpleNamespace(vllm_config=config(*layers), kv_cache_spec=spec, device="cuda:0")
        return int(buffers.splits_to_reserve(builder, 32))

    numbers = one._decode_need.numbers("cuda:0")
    assert numbers == 3 * 64 * 32 * 129  # 132 parts, in whole rounds of 64 requests
    assert reserved(one) == 3
    assert reserved(one, other) == -(-other._decode_need.numbers("cuda:0") // (64 * 32 * 129)) > 3
    assert reserved(one, Layer()) == reserved() == 32
