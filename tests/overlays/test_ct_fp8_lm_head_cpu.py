"""ct-fp8-lm-head in the real vLLM, on the CPU: builds, loads and runs heads, whole models and their drafts.

Each test compares a release as published with the same release plus the overlay, on a simulated GPU whose FP8 kernels
are replaced by plain arithmetic. One process plays several ranks, one after the other.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.tiers import sampled
from tests.validation.cpu import head_models, validation
from tests.validation.cpu.comparison import Comparison, beside, each
from tests.validation.cpu.head_cases import (
    APART,
    BARE,
    CUT,
    LOADED,
    MISSHAPEN,
    MULTIMODAL,
    TARGETED,
    TIED_BIAS,
    UNNAMED,
    UNTARGETED,
)
from tests.validation.cpu.probe_head_drafts import CLASSES, REPLACEABLE, REPLACED, TARGETS

pytestmark = pytest.mark.deep

FP8, BF16 = "torch.float8_e4m3fn", "torch.bfloat16"
QUANTIZED, PLAIN = ["CompressedTensorsLinearMethod", FP8], ["UnquantizedEmbeddingMethod", "torch.float32"]
REFUSED = "has an FP8 {} of its own, but its config ties the head to the input embeddings"
WARNED = "config quantizes {}, but ties it to the input embeddings. The head is not quantized."

# Upstream dispatches heads to a scheme from 0.20, loads scalar scales from 0.23 and sets the geometry from 0.31.
NO_DISPATCH, NO_SCALARS = ("0.18", "0.19"), ("0.18", "0.19", "0.20", "0.21", "0.22")
NO_GEOMETRY = (*NO_SCALARS, *(f"0.{minor}." for minor in range(23, 31)))

MODELS = [*head_models.MODELS, *head_models.UNPASSED, *head_models.MTP]
OWN = {"bf16": BF16, "channel": FP8, "renamed": FP8}

release = each(sampled(("0.20.2", "0.18.0", "0.21.0", "0.23.0", "0.33.0", "0.24.0", "0.28.0", "0.26.0"), 4))
seen = beside("probe_head", "ct-fp8-lm-head")
drafts = beside("probe_head_drafts", "ct-fp8-lm-head")


@pytest.mark.parametrize("name", LOADED)
def test_a_head_has_the_rows_of_its_checkpoint(seen: Comparison, release: str, name: str) -> None:
    head, found, stock = LOADED[name], seen.patched["loaded"][name], seen.stock["loaded"][name]
    rows = -(-head.vocab // head.multiple) * head.multiple // head.ranks  # of the vocabulary, on each rank
    here = rows + -(-head.added // head.multiple) * head.multiple // head.ranks

    assert len(found["ranks"]) == head.ranks
    for number, rank in enumerate(found["ranks"]):
        assert rank["rows"] == max(0, min(rows, head.vocab - number * rows))
        assert rank["wrong"] == []
        assert (rank["padding"], rank["masked"]) == (here - rank["rows"], rows - rank["rows"])
        assert rank["padding not zero"] == rank["scales not finite"] == 0
        assert rank["least scale"] >= (0 if head.kind == "channel" else 1 / 64)
        sizes = [head.hidden, head.hidden, here * head.ranks, here]
        assert rank["geometry"] == [*sizes, [here], BARE, False, [here, head.hidden]]
        assert not head.activations or rank["logits"]
        assert name.removeprefix("block ") not in CUT or here % head.block[0] == 0
    assert sum(rank["rows"] for rank in found["ranks"]) == head.vocab
    assert not head.activations or found["gathered"]

    fails = head.kind == "block" or release.startswith(NO_DISPATCH)
    fails |= head.kind == "scalar" and release.startswith(NO_SCALARS)
    assert ("error" in stock) is fails
    for rank, ours in () if fails else zip(stock["ranks"], found["ranks"], strict=True):
        assert (None in rank["geometry"]) == release.startswith(NO_GEOMETRY)
        assert rank | {"geometry": []} == ours | {"geometry": []}


def test_a_rank_of_padding_has_scales_and_inputs_theirs(seen: Comparison) -> None:
    loaded = seen.patched["loaded"]
    *_, last = loaded["block, a rank of padding"]["ranks"]

    assert (last["rows"], last["padding"], last["least scale"]) == (0, 128, 1)
    for name in ("tensor, static", "scalar, static"):
        assert [rank["input scale"] for rank in loaded[name]["ranks"]] == [[0.75], [0.75]]


@pytest.mark.parametrize("name", MISSHAPEN)
def test_a_tensor_of_another_shape_is_refused(seen: Comparison, name: str) -> None:
    *_, shape = MISSHAPEN[name]
    kind, message = seen.patched["misshapen"][name]["error"]

    assert kind == "ValueError"
    assert f"A tensor of lm_head has the shape {list(shape)} in the checkpoint, not [" in message
    assert "1000 tokens of 256 values" in message
    assert seen.stock["misshapen"][name].get("error", ["loaded"])[0] != "ValueError"


@pytest.mark.parametrize("kind", ["block", "channel", "tensor"])
def test_a_plain_head_is_not_read_as_fp8(seen: Comparison, kind: str) -> None:
    """Stock casts the plain head to FP8, and then multiplies by scales that were never loaded."""
    error, message = seen.patched["plain"][kind]["error"]

    assert error == "ValueError"
    assert "config quantizes lm_head to FP8, but the checkpoint has it as torch.bfloat16" in message
    assert "If it is the model's head, add it to the ignore list of the config." in message
    assert "If an MTP module has a head of its own that vLLM loads as lm_head, quantize that head, too." in message
    assert seen.stock["plain"][kind] == {}


def test_a_target_matches_both_spellings_of_a_head_and_ignore_wins(seen: Comparison, release: str) -> None:
    """But an ignore expression for the other spelling loses to a target of this one."""
    patched, stock = seen.patched, seen.stock
    for name in TARGETED:
        assert patched["dispatched"][name] == {BARE: QUANTIZED, MULTIMODAL: QUANTIZED}, name
    for name in UNTARGETED:
        assert patched["dispatched"][name] == {BARE: PLAIN, MULTIMODAL: PLAIN}, name
    for name, (_, ignored) in APART.items():
        (other,) = {BARE, MULTIMODAL} - {ignored}
        assert patched["apart"][name] == {ignored: PLAIN, other: QUANTIZED}, name
        assert release.startswith(NO_DISPATCH) or stock["apart"][name] == patched["apart"][name], name
    for target, prefix in ((BARE, MULTIMODAL), (MULTIMODAL, BARE)):
        assert stock["dispatched"][f"target Linear and {target}"][prefix] == PLAIN


def test_a_tied_head_is_not_quantized(seen: Comparison) -> None:
    tied = seen.patched["tied"]
    for found in (*(tied[name] for name in (*TARGETED, *UNTARGETED)), seen.patched["tied, ranks"]):
        assert found["tied"]
        assert (found["method"], found["parameters"]) == (PLAIN[0], ["weight"])
    for found in (*(tied[name] for name in TARGETED), seen.patched["tied, ranks"]):
        head, embeddings = found["rows"]
        assert head == embeddings
    for name in TARGETED:
        kind, message = tied[name]["FP8"]["error"]
        assert kind == "ValueError"
        assert REFUSED.format(BARE) in message
        assert "of its own" not in str(seen.stock["tied"][name])
    for name in UNTARGETED:
        assert (tied[name]["FP8"], tied[name]["log"]) == ({}, [])
    (said,) = (line for case in tied.values() for line in case["log"])
    assert said.endswith(WARNED.format(BARE))


@pytest.mark.parametrize("name", TIED_BIAS)
def test_a_tied_head_with_a_bias_has_the_rows_of_its_embeddings(seen: Comparison, name: str) -> None:
    found = seen.patched["tied, bias"][name]

    assert [head for head, _ in found["rows"]] == [embeddings for _, embeddings in found["rows"]]
    assert found["logits"]


def test_other_heads_are_unchanged_to_the_byte(seen: Comparison) -> None:
    stock, patched = (found["unquantized"] for found in seen)

    for name in (*UNNAMED, "no config TP1", "no config TP2", "no config TP4", "bias", "GPTQ"):
        assert "error" not in stock[name], name
        assert patched[name] == stock[name], name


@pytest.mark.parametrize("name", MODELS)
def test_a_model_loads_its_head_and_computes_logits(seen: Comparison, name: str) -> None:
    stock, found = (one["models"][name] for one in seen)

    assert found["logits"]
    if "bf16" in name:
        assert found == stock
    elif "tied" in name:  # it serves its embeddings
        assert found["dtype"] == BF16
        assert not stock.get("logits") or found | {"log": []} == stock | {"log": []}
    else:
        assert {parameter.rpartition(".")[2] for parameter in found["loaded"]} == {"weight", "weight_scale"}
        assert (found["dtype"], found["share"]["rows"], found["share"]["wrong"]) == (FP8, head_models.VOCAB, [])
        assert "error" in stock


def test_a_tied_model_logs_one_warning_and_is_served(seen: Comparison, release: str) -> None:
    """The overlay must not refuse those that stock serves: without a head, or with one that gets no config."""
    said = [line for name in MODELS for line in seen.patched["models"][name]["log"]]
    tied = {name for name in MODELS if "tied" in name and "bf16" not in name}
    served = {name for name in tied if seen.stock["models"][name].get("logits")}

    assert any(line.endswith(WARNED.format(MULTIMODAL)) for line in said)
    assert len(said) == len(set(said))
    assert served >= {"Falcon-H1, tied"}
    assert release >= "0.28" or served >= {name for name in tied if name.startswith("Qwen3.5")}


@pytest.mark.parametrize("own", ["bf16", "bf16, alike"])
def test_a_draft_keeps_its_plain_head(drafts: Comparison, release: str, own: str) -> None:
    stock, patched = (found["shared"] for found in drafts)
    beside = patched[f"FP8, {own}"]

    assert beside["draft"] == "EagleLlama4ForCausalLM"
    assert beside["dtypes"] == [FP8, BF16]
    assert (beside["V1"], beside["V2"] or False) == (False, False)
    if not release.startswith(NO_DISPATCH):
        assert "Promotion for Float8 Types is not supported" in stock[f"FP8, {own}"]["error"][1]
    assert patched[f"bf16, {own}"] == stock[f"bf16, {own}"]
    assert patched[f"bf16, {own}"]["V1"] is own.endswith("alike")
    for target, dtype in (("FP8", FP8), ("bf16", BF16)):
        assert patched[f"{target}, FP8"]["dtypes"] == [dtype, FP8]
        assert patched[f"{target}, bf16"]["dtypes"] == [dtype, BF16]


def test_a_draft_has_the_head_of_its_own_checkpoint(drafts: Comparison, release: str) -> None:
    """Also where vLLM's config names the draft as the model, on vLLM's own EAGLE classes.

    Stock reads a plain head of the draft as FP8: vLLM starts, and the draft's tokens are random.
    """
    kinds = [(kind, "nothing") for kind in CLASSES]
    kinds += [(REPLACEABLE, replaced) for replaced in REPLACED[1:]]
    for target, own, (kind, replaced) in product(TARGETS, OWN, kinds):
        name = f"{target}, {kind}, {own}, {replaced}"
        stock, patched = (found["own"][name] for found in drafts)
        wrong: Any = {"class": kind, "dtype": FP8, "logits": False}

        assert patched == {"class": kind, "dtype": OWN[own], "logits": True}, name
        if (own, replaced) == ("bf16", "nothing") and target != "plain" and not release.startswith(NO_DISPATCH):
            assert stock == wrong, name


TESTS = {
    f"tests.model_executor.test_qwen3_5_quantization::test_{model}_lm_head_receives_quant_config"
    for model in ("qwen3_5", "qwen3_5_mtp")
}


@pytest.mark.parametrize("version", ["0.20.2", "0.26.0", "0.33.0"])
def test_upstreams_own_tests(version: str) -> None:
    """The newest release's, on older ones; all results: docs/validation.md."""
    found = stock, patched = validation.compared(version)

    assert validation.row(version, found) in validation.DOCUMENT.read_text().splitlines()
    failing = {name for name in TESTS if stock[name].outcome != "passed"}
    assert failing == (TESTS if version < "0.23" else set())
    assert {patched[name].outcome for name in TESTS} == {"passed"}
    assert not {name for name, case in stock.items() if case.outcome == "passed" != patched[name].outcome}
