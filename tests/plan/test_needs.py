"""Which overlays a deployment needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vpatch.core.catalogue import discover
from vpatch.core.overlay import Catalogued, Need, Overlay, Part, Use
from vpatch.core.verdict import State
from vpatch.errors import Failure
from vpatch.plan.defaults import gpu
from vpatch.plan.deployment import Deployment
from vpatch.plan.models import load
from vpatch.plan.needs import needs

from tests.conftest import Program, Ran
from tests.plan.examples import traits
from tests.releases import RELEASES, fact
from tests.validation.cpu.head_cases import NO_LANGUAGE_MODEL, config, group
from tests.validation.cpu.head_models import qwen3_5
from tests.validation.cpu.head_unpassed import BF16_HEAD, FP8_HEAD, gpt_oss

HYBRID, WORKSPACE, AUTO = "turboquant-hybrid", "turboquant-workspace", "turboquant-auto-dtype"
VERIFIES = "turboquant-mtp"
HEAD = "ct-fp8-lm-head"
TURBOQUANT, FP8 = "turboquant_4bit_nc", "fp8_e4m3"

# "Combined matrix" of inferRouter/Qwen3.6-35B-A3B-NVFP4: branch, KV cache, PR #39931, PR #40798, its own patches.
MATRIX = {
    ("main", FP8): (False, False, False),
    ("main", TURBOQUANT): (True, True, False),
    ("fp8-head", FP8): (False, False, True),
    ("fp8-head", TURBOQUANT): (True, True, True),
}


def asked(revision: str, dtype: str, vllm: str, installed: tuple[Catalogued, ...] | None = None) -> dict[str, Any]:
    model = load("inferRouter/Qwen3.6-35B-A3B-NVFP4", revision)
    deployment = Deployment(traits(vllm), gpu("5090"), 262_144, dtype, max_num_batched_tokens=8192)
    return {item.id: item for item in needs(model, deployment, installed or discover())}


@pytest.mark.parametrize(("revision", "dtype"), MATRIX)
def test_the_cards_matrix(revision: str, dtype: str) -> None:
    found = asked(revision, dtype, "0.20.2")

    assert tuple(found[name].needed for name in (HYBRID, WORKSPACE, HEAD)) == MATRIX[revision, dtype]
    assert all(item.because for item in found.values())
    assert not any(item.needed for item in found.values() if item.opt_in)


@pytest.mark.parametrize("vllm", [release for release in RELEASES if fact(HYBRID, release) != "not_applicable"])
@pytest.mark.parametrize(("revision", "dtype"), MATRIX)
def test_newer_releases_need_what_is_not_merged_yet(revision: str, dtype: str, vllm: str) -> None:
    found = asked(revision, dtype, vllm)
    wanted = dict(zip((HYBRID, WORKSPACE, HEAD), MATRIX[revision, dtype], strict=True)) | {AUTO: dtype == TURBOQUANT}

    for name, want in wanted.items():
        assert found[name].needed is (want and fact(name, vllm) == "pending"), (name, found[name])
        assert found[name].state == fact(name, vllm)


@pytest.mark.parametrize(
    ("dtype", "card", "because"),
    [
        (TURBOQUANT, "H200", "by rounding"),
        (TURBOQUANT, "5090", "by rounding; measured on Hopper only"),
        (FP8, "H200", None),
    ],
)
def test_fast_decoding_is_recommended_for_turboquant(dtype: str, card: str, because: str | None) -> None:
    model = load("inferRouter/Qwen3.6-35B-A3B-NVFP4", "main")
    found = needs(model, Deployment(traits("0.26.0"), gpu(card), 32_768, dtype), discover())
    (item,) = (item for item in found if item.id == "turboquant-decode")

    assert not item.needed
    assert item.recommended is (because is not None)
    assert not because or item.because.endswith(because)
    assert [one.id for one in found if one.recommended] == [item.id] * item.recommended


def test_fast_decoding_needs_an_ampere() -> None:
    use = Use(hybrid=False, kv_cache_dtype=TURBOQUANT, longest=1024, chunk=1024)
    ask = next(item.overlay.needed for item in discover() if item.id == "turboquant-decode")
    assert ask

    recommended = {one: ask(replace(use, capability=one)).recommended for one in (None, (7, 5), (8, 0), (12, 0))}
    assert recommended == {None: True, (7, 5): False, (8, 0): True, (12, 0): True}


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
        "the model is hybrid, and its KV cache TurboQuant's; vLLM 0.20.2: hybrid models are refused, and the block size"
        " is computed from unquantized pages"
    )
    assert asked("main", TURBOQUANT, "0.21.0")[HYBRID].because == "merged in vLLM 0.21.0: #39931"
    assert after[HYBRID].because == "the KV cache is fp8_e4m3, not TurboQuant's"
    assert after[HEAD].because.startswith("the output head is fp8-block of compressed-tensors; vLLM 0.24.0: ")


@pytest.mark.parametrize("build", ["0.20.2rc1", "0.20.2.dev7+g01d4d1ad3", "0.20.2+cu129", "0.20.2.post1"])
def test_a_build_is_as_its_release(build: str) -> None:
    assert {n for n, i in asked("main", TURBOQUANT, build).items() if i.needed} == {HYBRID, WORKSPACE, VERIFIES}


def mine(**said: Any) -> tuple[Catalogued, ...]:
    """Return an overlay of another package."""
    return (Catalogued("mine", Overlay(summary="", parts=(Part("one", ()),), **said), ""),)


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


MTP = (
    "--model",
    "Qwen3.6-35B-A3B-NVFP4",
    "--gpu",
    "5090",
    "--force",
    "--max-num-seqs",
    "16",
    "--max-num-batched-tokens",
    "8192",
)


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
    said = vpatch("plan", *MTP, "--speculative", "3", "--vllm", vllm, *given, "--json").json

    (item,) = said["overlays"]
    assert item["needed"] is needed
    assert option in said["commands"]["serve"].split()
    assert '"num_speculative_tokens": 3' in said["commands"]["serve"]
    if needed:
        because = f"3 draft tokens, on compute capability (12, 0); vLLM {vllm}: the counts are those of other rows"
        assert item["because"] == because
    for name in ("apply", "build"):
        assert ("--overlay mine" in said["commands"].get(name, "")) is needed
    assert ("-vpatch" in said["commands"]["docker"]) is needed


def planned(vpatch: Program, folder: Path, model: dict[str, Any], vllm: str) -> Ran:
    (folder / "config.json").write_text(json.dumps(model))
    return vpatch(
        "plan", "--model", folder, "--gpu", "H100", "--vllm", vllm, "--weights-gib", "30", "--force", "--json"
    )


@pytest.mark.parametrize("vllm", ["0.20.2", "0.26.0", "0.33.0"])
def test_gpt_oss_with_an_fp8_head_gets_commands_that_apply_the_overlay(
    vpatch: Program, tmp_path: Path, vllm: str
) -> None:
    """`test_a_model_loads_its_head_and_computes_logits` runs what they start: GPT-OSS on the patched release."""
    found = planned(vpatch, tmp_path, gpt_oss(FP8_HEAD), vllm).json

    assert [item["id"] for item in found["overlays"] if item["needed"]] == [HEAD]
    assert found["commands"]["apply"].split() == ["vpatch", "apply", "\\", "--overlay", HEAD]
    assert found["commands"]["serve"].startswith(f"vllm serve {tmp_path}")
    assert (found["verdict"], found["problems"]) == ("fits", [])


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
    found = planned(vpatch, tmp_path, model, "0.33.0").json

    assert [item["needed"] for item in found["overlays"] if item["id"] == HEAD] == [multimodal]
