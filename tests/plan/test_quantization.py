"""The configs of quantized checkpoints, and whether the output head is quantized."""

from __future__ import annotations

from typing import Any

import pytest
from vpatch.plan.checkpoint import model_of

from tests.failures import problems_of
from tests.plan.configs import named
from tests.plan.examples import weights_of
from tests.validation.cpu.head_models import BF16_HEAD, MODELS, fp8_head

MOE = "Qwen3_5MoeForConditionalGeneration"
BLOCK = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel"}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


def groups(*pairs: tuple[list[str], Any], ignore: tuple[str, ...] = (), **config: Any) -> dict[str, Any]:
    """Return a config of compressed-tensors with a group for each list of targets and weights."""
    made = {str(index): {"targets": targets, "weights": weights} for index, (targets, weights) in enumerate(pairs)}
    return {"quant_method": "compressed-tensors", "config_groups": made, "ignore": [*ignore], **config}


def quantization_and_head(config: Any, name: str = MOE) -> tuple[str | None, str | None]:
    model = model_of(named(name) | {"quantization_config": config}, "config.json", name="quantized")
    return model.quantization, model.head


MANY = tuple(f"re:a{number}" for number in range(1001))
HEADS = {
    "Linear is no head": (groups((["Linear"], BLOCK)), None),
    "by a bare name": (groups((["lm_head"], BLOCK)), "fp8-block"),
    "by its full name": (groups((["language_model.lm_head"], CHANNEL)), "fp8-channel"),
    "by an expression": (groups((["re:.*lm_head"], CHANNEL)), "fp8-channel"),
    "by its class": (groups((["ParallelLMHead"], CHANNEL)), "fp8-channel"),
    "by another name": (groups((["model.lm_head", "re:visual.*"], CHANNEL)), None),
    "its own group before Linear": (groups((["Linear"], NVFP4), (["re:.*lm_head$"], BLOCK)), "fp8-block"),
    "ignored by name": (groups((["re:.*lm_head"], BLOCK), ignore=("lm_head",)), None),
    "ignored by an expression": (groups((["lm_head"], BLOCK), ignore=("re:.*lm_head",)), None),
    "weights left alone": (groups((["lm_head"], None)), None),
    "per tensor, by default": (groups((["lm_head"], {"num_bits": 8, "type": "float"})), "fp8-tensor"),
    "NVFP4": (groups((["lm_head"], NVFP4), format="nvfp4-pack-quantized"), "nvfp4-pack-quantized"),
    "mixed": (groups((["lm_head"], NVFP4), format="mixed-precision"), "float4-tensor_group"),
    "scales of attention": (groups((["Qwen3Attention"], BLOCK)), None),
    "the model card's": (fp8_head(), "fp8-block"),
    "the model card's other": (BF16_HEAD, None),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_quantized_as_compressed_tensors_decides(name: str) -> None:
    config, head = HEADS[name]

    assert quantization_and_head(config) == ("compressed-tensors", head)
    assert quantization_and_head(config | {"quant_method": "compressed_tensors"}, "LlamaForCausalLM")[1] == head


def test_the_old_key_and_the_text_config_are_looked_at() -> None:
    config = groups((["lm_head"], BLOCK))
    llama = named("LlamaForCausalLM") | {"compression_config": config}
    inner = named("Qwen3_5ForConditionalGeneration", quantization_config=config)

    for one in (llama, inner):
        assert model_of(one, "config.json", name="old").head == "fp8-block"


MODELOPT = {"quant_method": "modelopt"}
AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
ITS_HEAD = {"quantization": {"quant_algo": "FP8", "exclude_modules": []}}
MIXED_HEAD = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"lm_head": {"quant_algo": "MXFP8"}}}
BITS_OF_HEAD = {"extra_config": {"lm_head": {"bits": 8, "group_size": 64}}}


@pytest.mark.parametrize(
    ("config", "method", "head"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", None),
        ({"quant_method": "FP8", "ignored_layers": ["lm_head"]}, "fp8", None),
        (MODELOPT | {"quant_algo": "NVFP4", "ignore": ["lm_head", "mtp*"]}, "modelopt_fp4", None),
        ({"producer": {"name": "modelopt"}} | ITS_HEAD, "modelopt", "fp8-tensor"),
        (MODELOPT | {"quant_algo": "MIXED_PRECISION"}, "modelopt_mixed", None),
        ({"producer": {}} | MIXED_HEAD, "modelopt_mixed", "mxfp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", None),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "lm_head": True}, "gptq", "int8"),
        (AUTO_ROUND, "auto-round", None),
        (AUTO_ROUND | BITS_OF_HEAD, "auto-round", "int8"),
        (AUTO_ROUND | BITS_OF_HEAD | {"data_type": "mx_fp"}, "auto-round", "mxfp8"),
        (AUTO_ROUND | {"data_type": "nv_fp"}, "auto-round", None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", None),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "mxfp4", None),
        ({"quant_method": "fancy"}, "fancy", None),
    ],
)
def test_other_methods_have_the_names_of_vllm(config: Any, method: str, head: str | None) -> None:
    assert quantization_and_head(config) == (method, head)


