"""ct-fp8-lm-head in the real vLLM, on the CPU: builds, loads and runs heads and whole models.

Each test compares a release as published with the same release plus the overlay, on a simulated GPU whose FP8 kernels
are replaced by plain arithmetic. One process plays several ranks, one after the other.
"""

from __future__ import annotations

import pytest

from tests.tiers import sampled
from tests.validation.cpu import head_models, head_unpassed
from tests.validation.cpu.comparison import Comparison, compared, each, one_first
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
    Head,
)

QUANTIZED = ["CompressedTensorsLinearMethod", "torch.float8_e4m3fn"]
PLAIN = ["UnquantizedEmbeddingMethod", "torch.float32"]
REFUSED = "has an FP8 {} of its own, but its config ties the head to the input embeddings"
WARNED = "config quantizes {}, but ties it to the input embeddings. The head is not quantized."

# Upstream dispatches heads to a scheme from 0.20, loads scalar scales from 0.23 and sets the geometry from 0.31.
NO_DISPATCH, NO_SCALARS = ("0.18", "0.19"), ("0.18", "0.19", "0.20", "0.21", "0.22")
NO_GEOMETRY = (*NO_SCALARS, *(f"0.{minor}." for minor in range(23, 31)))

MODELS = [*head_models.MODELS, *head_models.MTP, *head_unpassed.UNPASSED, *head_unpassed.MTP]
RELEASES = sampled(("0.18.0", "0.20.2", "0.21.0", "0.33.0", "0.23.0", "0.24.0", "0.28.0", "0.26.0"), 3)

TIED = [name for name in MODELS if "tied" in name and "bf16" not in name]
BF16 = [name for name in MODELS if "bf16" in name]
FP8 = [name for name in MODELS if name not in (*TIED, *BF16)]


release = each(one_first("0.20.2", RELEASES))


@pytest.fixture(scope="module")
def seen(release: str) -> Comparison:
    return compared("probe_head", release, ("ct-fp8-lm-head",))


