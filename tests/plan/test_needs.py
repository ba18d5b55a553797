"""Which overlays a deployment needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.core.overlay import Catalogued, Need, Overlay, Part, Use
from vpatch.core.verdict import State
from vpatch.errors import Failure
from vpatch.plan.checkpoint import read
from vpatch.plan.defaults import gpu
from vpatch.plan.deployment import Deployment
from vpatch.plan.models import load
from vpatch.plan.needs import Needed, needs
from vpatch_overlays.probes.bare import DENSE

from tests.conftest import Program, Ran
from tests.plan.examples import traits
from tests.releases import FIRST, RELEASES, fact, tiered
from tests.validation.cpu.head_cases import NO_LANGUAGE_MODEL, config, group
from tests.validation.cpu.head_models import UNPASSED_BF16, UNPASSED_FP8, gpt_oss, qwen3_5

HYBRID, WORKSPACE, AUTO = "turboquant-hybrid", "turboquant-workspace", "turboquant-auto-dtype"
VERIFIES, DECODE, HEAD, DEEPGEMM = "turboquant-mtp", "turboquant-decode", "ct-fp8-lm-head", "sm12x-deepgemm"
AMPERE, CAPTURE = "ampere-fp8", "custom-ar-expandable"
TURBOQUANT, FP8 = "turboquant_4bit_nc", "fp8_e4m3"

# "Combined matrix" of inferRouter/Qwen3.6-35B-A3B-NVFP4: branch, KV cache, PR #39931, PR #40798, its own patches.
MATRIX = {
    ("main", FP8): (False, False, False),
    ("main", TURBOQUANT): (True, True, False),
    ("fp8-head", FP8): (False, False, True),
    ("fp8-head", TURBOQUANT): (True, True, True),
}


def asked(
    revision: str, dtype: str, vllm: str, installed: tuple[Catalogued, ...] | None = None, card: str = "5090"
) -> dict[str, Needed]:
    model = load("inferRouter/Qwen3.6-35B-A3B-NVFP4", revision)
    deployment = Deployment(traits(vllm), gpu(card), 262_144, dtype, max_num_batched_tokens=8192)
    return {item.id: item for item in needs(model, deployment, installed or discover())}


@pytest.mark.parametrize("vllm", tiered((one for one in RELEASES if fact(HYBRID, one) != "not_applicable"), FIRST))
@pytest.mark.parametrize(("revision", "dtype"), MATRIX)
def test_the_cards_matrix_and_newer_releases(revision: str, dtype: str, vllm: str) -> None:
    """Newer releases need what is not merged yet."""
    found = asked(revision, dtype, vllm)
    wanted = dict(zip((HYBRID, WORKSPACE, HEAD), MATRIX[revision, dtype], strict=True))

    if vllm == "0.20.2":
        assert {name: found[name].needed for name in wanted} == wanted
    for name, want in (wanted | {AUTO: dtype == TURBOQUANT}).items():
        assert found[name].needed is (want and fact(name, vllm) == "pending"), (name, found[name])
        assert found[name].state == fact(name, vllm)
    assert all(item.because for item in found.values())
    assert not any(item.needed for item in found.values() if item.opt_in)


@pytest.mark.parametrize(
    ("dtype", "card", "because"),
    [
        (TURBOQUANT, "H200", "by rounding"),
        (TURBOQUANT, "5090", "by rounding; measured on Hopper only"),
        (FP8, "H200", None),
    ],
)
def test_fast_decoding_is_recommended_for_turboquant(dtype: str, card: str, because: str | None) -> None:
    found = asked("main", dtype, "0.26.0", card=card)

    assert not found[DECODE].needed
    assert [one.id for one in found.values() if one.recommended] == [DECODE] * (because is not None)
    assert not because or found[DECODE].because.endswith(because)


@pytest.mark.parametrize(
    ("state", "opt_in", "recommended", "because"),
    [
        ("pending", True, True, "faster"),
        ("pending", False, False, "faster"),
        ("merged", True, False, "merged in vLLM 0.20.2: so"),
        ("not_applicable", True, False, "not_applicable in vLLM 0.20.2: so"),
    ],
)
def test_what_is_recommended_is_opt_in_and_pending(
    state: str, because: str, *, opt_in: bool, recommended: bool
) -> None:
    gains = mine(
        needed=lambda use: Need(needed=False, because="faster", recommended=True),
        releases={">=0.18": f"{state}: so"},
        opt_in=opt_in,
    )
    item = asked("main", FP8, "0.20.2", gains)["mine"]

    assert (item.needed, item.recommended, item.because) == (False, recommended, because)


def test_each_need_has_a_reason() -> None:
    before, after = asked("fp8-head", TURBOQUANT, "0.20.2"), asked("fp8-head", FP8, "0.24.0")

    assert before[HYBRID].because == (
        "the model is hybrid, with a TurboQuant KV cache; vLLM 0.20.2: hybrid models are refused, and the block size"
        " is computed from unquantized pages"
    )
    assert asked("main", TURBOQUANT, "0.21.0")[HYBRID].because == "merged in vLLM 0.21.0: #39931"
    assert after[HYBRID].because == "the KV cache is fp8_e4m3, not TurboQuant's"
    assert after[HEAD].because.startswith("the output head is fp8-block of compressed-tensors; vLLM 0.24.0: ")


def mine(**answer: Any) -> tuple[Catalogued, ...]:
    """Return an overlay of another package."""
    return (Catalogued("mine", Overlay(summary="", parts=(Part("one", ()),), **answer), ""),)


def test_an_overlay_without_a_statement_is_unknown() -> None:
    silent = asked("main", FP8, "0.20.2", mine())["mine"]
    stateless = asked("main", FP8, "0.20.2", mine(needed=lambda use: Need(needed=True, because="so")))["mine"]

    assert (silent.needed, stateless.needed) == (None, None)
    assert "does not say what it is for" in silent.because
    assert "does not say what vLLM 0.20.2 is to it" in stateless.because


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(lambda use: 1 / 0, "ZeroDivisionError"), (lambda use: True, "TypeError: `needed` gave bool, not vpatch.Need")],
)
def test_an_overlay_that_raises_is_named(answer: Any, cause: str) -> None:
    with pytest.raises(Failure, match=f"cannot ask overlay: mine: {cause}"):
        asked("main", FP8, "0.20.2", mine(needed=answer, releases={">=0.18": "pending: so"}))


def test_an_overlay_covers_only_its_own_quantization_of_the_head() -> None:
    model = load("inferRouter/Qwen3.6-35B-A3B-NVFP4", "fp8-head")
    deployment = Deployment(traits("0.20.2"), gpu("5090"), 32_768)
    found = {item.id: item for item in needs(replace(model, quantization="modelopt"), deployment, discover())}

    assert (found[HEAD].needed, found[HEAD].state) == (False, State.PENDING)
    assert found[HEAD].because == "the output head is fp8-block, of modelopt"


def speculation(use: Use) -> Need:
    """Answer as an overlay for speculative decoding on hybrid models does."""
    if not (use.hybrid and use.speculative_tokens and use.prefix_caching):
        return Need(needed=False, because="nothing is drafted, or no prefix is cached")
    return Need(needed=True, because=f"{use.speculative_tokens} draft tokens, on compute capability {use.capability}")


MTP = ("--model", "Qwen3.6-35B-A3B-NVFP4", "--gpu", "5090", "--force", "--max-num-seqs", "16", "--speculative", "3")


@pytest.mark.parametrize(
    ("vllm", "given", "option", "needed"),
    [
        ("0.25.1", (), "--no-enable-prefix-caching", False),
        ("0.25.1", ("--enable-prefix-caching",), "--enable-prefix-caching", True),
        ("0.28.0", (), "--enable-prefix-caching", True),
        ("0.28.0", ("--no-enable-prefix-caching",), "--no-enable-prefix-caching", False),
    ],
)
def test_needs_follow_the_command_that_is_printed(
    vpatch: Program, monkeypatch: pytest.MonkeyPatch, vllm: str, given: tuple[str, ...], option: str, *, needed: bool
) -> None:
    """vLLM caches prefixes of hybrid models by default from 0.28 on. The command names the option, and the overlay."""
    installed = mine(needed=speculation, releases={">=0.20,<0.34": "pending: the counts are those of other rows"})
    monkeypatch.setattr("vpatch.cli.plan.discover", lambda: installed)
    answer = vpatch("plan", *MTP, "--max-num-batched-tokens", "8192", "--vllm", vllm, *given, "--json").json

    (item,) = answer["overlays"]
    assert item["needed"] is needed
    assert option in answer["commands"]["serve"].split()
    assert '"num_speculative_tokens": 3' in answer["commands"]["serve"]
    because = f"3 draft tokens, on compute capability (12, 0); vLLM {vllm}: the counts are those of other rows"
    assert (item["because"] == because) is needed
    for name in ("apply", "build"):
        assert ("--overlay mine" in answer["commands"].get(name, "")) is needed
    assert ("-vpatch" in answer["commands"]["docker"]) is needed


def planned(vpatch: Program, folder: Path, model: dict[str, Any], vllm: str, card: str = "H100") -> Ran:
    (folder / "config.json").write_text(json.dumps(model))
    return vpatch("plan", "--model", folder, "--gpu", card, "--vllm", vllm, "--weights-gib", "1", "--force", "--json")


def needed_of(ran: Ran) -> list[str]:
    return [item["id"] for item in ran.json["overlays"] if item["needed"]]


@pytest.mark.parametrize("vllm", tiered(("0.20.2", "0.26.0", "0.33.0")))
def test_gpt_oss_with_an_fp8_head_gets_commands_that_apply_the_overlay(
    vpatch: Program, tmp_path: Path, vllm: str
) -> None:
    """`test_a_model_loads_its_head_and_computes_logits` runs what they start: GPT-OSS on the patched release."""
    ran = planned(vpatch, tmp_path, gpt_oss(UNPASSED_FP8), vllm)

    assert needed_of(ran) == [HEAD]
    assert ran.json["commands"]["apply"].split() == ["vpatch", "apply", "\\", "--overlay", HEAD]
    assert ran.json["commands"]["serve"].startswith(f"vllm serve {tmp_path}")
    assert (ran.json["verdict"], ran.json["problems"]) == ("fits", [])
    assert needed_of(planned(vpatch, tmp_path, gpt_oss(UNPASSED_BF16), vllm)) == []


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
    ran = planned(vpatch, tmp_path, gpt_oss(UNPASSED_FP8) | {"architectures": [architecture]}, "0.33.0")
    (answer,) = [str(problem) for problem in ran.json["problems"] if problem["what"] == "vLLM cannot serve it"]

    assert ran.code == 1
    assert architecture in answer
    assert why in answer
    assert HEAD not in ran.json["commands"].get("apply", "")


@pytest.mark.parametrize("multimodal", [True, False])
def test_an_expression_that_ignores_the_other_spelling_loses(
    vpatch: Program, tmp_path: Path, *, multimodal: bool
) -> None:
    """As `ct-fp8-lm-head` decides: the head of the multimodal model is `language_model.lm_head`."""
    model = qwen3_5(config(group("Linear", "re:.*lm_head"), ignore=(NO_LANGUAGE_MODEL,)))
    if not multimodal:
        model = {**model, **model.pop("text_config"), "architectures": ["Qwen3_5ForCausalLM"]}

    assert (HEAD in needed_of(planned(vpatch, tmp_path, model, "0.33.0"))) is multimodal


BLOCK_FP8 = "FP8 with block scales, and the GPU"


@pytest.mark.parametrize(
    ("name", "about", "answer"),
    [
        (DEEPGEMM, {"capability": (12, 0)}, "False nothing of the checkpoint is FP8 with block scales, which DeepGEMM"),
        (DEEPGEMM, {"capability": (12, 1), "block_fp8": True}, f"True {BLOCK_FP8} is of compute capability 12.1"),
        (DEEPGEMM, {"capability": (9, 0), "block_fp8": True}, "False the GPU is of compute capability 9.0, not 12.x"),
        (DEEPGEMM, {"capability": (10, 0), "block_fp8": True}, "False the GPU is of compute capability 10.0, not 12.x"),
        (DEEPGEMM, {"block_fp8": True}, f"True {BLOCK_FP8} may be of compute capability 12.x"),
        (AMPERE, {"capability": (8, 6)}, "False no linear layer is in FP8"),
        (AMPERE, {"capability": (8, 6), "quantization": "fp8", "block_fp8": True}, "False no linear layer is in FP8"),
        (
            AMPERE,
            {"capability": (8, 6), "quantization": "fp8"},
            "True there may be linear layers in FP8, and the GPU is",
        ),
        (AMPERE, {"capability": (8, 9), "quantization": "modelopt"}, "False the GPU is of compute capability 8.9, not"),
        (CAPTURE, {}, "False each layer is on one GPU"),
        (CAPTURE, {"ranks": 2}, "True 2 GPUs reduce together, and their memory may be in expandable segments"),
        (AMPERE, {"quantization": "modelopt"}, "True there may be linear layers in FP8, and the GPU may be older"),
        (DECODE, {}, "True "),
        (DECODE, {"capability": (7, 5)}, "False "),
        (DECODE, {"capability": (8, 0)}, "True "),
        (DECODE, {"capability": (12, 0)}, "True "),
    ],
)
def test_what_an_overlay_says_of_a_gpu(name: str, about: dict[str, Any], answer: str) -> None:
    (item,) = select(discover(), (name,))
    dtype = TURBOQUANT if name == DECODE else "auto"
    assert item.overlay.needed
    need = item.overlay.needed(Use(hybrid=False, kv_cache_dtype=dtype, longest=8192, chunk=8192, **about))

    assert f"{need.needed or need.recommended} {need.because}".startswith(answer)


BLOCKS: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
TENSOR: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
MODELOPT: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO", "ignore": []}


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        (DENSE | {"quantization_config": BLOCKS}, True),
        (DENSE | {"quantization_config": TENSOR}, False),
        (DENSE | {"quantization_config": MODELOPT}, True),
        (DENSE, False),
        (gpt_oss(UNPASSED_FP8), True),
        (gpt_oss(UNPASSED_BF16), False),
    ],
    ids=["fp8 blocks", "fp8 tensor", "modelopt", "none", "head", "bf16 head"],
)
def test_what_is_block_fp8(tmp_path: Path, model: dict[str, Any], *, blocks: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model))

    assert read(tmp_path, weights_gib=1.0).block_fp8 is blocks