IN = "quantization_config"


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        (7, f"{IN} is a number, not an object"),
        ({"bits": 4}, f"{IN}.quant_method is missing"),
        (groups((["re:(lm_head"], BLOCK)), f"{IN}.config_groups.0.targets has an expression that cannot be read"),
        (groups((["Linear"], BLOCK), ignore=("re:(a+)+b",)), f"{IN}.ignore has an expression that is too intricate"),
        (groups((["re:" + ".*" * 7], BLOCK)), f"{IN}.config_groups.0.targets has an expression that is too intricate"),
        (groups((["Linear"], BLOCK), ignore=MANY), f"{IN}.ignore has 1,001 expressions"),
        (groups(([1], BLOCK)), f"{IN}.config_groups.0.targets is not a list of strings"),  # type: ignore[list-item]
        (groups((["Linear"], {"num_bits": 0})), f"{IN}.config_groups.0.weights.num_bits is 0, not 1 to 64"),
        ({"quant_method": "compressed-tensors", "config_groups": []}, f"{IN}.config_groups is a"),
        (GPTQ | {"dynamic": {"+:(": {}}}, f"{IN}.dynamic has an expression that cannot be read"),
    ],
    ids=range(10),
)
def test_a_wrong_quantization_is_refused(config: Any, cause: str) -> None:
    assert problems_of(quantization_and_head, config)[0].cause.startswith(cause)


MIXED = {
    "model.layers.0.mlp": {"quant_algo": "NVFP4", "group_size": 16},
    "model.layers.1.self_attn.qkv_proj": {"quant_algo": "FP8"},
    "model.layers.2.mlp.gate_proj": {"quant_algo": "W4A16_NVFP4"},
}
UP, HEADS_OF = 2048 * 11_008, 2048 * 2048  # parameters of a projection of the MLP, and of one of attention
FOUR = 0.5 + (2 + 0.5) / 128  # bytes that four bits save on two, with a scale and a zero for 128 weights
ALL, BLOCKS = 3 * UP + 4 * HEADS_OF, "model.layers.0,model.layers.1,model.layers.2"
EXCEPT = {"model.layers.0.mlp.up_proj": {"bits": 16}, r".*\.1\.(mlp|self_attn)": {"bits": 8}}
RULES = {r"-:.*layers\.[03]\.": {}, r"+:.*\.1\.mlp": {"bits": 8}}
LEFT = ["lm_head", "mlp.up_proj", "model.layers.1", "model.layers.2.self_attn*", "*.3.*down_proj"]
IGNORED = (r"re:.*layers\.0\..*", "model.layers.1.mlp.up_proj")
SOME = [["self_attn.k_proj"], ["mlp.down_proj"]]


@pytest.mark.parametrize(
    ("config", "saved"),
    [
        # ModelOpt, mixed: a module, one that vLLM fuses, one of those that it fuses; what is excluded is left alone.
        (
            MODELOPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": MIXED},
            [3 * UP * 1.4375, 3 * HEADS_OF, UP * 1.4375, 0],
        ),
        (
            MODELOPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": MIXED, "exclude_modules": ["*layers.0*"]},
            [0, 3 * HEADS_OF, UP * 1.4375, 0],
        ),
        # AutoRound: exceptions by name and by expression, blocks by their beginning.
        (
            AUTO_ROUND | {"block_name_to_quantize": BLOCKS, "extra_config": EXCEPT},
            [(ALL - UP) * (2 - FOUR), ALL * (1 - 3 / 128), ALL * (2 - FOUR), 0],
        ),
        # GPTQ: rules that leave out and that override; some modules of a block.
        (
            GPTQ | {"dynamic": RULES},
            [0, 3 * UP * (1 - 3 / 128) + 4 * HEADS_OF * (2 - FOUR), ALL * (2 - FOUR), 0],
        ),
        (GPTQ | {"modules_in_block_to_quantize": SOME}, [(UP + HEADS_OF) * (2 - FOUR)] * 4),
        # bitsandbytes: with the scales that vLLM makes of its own.
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["lm_head", "mlp"]},
            [4 * HEADS_OF * 1.4375] * 4,
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, [ALL] * 4),
        ({"quant_method": "mxfp4"}, [0] * 4),  # experts only
        ({"quant_method": "fp8"}, [ALL] * 4),
        ({"quant_method": "fp8", "ignored_layers": LEFT}, [ALL - UP, 0, ALL - UP - 4 * HEADS_OF, ALL - 2 * UP]),
        (groups((["Linear"], NVFP4)), [ALL * 1.4375] * 4),
        (groups((["Linear"], NVFP4), ignore=IGNORED), [0, (ALL - UP) * 1.4375, ALL * 1.4375, ALL * 1.4375]),
        ({"quant_method": "fancy"}, [0] * 4),  # good for nothing but to split a sum
    ],
    ids=range(13),
)
def test_a_method_saves_what_it_quantizes(config: Any, saved: list[float]) -> None:
    plain = weights_of(model_of(named("LlamaForCausalLM"), "config.json", name="x"))
    found = weights_of(model_of(named("LlamaForCausalLM") | {"quantization_config": config}, "config.json", name="x"))

    each = [more - less for more, less in zip(plain.layers, found.layers, strict=True)]
    assert each == pytest.approx(saved, rel=1e-3)
    assert found.guessed == (config["quant_method"] == "fancy")
    assert (found.head, found.embedding) == (plain.head, plain.embedding)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_head_tests(name: str) -> None:
    model = model_of(MODELS[name], "config.json", name=name)

    assert (model.head is None) == ("bf16" in name)
    assert model.tied == ("tied" in name)
