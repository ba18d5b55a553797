"""Which deployments need sm12x-deepgemm: block FP8 on a GPU of compute capability 12.x."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.core.overlay import Use
from vpatch.plan.checkpoint import read
from vpatch_overlays.probes.bare import DENSE

from tests.conftest import Program
from tests.validation.cpu.head_unpassed import BF16_HEAD, FP8_HEAD, gpt_oss

ID = "sm12x-deepgemm"
BLOCKS: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
TENSOR: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
MODELOPT: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO", "ignore": []}


def needed(**about: Any) -> tuple[bool, str]:
    (item,) = select(discover(), (ID,))
    assert item.overlay.needed
    need = item.overlay.needed(Use(hybrid=False, kv_cache_dtype="auto", longest=8192, chunk=8192, **about))
    return need.needed, need.because


@pytest.mark.parametrize(
    ("about", "answer", "because"),
    [
        ({"capability": (12, 0)}, False, "nothing of the checkpoint is FP8 with block scales, which DeepGEMM is for"),
        (
            {"capability": (12, 0), "block_fp8": True},
            True,
            "FP8 with block scales, and the GPU is of compute capability 12.0",
        ),
        (
            {"capability": (12, 1), "block_fp8": True},
            True,
            "FP8 with block scales, and the GPU is of compute capability 12.1",
        ),
        ({"capability": (9, 0), "block_fp8": True}, False, "the GPU is of compute capability 9.0, not 12.x"),
        ({"capability": (10, 0), "block_fp8": True}, False, "the GPU is of compute capability 10.0, not 12.x"),
        ({"block_fp8": True}, True, "FP8 with block scales, and the GPU may be of compute capability 12.x"),
    ],
)
def test_need(about: dict[str, Any], because: str, *, answer: bool) -> None:
    assert needed(**about) == (answer, because)


@pytest.mark.parametrize(
    ("quantization", "blocks"),
    [(BLOCKS, True), (TENSOR, False), (MODELOPT, True), (None, False), (FP8_HEAD, True), (BF16_HEAD, False)],
    ids=["fp8 blocks", "fp8 tensor", "modelopt", "none", "head", "bf16 head"],
)
def test_what_is_block_fp8(tmp_path: Path, quantization: Any, *, blocks: bool) -> None:
    config = gpt_oss(quantization) if quantization in (FP8_HEAD, BF16_HEAD) else DENSE
    if config is DENSE and quantization:
        config = {**config, "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert read(tmp_path, weights_gib=1.0).block_fp8 is blocks


@pytest.mark.parametrize(
    ("vllm", "gpu", "wanted"),
    [
        ("0.23.0", "5090", False),
        ("0.24.0", "5090", True),
        ("0.24.0", "H100", False),
        ("0.26.0", "5090", False),
        ("0.27.1", "PRO 6000", True),
        ("0.28.0", "5090", False),
    ],
)
def test_plan_names_it(vpatch: Program, tmp_path: Path, vllm: str, gpu: str, *, wanted: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**DENSE, "quantization_config": BLOCKS}))
    found = vpatch("plan", "--model", tmp_path, "--gpu", gpu, "--vllm", vllm, "--weights-gib", "1", "--json").json

    (need,) = (item for item in found["overlays"] if item["id"] == ID)
    assert need["needed"] is wanted
    assert (ID in found["commands"].get("apply", "")) is wanted
