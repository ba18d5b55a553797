"""Models from config.json files, most of them wrong."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vpatch.errors import Failure
from vpatch.plan import BOTH, CHUNKED, FULL, GIB, LINEAR, MLP, MOE, SLIDING, Attention
from vpatch.plan.checkpoint import model_of, read

from tests.failures import problem_of, problems_of
from tests.plan.configs import CONFIGS, named
from tests.plan.examples import weights_of
from tests.validation.cpu.models import CONFIGS as REAL

QWEN3 = named("Qwen3ForCausalLM")
QWEN3_5 = named("Qwen3_5MoeForConditionalGeneration")


def refused(config: dict[str, Any]) -> list[str]:
    """Return the reasons why a config is refused."""
    problems = problems_of(model_of, config, "config.json", name="made up")
    assert all(problem.where == "config.json" for problem in problems)
    return [f"{problem.what}: {problem.cause}" for problem in problems]


def text(**changed: Any) -> dict[str, Any]:
    """Return a Qwen3.5 with changes in its text config."""
    return QWEN3_5 | {"text_config": QWEN3_5["text_config"] | changed}


def test_a_hybrid_is_read_from_its_text_config() -> None:
    model = model_of(REAL["35B"], "config.json", name="35B")

    assert model.hybrid
    assert [index for index, kind in enumerate(model.layers) if kind == FULL] == list(range(3, 40, 4))
    assert model.attention == Attention(heads=16, kv_heads=2, head_size=256)
    assert model.state
    assert (model.state.heads, model.state.dtype) == (32, "float32")
    assert (model.draft_layers, model.tower is not None, model.unknown) == (1, True, ())


def test_an_audio_tower_weighs() -> None:
    config = named("Gemma4ForConditionalGeneration")
    heard, deaf = (
        weights_of(model_of(one, "", name="x")).vision
        for one in (config | {"audio_config": {"model_type": "gemma4_audio"}}, config)
    )

    assert heard - deaf == pytest.approx(0.57 * GIB, rel=0.02)


def test_a_folder_and_its_config_give_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "Some-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3))

    assert read(folder) == read(folder / "config.json")
    assert read(folder).name == "Some-Model"
    assert read(folder, name="else").name == "else"


GRANITE, NEMOTRON, KIMI = "GraniteMoeHybridForCausalLM", "NemotronHForCausalLM", "KimiLinearForCausalLM"
GLM = named("Glm4MoeForCausalLM")
LLAMA_4 = "Llama4ForConditionalGeneration"
BLOCKS = ["mamba", "hyena", "moe", "attention"]
MULTIPLE = "of which 32 heads are no multiple"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (QWEN3 | {"num_attention_heads": 0}, "num_attention_heads is 0, not 1 to 65,536"),
        (QWEN3 | {"hidden_size": -2048}, "hidden_size is -2048, not 1 to 16,777,216"),
        (QWEN3 | {"hidden_size": "2048"}, "hidden_size is a string, not a whole number"),
        (QWEN3 | {"num_hidden_layers": True}, "num_hidden_layers is true or false, not a whole number"),
        (QWEN3 | {"head_dim": 128.0}, "head_dim is 128.0"),
        (QWEN3 | {"vocab_size": [1]}, "vocab_size is a list, not a whole number"),
        (QWEN3 | {"num_key_value_heads": 5}, f"num_key_value_heads is 5, {MULTIPLE}"),
        (QWEN3 | {"num_key_value_heads": 64}, f"num_key_value_heads is 64, {MULTIPLE}"),
        (QWEN3 | {"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000, not 1 to 1,024"),
        (QWEN3 | {"num_hidden_layers": 10**4000}, "num_hidden_layers is a number of more than thirty digits, not 1 to"),
        (named("LlamaForCausalLM", hidden_size=16), "hidden_size leaves nothing for each of 32 heads"),
        (QWEN3 | {"architectures": "Qwen3ForCausalLM"}, "architectures is a string, not a list"),
        (QWEN3 | {"architectures": [1]}, "architectures is not a list of strings"),
        (QWEN3 | {"tie_word_embeddings": "no"}, "tie_word_embeddings is a string, not true or false"),
        (text(layer_types=[FULL]), "text_config.layer_types names 1 layers, num_hidden_layers says 4"),
        (text(num_experts_per_tok=300), "text_config.num_experts_per_tok is 300, of 256 experts"),
        (text(linear_num_value_heads=20), "text_config.linear_num_value_heads is 20, no multiple of 16 groups"),
        (text(mamba_ssm_dtype="int4"), "text_config.mamba_ssm_dtype is 'int4', not one of float32, bfloat16, float16"),
        (
            named(NEMOTRON, hybrid_override_pattern="MEM"),
            "hybrid_override_pattern is 'MEM', not 4 of the letters M * -",
        ),
        (
            named(NEMOTRON, hybrid_override_pattern=None),
            "hybrid_override_pattern is not there, nor is layers_bl",
        ),
        (named(NEMOTRON, layers_block_type=BLOCKS), "layers_block_type names layers of another kind: hyena"),
        (named(GRANITE, mamba_d_head=48), "mamba_n_heads is 128, which does not divide 4,096 channels as the config"),
        (QWEN3_5 | {"vision_config": [1]}, "vision_config is a list, not an object"),
        (QWEN3 | {"num_hidden_layers": None}, "missing key: num_hidden_layers"),
        ({"architectures": ["New"]}, "missing key: num_hidden_layers or n_layer or n_layers or num_layers"),
        (named("Gemma4ForCausalLM", num_hidden_layers=6, num_kv_shared_layers=2), "num_kv_shared_layers is 2, and"),
        (named(LLAMA_4, no_rope_layers=[0, 2]), "text_config.no_rope_layers is not a list of 4 times 0 or 1"),
        (named("GlmMoeDsaForCausalLM", index_topk_pattern=3), "index_topk_pattern is no text and no list"),
        # vLLM itself wants a head size of GLM.
        ({key: GLM[key] for key in GLM if key != "head_dim"}, "missing key: head_dim"),
    ],
    ids=range(29),
)
def test_an_impossible_config_is_refused(config: dict[str, Any], problem: str) -> None:
    line = problem if problem.startswith("missing") else f"wrong value: {problem}"

    assert any(one.startswith(line) for one in refused(config)), refused(config)


def test_every_problem_is_reported_at_once() -> None:
    assert len(refused(QWEN3 | {"num_hidden_layers": -1, "vocab_size": "x", "head_dim": 0})) == 3
    assert [one.partition(": ")[2] for one in refused({"architectures": ["New"]})] == [
        "num_hidden_layers or n_layer or n_layers or num_layers",
        "num_attention_heads or n_head or n_heads or num_heads",
        "hidden_size or n_embd or d_model or dim",
    ]


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "it is not JSON: "),
        (b"[]", "its JSON is a list, not an object"),
        (b"null", "its JSON is null, not an object"),
        (b"[" * 200_000, "it is not JSON: it nests more than 64 deep"),
        (b" " * 20_000_000, "it has 20,000,000 bytes, more than 16,777,216"),
    ],
    ids=range(5),
)
def test_a_file_without_a_config_is_refused(data: bytes, cause: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(data)
    problem = problem_of(read, tmp_path)

    assert (problem.what, problem.where) == ("cannot be read", str(tmp_path / "config.json"))
    assert problem.cause.startswith(cause)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (named("Qwen2ForCausalLM", sliding_window=1000, use_sliding_window=True), "a sliding window of 1,000 tokens"),
        (text(layer_types=[FULL, LINEAR, SLIDING, "mamba"]), "layers of another kind: mamba, sliding_attention"),
        (named("LlamaForCausalLM", attention_chunk_size=8192), "attention is chunked"),
        (
            REAL["Jamba"] | {"architectures": ["BambaForCausalLM"], "model_type": "bamba"},
            "what the layers of architecture 'BambaForCausalLM' keep",
        ),
        (named("Zamba2ForCausalLM", use_long_context=True), "positions are extended: use_long_context"),
        (named(KIMI, attn_res_block_size=4), "layers as in Kimi K3: attn_res_block_size"),
        (named(KIMI, mla_use_nope=False), "latent attention has rotary positions"),
        (named("DeepseekV3ForCausalLM", kv_lora_rank=None), "attention is not latent: kv_lora_rank is null"),
        (QWEN3 | {"architectures": None}, "what the layers of a config that names no architecture keep"),
    ],
    ids=range(9),
)
def test_what_is_not_modeled_is_named_and_bounded(config: dict[str, Any], reason: str) -> None:
    model = model_of(config, "config.json", name="some")

    assert len(model.unknown) == 1
    assert model.unknown[0].startswith(reason)
    assert set(model.layers) == {FULL}
    assert model.state is None


def test_layers_that_a_config_lists() -> None:
    chunks = [model_of(named(LLAMA_4, **text), "", name="x").layers for text in ({"no_rope_layers": [0, 1, 1, 0]}, {})]
    assert chunks == [(FULL, CHUNKED, CHUNKED, FULL), (CHUNKED, CHUNKED, CHUNKED, FULL)]

    latent = model_of(named("GlmMoeDsaForCausalLM", index_topk_pattern="FFSS"), "", name="x").attention.latent
    assert latent
    assert latent.shares == {2, 3}, "an indexer"


def test_bounds_take_the_largest_of_what_differs_by_layer() -> None:
    heads = {"n_head": 8, "num_key_value_heads": [2, 4, 1], "head_dim": 256, "global_head_dim": 512}
    lengths = {"seq_length": 9000, "max_position_embeddings": 7000}
    config = {
        "architectures": ["Gemma9ForCausalLM"],
        "text_config": {"num_layers": 3, "d_model": 100} | heads | lengths,
    }
    model = model_of(config, "config.json", name="bounds")

    assert model.attention == Attention(heads=8, kv_heads=4, head_size=512)
    assert (len(model.layers), model.hidden_size, model.max_position_embeddings) == (3, 100, 7000)


def test_bounds_without_a_length_take_what_vllm_takes() -> None:
    config = {"architectures": ["New"], "n_layers": 2, "num_heads": 6, "dim": 100}
    model = model_of(config, "config.json", name="new")

    assert (model.max_position_embeddings, model.attention) == (2048, Attention(6, 6, 17))


def test_the_text_config_of_a_text_model_in_another_is_found() -> None:
    inner = {key: value for key, value in QWEN3.items() if key != "architectures"}
    config = {"architectures": ["Omni"], "thinker_config": {"text_config": inner}}

    assert model_of(config, "config.json", name="omni").attention.heads == 32


@pytest.mark.parametrize(
    ("outer", "inner", "dtype"),
    [
        ({"dtype": "bfloat16"}, {}, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, {"dtype": "bfloat16"}, "float16"),
        ({"dtype": "float32"}, {}, "bfloat16"),
        ({}, {}, "bfloat16"),
        ({}, {"dtype": "float16"}, "float16"),
    ],
)
def test_the_dtype_is_the_one_that_vllm_takes(outer: dict[str, Any], inner: dict[str, Any], dtype: str) -> None:
    model = model_of(text(**inner) | outer, "config.json", name="dtype")

    assert model.state
    assert (model.dtype, model.state.dtype) == (dtype, dtype)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "auto", "re:(", FULL, "fp8"])
KEYS = st.sampled_from(["quant_method", "config_groups", "weights", "targets", "num_bits", "ignore", "0"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_value_of_a_key_gives_a_model_or_a_failure(data: st.DataObject) -> None:
    config = json.loads(json.dumps(CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))]))
    inner = config.get("text_config", config)
    keys = ["architectures", "text_config", "quantization_config", "dtype", "layer_types", "mlp_only_layers"]
    for key in data.draw(st.lists(st.sampled_from([*config, *inner, *keys]), max_size=4)):
        data.draw(st.sampled_from([config, inner]))[key] = data.draw(VALUES)

    model = None
    with contextlib.suppress(Failure):  # any other exception is a traceback
        model = model_of(config, "config.json", name="drawn")
    if model:
        assert model.attention.heads % model.attention.kv_heads == 0 or model.unknown
        assert set(model.layers) <= {FULL, LINEAR, SLIDING, CHUNKED, BOTH, MLP, MOE}
        assert model.weights is None or min(model.weights.layers) > 0