def share(head: Head) -> tuple[int, int]:
    """Rows of the vocabulary and of added tokens on each rank, with padding."""
    rows = -(-head.vocab // head.multiple) * head.multiple
    return rows // head.ranks, -(-head.added // head.multiple) * head.multiple // head.ranks


@pytest.mark.parametrize("name", LOADED)
def test_rows_are_those_of_the_checkpoint_and_padding_is_zero(seen: Comparison, name: str) -> None:
    head, found = LOADED[name], seen.patched["loaded"][name]
    rows, added = share(head)

    assert "error" not in found
    assert len(found["ranks"]) == head.ranks
    for number, rank in enumerate(found["ranks"]):
        assert rank["rows"] == max(0, min(rows, head.vocab - number * rows))
        assert rank["wrong"] == []
        assert rank["padding"] == rows + added - rank["rows"]
        assert rank["masked"] == rows - rank["rows"]
        assert rank["padding not zero"] == rank["scales not finite"] == 0
        assert rank["least scale"] >= (0 if head.kind == "channel" else 1 / 64)
    assert sum(rank["rows"] for rank in found["ranks"]) == head.vocab


@pytest.mark.parametrize("name", [name for name, head in LOADED.items() if head.activations])
def test_logits_are_those_of_the_dequantized_checkpoint(seen: Comparison, name: str) -> None:
    assert [rank["logits"] for rank in seen.patched["loaded"][name]["ranks"]] == [True] * LOADED[name].ranks
    assert seen.patched["loaded"][name]["gathered"]


def test_a_rank_of_padding_has_scales(seen: Comparison) -> None:
    *_, last = seen.patched["loaded"]["block, a rank of padding"]["ranks"]

    assert (last["rows"], last["padding"], last["least scale"]) == (0, 128, 1)


@pytest.mark.parametrize("name", ["tensor, static", "scalar, static"])
def test_input_scales(seen: Comparison, name: str) -> None:
    assert [rank["input scale"] for rank in seen.patched["loaded"][name]["ranks"]] == [[0.75], [0.75]]


@pytest.mark.parametrize("name", LOADED)
def test_stock_loads_no_block_scale_and_what_it_loads_stays_the_same(seen: Comparison, release: str, name: str) -> None:
    kind, stock = LOADED[name].kind, seen.stock["loaded"][name]
    fails = kind == "block" or release.startswith(NO_DISPATCH)
    fails |= kind == "scalar" and release.startswith(NO_SCALARS)

    assert ("error" in stock) is fails
    if not fails:
        patched = seen.patched["loaded"][name]["ranks"]
        assert [rank | {"geometry": []} for rank in stock["ranks"]] == [rank | {"geometry": []} for rank in patched]


@pytest.mark.parametrize("name", LOADED)
def test_geometry(seen: Comparison, release: str, name: str) -> None:
    head = LOADED[name]
    rows, total = sum(share(head)), sum(share(head)) * head.ranks

    stock, patched = (found["loaded"][name] for found in seen)
    for rank in patched["ranks"]:
        sizes = [head.hidden, head.hidden, total, rows]
        assert rank["geometry"] == [*sizes, [rows], "lm_head", False, [rows, head.hidden]]
    assert len(stock["ranks"]) == head.ranks or "error" in stock  # stock refuses some of them
    for rank in stock["ranks"]:
        assert (None in rank["geometry"]) == release.startswith(NO_GEOMETRY)


@pytest.mark.parametrize("name", CUT)
def test_every_rank_has_whole_blocks(seen: Comparison, name: str) -> None:
    """Stock vLLM refuses these heads; the tests of `LOADED`, which has them, too, show that they are complete here."""
    head = CUT[name]

    ranks = seen.patched["loaded"][f"block {name}"]["ranks"]

    assert len(ranks) == head.ranks
    for rank in ranks:
        assert (rank["rows"] + rank["padding"]) % head.block[0] == 0
    assert "error" in seen.stock["loaded"][f"block {name}"]


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


@pytest.mark.parametrize("name", TARGETED)
def test_a_target_matches_both_spellings_of_a_head(seen: Comparison, name: str) -> None:
    assert seen.patched["dispatched"][name] == {BARE: QUANTIZED, MULTIMODAL: QUANTIZED}


@pytest.mark.parametrize("name", APART)
def test_an_ignore_expression_for_the_other_spelling_loses_to_a_target_of_this_one(
    seen: Comparison, release: str, name: str
) -> None:
    _, ignored = APART[name]
    (other,) = {BARE, MULTIMODAL} - {ignored}

    assert seen.patched["apart"][name] == {ignored: PLAIN, other: QUANTIZED}
    if not release.startswith(NO_DISPATCH):
        assert seen.stock["apart"][name] == seen.patched["apart"][name]


@pytest.mark.parametrize("name", UNTARGETED)
def test_target_linear_excludes_heads_and_ignore_wins(seen: Comparison, name: str) -> None:
    assert seen.patched["dispatched"][name] == {BARE: PLAIN, MULTIMODAL: PLAIN}


@pytest.mark.parametrize(("target", "prefix"), [("lm_head", MULTIMODAL), (MULTIMODAL, BARE)])
def test_stock_matches_one_spelling_only(seen: Comparison, target: str, prefix: str) -> None:
    assert seen.stock["dispatched"][f"target Linear and {target}"][prefix] == PLAIN


@pytest.mark.parametrize("name", [*TARGETED, "ranks"])
def test_a_tied_head_is_not_quantized(seen: Comparison, name: str) -> None:
    found = seen.patched["tied, ranks"] if name == "ranks" else seen.patched["tied"][name]
    head, embeddings = found["rows"]

    assert found["tied"]
    assert (found["method"], found["parameters"]) == (PLAIN[0], ["weight"])
    assert head == embeddings


@pytest.mark.parametrize("name", TIED_BIAS)
def test_a_tied_head_with_a_bias_has_the_rows_of_its_embeddings(seen: Comparison, name: str) -> None:
    found = seen.patched["tied, bias"][name]

    assert "error" not in found
    assert [head for head, _ in found["rows"]] == [embeddings for _, embeddings in found["rows"]]
    assert found["logits"]


@pytest.mark.parametrize("name", TARGETED)
def test_a_tied_model_does_not_load_an_fp8_head(seen: Comparison, name: str) -> None:
    kind, message = seen.patched["tied"][name]["FP8"]["error"]

    assert kind == "ValueError"
    assert REFUSED.format(BARE) in message
    assert "of its own" not in str(seen.stock["tied"][name])


def test_a_tied_head_logs_one_warning(seen: Comparison) -> None:
    said = [line for case in seen.patched["tied"].values() for line in case["log"]]

    assert [line.endswith(WARNED.format(BARE)) for line in said] == [True]


@pytest.mark.parametrize("name", UNTARGETED)
def test_a_plain_head_is_tied(seen: Comparison, name: str) -> None:
    found = seen.patched["tied"][name]

    assert found["tied"]
    assert (found["method"], found["parameters"]) == (PLAIN[0], ["weight"])
    assert (found["FP8"], found["log"]) == ({}, [])


@pytest.mark.parametrize("name", [*UNNAMED, "no config TP1", "no config TP2", "no config TP4", "bias", "GPTQ"])
def test_other_heads_are_unchanged_to_the_byte(seen: Comparison, name: str) -> None:
    stock = seen.stock["unquantized"][name]

    assert "error" not in stock
    assert seen.patched["unquantized"][name] == stock


@pytest.mark.parametrize("name", FP8)
def test_a_model_loads_its_head_and_computes_logits(seen: Comparison, name: str) -> None:
    found = seen.patched["models"][name]

    assert "error" not in found
    assert {parameter.rpartition(".")[2] for parameter in found["loaded"]} == {"weight", "weight_scale"}
    assert found["dtype"] == "torch.float8_e4m3fn"
    assert found["share"]["rows"] == head_models.VOCAB
    assert found["share"]["wrong"] == []
    assert found["logits"]
    assert "error" in seen.stock["models"][name]


@pytest.mark.parametrize("name", BF16)
def test_a_model_with_a_plain_head_is_unchanged(seen: Comparison, name: str) -> None:
    stock = seen.stock["models"][name]

    assert stock["logits"]
    assert seen.patched["models"][name] == stock


@pytest.mark.parametrize("name", TIED)
def test_a_model_that_ties_its_head_serves_its_embeddings(seen: Comparison, name: str) -> None:
    found, stock = seen.patched["models"][name], seen.stock["models"][name]

    assert found["logits"]
    assert found["dtype"] == "torch.bfloat16"
    if stock.get("logits"):
        assert found | {"log": []} == stock | {"log": []}


def test_stock_serves_some_tied_models_correctly(seen: Comparison, release: str) -> None:
    """The overlay must not refuse these: models that build no head, and models that pass it no config."""
    right = {name for name in TIED if seen.stock["models"][name].get("logits")}

    assert right >= {"Falcon-H1, tied"}
    if release < "0.28":
        assert right >= {name for name in TIED if name.startswith("Qwen3.5")}


def test_a_tied_model_logs_one_warning(seen: Comparison) -> None:
    said = [line for name in MODELS for line in seen.patched["models"][name]["log"]]

    assert any(line.endswith(WARNED.format(MULTIMODAL)) for line in said)
    assert len(said) == len(set(said))


@pytest.mark.parametrize("own", ["bf16", "bf16, alike"])
def test_a_draft_with_a_plain_head_of_its_own_keeps_it_beside_an_fp8_target(
    seen: Comparison, release: str, own: str
) -> None:
    found, stock = seen.patched["drafts"][f"FP8, {own}"], seen.stock["drafts"][f"FP8, {own}"]

    assert found["draft"] == "EagleLlama4ForCausalLM"
    assert found["dtypes"] == ["torch.float8_e4m3fn", "torch.bfloat16"]
    assert (found["V1"], found["V2"] or False) == (False, False)
    if not release.startswith(NO_DISPATCH):
        assert "Promotion for Float8 Types is not supported" in stock["error"][1]


@pytest.mark.parametrize("own", ["bf16", "bf16, alike"])
def test_a_draft_beside_a_plain_target_is_unchanged(seen: Comparison, own: str) -> None:
    assert seen.patched["drafts"][f"bf16, {own}"] == seen.stock["drafts"][f"bf16, {own}"]
    assert seen.patched["drafts"][f"bf16, {own}"]["V1"] is own.endswith("alike")


@pytest.mark.parametrize(("target", "dtype"), [("FP8", "torch.float8_e4m3fn"), ("bf16", "torch.bfloat16")])
def test_a_draft_has_the_head_of_its_own_checkpoint(seen: Comparison, target: str, dtype: str) -> None:
    assert seen.patched["drafts"][f"{target}, FP8"]["dtypes"] == [dtype, "torch.float8_e4m3fn"]
    assert seen.patched["drafts"][f"{target}, bf16"]["dtypes"] == [dtype, "torch.bfloat16"]
