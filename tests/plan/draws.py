"""Models and deployments drawn at random with a fixed seed, to compare plan's arithmetic with vLLM's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from vpatch.plan import FULL, LINEAR

from tests.plan.drawn import (
    EXPERTS,
    NAMES,
    POSITIONS,
    SMALL,
    SPARSE,
    STATEFUL,
    drawn,
    heads_of,
    latent,
    named,
    stateful,
)
from tests.plan.drawn_hybrids import cases
from tests.plan.newer_types import newer

SEED = 20_2026
FLOATS, FP8 = ("auto", "bfloat16"), ("fp8", "fp8_e4m3", "fp8_e5m2")
TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")
DTYPES = (*FLOATS, *FP8, *TURBOQUANT)
RANKS = (1, 2, 4)
LENGTHS = (2048, 4000, 8192, 10_001, 32_768, 65_536, 131_072, 200_000, 262_144)
NEARLY_AS_MANY = ((2, 3), (7, 10), (10, 7), (9, 4))  # layers of each kind, about the ratio that decides on groups
ODD_SLOTS = {"num_hidden_layers": 12, "head_dim": 72}  # of 69 bytes, with 3 bits for keys and 4 for values
WITHOUT_STATES = {"layer_types": ["attention"] * 3}  # as in Granite 4 micro


@dataclass(frozen=True)
class Draw:
    """A config.json, engine arguments as vLLM names them, the bytes that a GPU has for its KV cache, and the GPU."""

    name: str
    config: dict[str, Any]
    arguments: dict[str, Any]
    budget: int
    capability: tuple[int, int] = (9, 0)

    @property
    def hybrid(self) -> bool:
        """Whether it mixes attention with layers that keep a state."""
        kind = str(self.config["model_type"])
        return "qwen3_5" in kind or kind in ("qwen3_next", "kimi_linear", "zamba2", *STATEFUL)

    @property
    def listed(self) -> bool:
        """Whether it is a Nemotron-H whose layers are in a list."""
        return self.config["model_type"] == "nemotron_h" and "layers_block_type" in self.config

    @property
    def windowed(self) -> bool:
        """Whether layers have a sliding window or chunks."""
        return bool(self.text.get("sliding_window") or self.text.get("attention_chunk_size"))

    @property
    def latent(self) -> bool:
        """Whether it has multi-head latent attention."""
        return "kv_lora_rank" in self.text

    @property
    def text(self) -> dict[str, Any]:
        """The config of the language model."""
        return dict(self.config.get("text_config", self.config))

    @property
    def dtype(self) -> str:
        """The type of its KV cache."""
        return str(self.arguments["kv_cache_dtype"])

    @property
    def ranks(self) -> int:
        """How many GPUs share a layer."""
        return int(self.arguments["tensor_parallel_size"])

    @property
    def stages(self) -> int:
        """How many GPUs share the layers."""
        return int(self.arguments["pipeline_parallel_size"])

    @property
    def speculative(self) -> int:
        """Tokens of multi-token prediction."""
        return int(self.arguments.get("speculative_config", {}).get("num_speculative_tokens", 0))


def draws() -> list[Draw]:
    """Return every draw."""
    random = Random(SEED)  # noqa: S311 - the same on every run
    both = (_hybrid, _dense)
    found = [
        *(_draw(random, kind(random, ranks), dtype, ranks) for ranks in RANKS for dtype in DTYPES for kind in both),
        *(
            _draw(random, _hybrid(random, 1), dtype, tokens=tokens)
            for tokens in (1, 2, 3)
            for dtype in ("auto", "fp8", "turboquant_4bit_nc")
        ),
        *(
            _draw(random, kind(random, 1), dtype, stages=2)
            for dtype in ("auto", "turboquant_k8v4", "turboquant_3bit_nc")
            for kind in both
        ),
        *(
            _draw(random, _hybrid(random, 1), dtype, capability=capability)
            for capability in ((8, 6), (8, 9), (12, 0))
            for dtype in ("auto", "turboquant_4bit_nc")
        ),
        *(
            _draw(random, _dense(random, 1) | {"num_hidden_layers": 28, "head_dim": 128}, dtype, **where)
            for dtype in ("turboquant_k8v4", "turboquant_3bit_nc")
            for where in ({"stages": 2}, {"capability": (10, 0)})
        ),
        *(
            _draw(random, _hybrid(random, 1, [FULL] * full + [LINEAR] * linear), "auto")
            for full, linear in NEARLY_AS_MANY
        ),
        _draw(random, _dense(random, 1) | ODD_SLOTS, "turboquant_k3v4_nc"),
        *(_mixed(random) for _ in range(25)),
        *(
            _draw(random, _windowed(random, ranks), dtype, ranks, batch=2048)
            for ranks in RANKS
            for dtype in ("auto", "fp8")
        ),
        *(_draw(random, _windowed(random, 1), "auto", stages=2, batch=8192) for _ in range(3)),
        *(_draw(random, _windowed(random, 1, pattern), "auto", batch=512) for pattern in (1, 2, 4)),
        *(
            _draw(random, stateful(random, kind, ranks), dtype, ranks, cached=cached)
            for kind in STATEFUL
            for ranks, dtype, cached in ((1, "auto", True), (1, "fp8", False), (2, "auto", None), (4, "fp8", True))
        ),
        *(_draw(random, stateful(random, kind, 1), "turboquant_k8v4") for kind in STATEFUL),
        *(_draw(random, stateful(random, kind, 1), "auto", stages=2) for kind in STATEFUL),
        *(
            _draw(random, stateful(random, "nemotron_h", 1), dtype, tokens=tokens, cached=cached)
            for tokens, dtype in ((1, "auto"), (3, "fp8"))
            for cached in (True, False)
        ),
        *(
            _draw(random, stateful(random, kind, 1), "auto", states=states)
            for kind, states in (("nemotron_h", "float32"), ("granitemoehybrid", "float32"), ("jamba", "float16"))
        ),
        *_with_latents(random),
        _draw(random, stateful(random, "granitemoehybrid", 1) | {"num_hidden_layers": 3} | WITHOUT_STATES, "auto"),
        *(
            _draw(random, _made(random, ranks, kind), "auto", ranks)
            for ranks in (1, 4)
            for kind in ("qwen2_5_vl", "qwen3_vl", "gemma3", "ernie4_5_moe")
        ),
        *(
            _draw(random, _made(random, ranks, kind), dtype, ranks, stages=stages, batch=random.choice((512, 8192)))
            for kind in ("llama4", "gemma4_text", "cohere2", "exaone4")
            for ranks, stages, dtype in ((1, 1, "auto"), (2, 1, "fp8"), (4, 1, "auto"), (1, 2, "auto"))
        ),
        *(
            _draw(random, _made(random, 1, "gemma4_text"), "auto", batch=2048, capability=capability)
            for capability in ((8, 0), (10, 0), (12, 0))
        ),
        _draw(random, _made(random, 1, "gemma4_text") | {"head_dim": 256, "global_head_dim": 512}, "fp8", batch=2048),
        *(_draw(random, kind(random, ranks), dtype, ranks, **more) for kind, ranks, dtype, more in cases()),
        *_of_newer_types(random),
    ]
    return [replace(draw, name=f"{number} {draw.name}") for number, draw in enumerate(found)]


def _mixed(random: Random) -> Draw:
    """Draw all options at random; a release may refuse some of these."""
    ranks, heads = random.choice(RANKS), random.choice(RANKS)
    kind = random.choice((_hybrid, _hybrid, _dense))
    return _draw(
        random,
        kind(random, heads),
        random.choice(DTYPES),
        ranks,
        stages=random.choice((1, 1, 2, 3)),
        tokens=random.choice((0, 0, 1, 3)) if kind is _hybrid else 0,
        capability=random.choice(((8, 0), (9, 0), (10, 0), (12, 0))),
        least=20,
    )


def _draw(
    random: Random,
    config: dict[str, Any],
    dtype: str,
    ranks: int = 1,
    *,
    stages: int = 1,
    tokens: int = 0,
    capability: tuple[int, int] = (9, 0),
    least: int = 29,
    batch: int = POSITIONS,
    cached: bool | None = None,
    states: str = "auto",
) -> Draw:
    parts = [config["model_type"], dtype, f"TP{ranks}"]
    parts += [f"PP{stages}"] * (stages > 1) + [f"MTP{tokens}"] * bool(tokens)
    parts += [states] * (states != "auto")
    parts += ["SM{}{}".format(*capability)] * (capability != (9, 0))
    arguments = {
        "kv_cache_dtype": dtype,
        "max_model_len": random.choice(LENGTHS),
        "enable_prefix_caching": random.random() < 0.6 if cached is None else cached,
        # As a rule so many that no block is longer, which vLLM refuses, and which is not compared here.
        "max_num_batched_tokens": batch,
        "max_num_seqs": 64,
        "tensor_parallel_size": ranks,
        "pipeline_parallel_size": stages,
    }
    if "text_config" in config:
        arguments["language_model_only"] = True
    if states != "auto":
        arguments["mamba_ssm_cache_dtype"] = states
    if tokens:
        arguments["speculative_config"] = {"method": "mtp", "num_speculative_tokens": tokens}
    return Draw(" ".join(parts), config, arguments, int(2 ** random.uniform(least, 36)), capability)


def _windowed(random: Random, ranks: int, pattern: int = 0) -> dict[str, Any]:
    """Draw a model of which each `pattern`-th layer has full attention; 1: none has it, as in old Mistrals."""
    kind = "mistral" if pattern == 1 else random.choice(("gemma2", "gemma3_text", "gpt_oss"))
    layers, pattern = random.choice((6, 8, 13, 24)), pattern or random.choice((2, 3, 6))
    if kind == "gpt_oss":  # vLLM does not read its `layer_types`
        pattern = 2
    kinds = ["sliding_attention" if (index + 1) % pattern else FULL for index in range(layers)]
    heads = heads_of(random, ranks)
    text = (
        SMALL
        | heads
        | {"model_type": kind, "architectures": [NAMES[kind]], "num_hidden_layers": layers, "dtype": "bfloat16"}
        | {"head_dim": random.choice((64, 128)), "sliding_window": random.choice((128, 512, 1024, 4096))}
    )
    text |= {"hidden_size": 8 * heads["num_attention_heads"]}  # transformers wants a multiple
    if kind == "gpt_oss":
        text |= {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 64}
    return text if kind == "mistral" else text | {"layer_types": kinds}


def _with_latents(random: Random) -> list[Draw]:
    """Draw models with latent attention: each kind of GPU has kernels, and block sizes, of its own."""
    gpus = ((8, 0), (8, 9), (9, 0), (10, 0), (12, 0))
    return [
        *(_draw(random, latent(random), dtype, capability=gpu) for gpu in gpus for dtype in ("auto", "fp8")),
        *(_draw(random, latent(random), dtype, ranks) for ranks in RANKS for dtype in ("auto", "fp8", "fp8_e5m2")),
        *(_draw(random, latent(random, kind="glm4_moe_lite"), dtype, capability=(10, 0)) for dtype in ("auto", "fp8")),
        *(_draw(random, latent(random, 448), dtype, capability=gpu) for dtype in ("auto", "fp8") for gpu in gpus[2:4]),
        _draw(random, latent(random, 192), "auto"),
        _draw(random, latent(random) | {"num_hidden_layers": 12}, "turboquant_k8v4"),
        _draw(random, latent(random, kind="deepseek_v2") | {"v_head_dim": 64}, "auto"),
        *(_draw(random, latent(random), dtype, stages=2) for dtype in ("auto", "fp8")),
        *(_draw(random, latent(random, kind="deepseek_v3"), dtype, tokens=1) for dtype in ("auto", "fp8")),
        *(
            _draw(random, latent(random, 512, kind) | SPARSE, dtype, ranks, capability=gpu)
            for kind in ("deepseek_v32", "glm_moe_dsa")
            for ranks, gpu in ((1, (9, 0)), (2, (10, 0)))
            for dtype in ("auto", "bfloat16", "fp8")
        ),
        _draw(random, latent(random, 512, "deepseek_v32") | SPARSE, "auto", stages=2),
        _draw(random, latent(random, 512, "deepseek_v32") | SPARSE, "fp8", tokens=1),
        _draw(random, latent(random, 512, "deepseek_v32") | SPARSE, "auto", capability=(8, 0)),
    ]


def _of_newer_types(random: Random) -> list[Draw]:
    made = {"hybrid": _hybrid, "dense": _dense}

    def config(kind: str, ranks: int) -> dict[str, Any]:
        if kind == "latent":
            return latent(random)
        return made[kind](random, ranks) if kind in made else _other(random, ranks, kind)

    return [_draw(random, config(kind, ranks) | more, dtype, ranks, **how) for kind, ranks, more, dtype, how in newer()]


def _other(random: Random, ranks: int, kind: str) -> dict[str, Any]:
    return stateful(random, kind, ranks) if kind in STATEFUL else _made(random, ranks, kind)


def _made(random: Random, ranks: int, kind: str) -> dict[str, Any]:
    """Draw a model with windows of another kind, or with a vision tower, which is not loaded."""
    heads = heads_of(random, ranks)
    text = SMALL | heads | {"dtype": "bfloat16", "hidden_size": 64 * heads["num_attention_heads"]}
    return named(kind, text | drawn(random, ranks, kind))


def _hybrid(random: Random, ranks: int, kinds: Sequence[str] = ()) -> dict[str, Any]:
    kind = random.choice(("qwen3_5", "qwen3_5_moe", "qwen3_next"))
    interval = random.choice((2, 3, 4, 4, 5))
    layers = random.choice((6, 8, 11, 13, 18, 24, 30))
    kinds = kinds or [FULL if (index + 1) % interval == 0 else LINEAR for index in range(layers)]
    key_heads = ranks * random.choice((1, 2, 4))
    text = (
        SMALL
        | heads_of(random, ranks)
        | {
            "model_type": kind if kind == "qwen3_next" else f"{kind}_text",
            "num_hidden_layers": len(kinds),
            "layer_types": list(kinds),
            "full_attention_interval": interval,
            "head_dim": random.choice((64, 128, 192, 256)),
            "linear_num_key_heads": key_heads,
            "linear_num_value_heads": key_heads * random.choice((1, 2, 3)),
            "linear_key_head_dim": random.choice((64, 128, 128)),
            "linear_value_head_dim": random.choice((64, 128, 128)),
            "linear_conv_kernel_dim": random.choice((2, 4, 4)),
            "mamba_ssm_dtype": random.choice(("float32", "float32", "bfloat16")),
            "dtype": "bfloat16",
        }
    )
    if kind != "qwen3_5":
        text |= EXPERTS | {"shared_expert_intermediate_size": 64}
    if kind == "qwen3_next":
        return text | {"architectures": [NAMES[kind]]}
    text["mtp_num_hidden_layers"] = 1
    return {
        "architectures": [NAMES[kind]],
        "model_type": kind,
        "text_config": text,
        "vision_config": {"model_type": kind},
    }


def _dense(random: Random, ranks: int) -> dict[str, Any]:
    kind = random.choice(("qwen3", "llama"))
    heads = heads_of(random, ranks)
    return (
        SMALL
        | heads
        | {
            "hidden_size": 8 * heads["num_attention_heads"],
            "architectures": [NAMES[kind]],
            "model_type": kind,
            "num_hidden_layers": random.choice((2, 3, 4, 5, 12, 17, 28)),
            "head_dim": random.choice((64, 72, 80, 96, 128, 256)),
            "dtype": random.choice(("bfloat16", "bfloat16", "float16")),
        }
    )
