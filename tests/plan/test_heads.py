"""Plans for models with an FP8 head: which get commands, and which architectures are not covered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Program, Ran
from tests.validation.cpu.head_cases import NO_LANGUAGE_MODEL, config, group
from tests.validation.cpu.head_models import qwen3_5
from tests.validation.cpu.head_unpassed import BF16_HEAD, FP8_HEAD, gpt_oss

HEAD = "ct-fp8-lm-head"
RELEASES = ("0.20.2", "0.26.0", "0.33.0")


def planned(vpatch: Program, folder: Path, model: dict[str, Any], vllm: str) -> Ran:
    (folder / "config.json").write_text(json.dumps(model))
    return vpatch("plan", "--model", folder, "--gpu", "H100", "--vllm", vllm, "--weights-gib", "30", "--json")


@pytest.mark.parametrize("vllm", RELEASES)
def test_gpt_oss_with_an_fp8_head_gets_commands_that_apply_the_overlay(
    vpatch: Program, tmp_path: Path, vllm: str
) -> None:
    """`test_a_model_loads_its_head_and_computes_logits` runs what they start: GPT-OSS on the patched release."""
    found = planned(vpatch, tmp_path, gpt_oss(FP8_HEAD), vllm).json

    assert [item["id"] for item in found["overlays"] if item["needed"]] == [HEAD]
    assert found["commands"]["apply"].split() == ["vpatch", "apply", "\\", "--overlay", HEAD]
    assert found["commands"]["serve"].startswith(f"vllm serve {tmp_path}")
    assert {problem["what"] for problem in found["problems"]} == {"cannot know"}  # what its layers keep


def test_a_plain_head_needs_nothing(vpatch: Program, tmp_path: Path) -> None:
    found = planned(vpatch, tmp_path, gpt_oss(BF16_HEAD), "0.26.0").json

    assert not [item["id"] for item in found["overlays"] if item["needed"]]


READS = "its logits are computed from the weight of the head without its scales"
NORMALIZES = "it normalizes the head while loading"


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        ("InklingForConditionalGeneration", READS),
        ("MuseSparkForConditionalGeneration", READS),
        ("BailingMoeV2ForCausalLM", f"where its config sets norm_head, {NORMALIZES}"),
        ("BaichuanForCausalLM", f"as Baichuan 2, {NORMALIZES}"),
    ],
)
def test_an_architecture_that_is_not_covered_is_named(
    vpatch: Program, tmp_path: Path, architecture: str, why: str
) -> None:
    ran = planned(vpatch, tmp_path, gpt_oss(FP8_HEAD) | {"architectures": [architecture]}, "0.33.0")
    said = [problem for problem in ran.json["problems"] if problem["what"] == "vLLM cannot serve it"]

    assert ran.code == 1
    assert len(said) == 1
    assert architecture in str(said)
    assert why in str(said)
    assert HEAD not in ran.json["commands"].get("apply", "")


@pytest.mark.parametrize("multimodal", [True, False])
def test_an_expression_that_ignores_the_other_spelling_loses(
    vpatch: Program, tmp_path: Path, *, multimodal: bool
) -> None:
    """As `ct-fp8-lm-head` decides: the head of the multimodal model is `language_model.lm_head`."""
    model = qwen3_5(config(group("Linear", "re:.*lm_head"), ignore=(NO_LANGUAGE_MODEL,)))
    if not multimodal:
        model = {**model, **model.pop("text_config"), "architectures": ["Qwen3_5ForCausalLM"]}
    found = planned(vpatch, tmp_path, model, "0.26.0").json

    assert [item["needed"] for item in found["overlays"] if item["id"] == HEAD] == [multimodal]
