"""Models and deployments drawn at random with a fixed seed, to compare plan's arithmetic with vLLM's own.

A case is a maker of models in `tests/plan/drawn.py`, how many GPUs share a layer, the type of the KV cache, other
options, and fields that replace those of the config.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from vpatch.plan import FULL, LINEAR
from vpatch.plan.deployment import FP8, NVFP4, PER_TOKEN_HEAD, TURBOQUANT

from tests.plan import drawn
from tests.plan.drawn import POSITIONS, SPARSE, STATEFUL, Maker, bailing, dense, hybrid, kimi, latent, zamba

SEED = 20_2026
DTYPES = ("auto", "bfloat16", *FP8, *TURBOQUANT)
NEWER = (*PER_TOKEN_HEAD, *NVFP4)
INT8, _, INT4 = PER_TOKEN_HEAD
RANKS = (1, 2, 4)
LENGTHS = (2048, 4000, 8192, 10_001, 32_768, 65_536, 131_072, 200_000, 262_144)
A100, ADA, HOPPER, BLACKWELL, CONSUMER = (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)
NEARLY_AS_MANY = ((2, 3), (7, 10), (10, 7), (9, 4))  # layers of each kind, about the ratio that decides on groups
ODD_SLOTS = {"num_hidden_layers": 12, "head_dim": 72}  # of 69 bytes, with 3 bits for keys and 4 for values
WITHOUT_STATES = {"num_hidden_layers": 3, "layer_types": ["attention"] * 3}  # as in Granite 4 micro
WIDE = {"head_dim": 256, "global_head_dim": 512}
# Pages of windows, of 3 heads of 256, do not divide into those of full attention, of one of 512.
UNEQUAL = WIDE | {"num_key_value_heads": 3, "num_attention_heads": 6}
UNEQUAL |= {"attention_k_eq_v": True, "num_global_key_value_heads": 1}


@dataclass
class Draw:
    """A config.json, engine arguments as vLLM names them, the bytes that a GPU has for its KV cache, and the GPU."""

    name: str
    config: dict[str, Any]
    arguments: dict[str, Any]
    budget: int
    capability: tuple[int, int] = HOPPER

    def __post_init__(self) -> None:
        """Note what the tests ask: whether it mixes attention with states, has windows or chunks, and its options."""
        kind, asked = str(self.config["model_type"]), self.arguments
        self.text: dict[str, Any] = self.config.get("text_config", self.config)
        self.hybrid = "qwen3_5" in kind or kind in ("qwen3_next", "kimi_linear", "zamba2", *STATEFUL)
        self.listed = kind == "nemotron_h" and "layers_block_type" in self.config
        self.windowed = bool(self.text.get("sliding_window") or self.text.get("attention_chunk_size"))
        self.dtype, self.stages = str(asked["kv_cache_dtype"]), int(asked["pipeline_parallel_size"])
        self.speculative = int(asked.get("speculative_config", {}).get("num_speculative_tokens", 0))


Case = tuple[Maker, int, Any, dict[str, Any], dict[str, Any]]


def draws() -> list[Draw]:
    """Return every draw. An option, or a type, that is a list is drawn of it, after the model."""
    random = Random(SEED)  # noqa: S311 - the same on every run

    def chosen(value: Any) -> Any:
        return random.choice(value) if isinstance(value, list) else value

    found = []
    for number, (make, heads, dtypes, options, more) in enumerate(_cases(random)):
        config, dtype = make(random, heads) | more, chosen(dtypes)
        known = {"ranks": heads, "batch": POSITIONS} | {name: chosen(value) for name, value in options.items()}
        found.append(_draw(random, number, config, dtype, **known))
    return found


def _cases(random: Random) -> Iterator[Case]:
    yield from _qwen_and_llama()
    for _ in range(25):  # all options at random; a release may refuse some of these
        ranks, heads, make = random.choice(RANKS), random.choice(RANKS), random.choice((hybrid, hybrid, dense))
        options = {"ranks": ranks, "stages": [1, 1, 2, 3], "tokens": [0, 0, 1, 3] if make is hybrid else 0}
        gpus = [A100, HOPPER, BLACKWELL, CONSUMER]
        yield make, heads, [*DTYPES], options | {"capability": gpus, "least": 20}, {}
    yield from _with_windows_and_states()
    yield from _with_latents()
    yield from _of_other_families()
    yield from _of_newer_types()


def _qwen_and_llama() -> Iterator[Case]:
    yield from ((make, ranks, dtype, {}, {}) for ranks in RANKS for dtype in DTYPES for make in (hybrid, dense))
    for tokens in (1, 2, 3):
        yield from ((hybrid, 1, dtype, {"tokens": tokens}, {}) for dtype in ("auto", "fp8", "turboquant_4bit_nc"))
    for dtype in ("auto", "turboquant_k8v4", "turboquant_3bit_nc"):
        yield from ((make, 1, dtype, {"stages": 2}, {}) for make in (hybrid, dense))
    for gpu in ((8, 6), ADA, CONSUMER):
        yield from ((hybrid, 1, dtype, {"capability": gpu}, {}) for dtype in ("auto", "turboquant_4bit_nc"))
    for dtype in ("turboquant_k8v4", "turboquant_3bit_nc"):
        for where in ({"stages": 2}, {"capability": BLACKWELL}):
            yield dense, 1, dtype, where, {"num_hidden_layers": 28, "head_dim": 128}
    for full, linear in NEARLY_AS_MANY:
        yield partial(hybrid, kinds=[FULL] * full + [LINEAR] * linear), 1, "auto", {}, {}
    yield dense, 1, "turboquant_k3v4_nc", {}, ODD_SLOTS


def _with_windows_and_states() -> Iterator[Case]:
    windowed, stateful = drawn.windowed, drawn.stateful
    yield from ((windowed, ranks, dtype, {"batch": 2048}, {}) for ranks in RANKS for dtype in ("auto", "fp8"))
    yield from ((windowed, 1, "auto", {"stages": 2, "batch": 8192}, {}) for _ in range(3))
    yield from ((partial(windowed, pattern=pattern), 1, "auto", {"batch": 512}, {}) for pattern in (1, 2, 4))
    some = ((1, "auto", True), (1, "fp8", False), (2, "auto", None), (4, "fp8", True))
    for kind in STATEFUL:
        yield from ((stateful(kind), ranks, dtype, {"cached": cached}, {}) for ranks, dtype, cached in some)
    yield from ((stateful(kind), 1, "turboquant_k8v4", {}, {}) for kind in STATEFUL)
    yield from ((stateful(kind), 1, "auto", {"stages": 2}, {}) for kind in STATEFUL)
    for tokens, dtype in ((1, "auto"), (3, "fp8")):
        for cached in (True, False):
            yield stateful("nemotron_h"), 1, dtype, {"tokens": tokens, "cached": cached}, {}
    for kind, states in (("nemotron_h", "float32"), ("granitemoehybrid", "float32"), ("jamba", "float16")):
        yield stateful(kind), 1, "auto", {"states": states}, {}


def _with_latents() -> Iterator[Case]:
    """Yield models with latent attention: each kind of GPU has kernels, and block sizes, of its own."""
    any_, gpus, types = latent(), (A100, ADA, HOPPER, BLACKWELL, CONSUMER), ("auto", "fp8")
    yield from ((any_, 1, dtype, {"capability": gpu}, {}) for gpu in gpus for dtype in types)
    yield from ((any_, ranks, dtype, {}, {}) for ranks in RANKS for dtype in ("auto", "fp8", "fp8_e5m2"))
    yield from ((latent("glm4_moe_lite"), 1, dtype, {"capability": BLACKWELL}, {}) for dtype in types)
    yield from ((latent(rank=448), 1, dtype, {"capability": gpu}, {}) for dtype in types for gpu in gpus[2:4])
    yield latent(rank=192), 1, "auto", {}, {}
    yield any_, 1, "turboquant_k8v4", {}, {"num_hidden_layers": 12}
    yield latent("deepseek_v2"), 1, "auto", {}, {"v_head_dim": 64}
    yield from ((any_, 1, dtype, {"stages": 2}, {}) for dtype in types)
    yield from ((latent("deepseek_v3"), 1, dtype, {"tokens": 1}, {}) for dtype in types)
    for kind in ("deepseek_v32", "glm_moe_dsa"):
        for ranks, gpu in ((1, HOPPER), (2, BLACKWELL)):
            for dtype in ("auto", "bfloat16", "fp8"):
                yield latent(kind, 512), ranks, dtype, {"capability": gpu}, SPARSE
    yield latent("deepseek_v32", 512), 1, "auto", {"stages": 2}, SPARSE
    yield latent("deepseek_v32", 512), 1, "fp8", {"tokens": 1}, SPARSE
    yield latent("deepseek_v32", 512), 1, "auto", {"capability": A100}, SPARSE


def _of_other_families() -> Iterator[Case]:
    made = drawn.made
    yield drawn.stateful("granitemoehybrid"), 1, "auto", {}, WITHOUT_STATES
    for ranks in (1, 4):
        for kind in ("qwen2_5_vl", "qwen3_vl", "gemma3", "ernie4_5_moe"):
            yield made(kind), ranks, "auto", {}, {}
    for kind in ("llama4", "gemma4_text", "cohere2", "exaone4"):
        for ranks, stages, dtype in ((1, 1, "auto"), (2, 1, "fp8"), (4, 1, "auto"), (1, 2, "auto")):
            yield made(kind), ranks, dtype, {"stages": stages, "batch": [512, 8192]}, {}
    for gpu in (A100, BLACKWELL, CONSUMER):
        yield made("gemma4_text"), 1, "auto", {"batch": 2048, "capability": gpu}, {}
    yield made("gemma4_text"), 1, "fp8", {"batch": 2048}, WIDE
    for ranks, dtype, tokens in ((1, "auto", 0), (2, "fp8", 0), (1, "auto", 1), (1, "turboquant_k8v4", 0)):
        yield drawn.nemotron, ranks, dtype, {"tokens": tokens}, {}
    for ranks in RANKS:
        yield from ((bailing, ranks, dtype, {}, {}) for dtype in ("auto", "fp8"))
        for make in (kimi, zamba):
            yield from ((make, ranks, "auto", {"cached": cached}, {}) for cached in (True, False))
            yield make, ranks, "fp8", {}, {}
    for make in (bailing, kimi, zamba):
        yield from ((make, 1, dtype, {"stages": 2}, {}) for dtype in ("auto", "fp8"))
        yield make, 1, "turboquant_k8v4", {}, {}
    for gpu in (A100, ADA, BLACKWELL, CONSUMER):
        yield from ((kimi, 1, dtype, {"capability": gpu}, {}) for dtype in ("auto", "fp8"))
    yield from ((kimi, 1, "auto", {"states": states}, {}) for states in ("float32", "bfloat16", "float16"))
    yield zamba, 1, "auto", {"states": "float32"}, {}


def _of_newer_types() -> Iterator[Case]:
    """Yield models with scales for each token and head, or for a few elements: not each GPU has kernels for them."""
    whole, there, made = {"head_dim": 128, "num_hidden_layers": 5}, {"capability": BLACKWELL}, drawn.made
    for dtype in NEWER:
        yield from ((make, ranks, dtype, there, {}) for ranks in RANKS for make in (hybrid, dense))
        for gpu in (A100, ADA, HOPPER, BLACKWELL, (10, 3), CONSUMER):
            yield dense, 1, dtype, {"capability": gpu}, whole
        yield hybrid, 1, dtype, there | {"tokens": 2}, {}
        yield latent(), 1, dtype, there, {}
    for size in (64, 80, 192, 256, 512):
        for dtype, gpu in ((INT4, BLACKWELL), ("nvfp4", BLACKWELL), ("nvfp4", CONSUMER)):
            yield dense, 1, dtype, {"capability": gpu}, whole | {"head_dim": size}
    for dtype, gpu in ((INT8, HOPPER), (INT4, (8, 6)), ("nvfp4", BLACKWELL), ("nvfp4", CONSUMER), ("nvfp4", HOPPER)):
        for kind, more in (("exaone4", {"head_dim": 128}), ("llama4", {"head_dim": 128}), ("gemma4_text", WIDE)):
            yield made(kind), 1, dtype, {"capability": gpu, "batch": 2048}, more
    for dtype, gpu in (("auto", A100), ("auto", HOPPER), ("auto", BLACKWELL), ("auto", CONSUMER), ("fp8", HOPPER)):
        yield made("gemma4_text"), 1, dtype, {"capability": gpu, "batch": 2048}, UNEQUAL
    for number, kind in enumerate(STATEFUL):
        yield from ((drawn.stateful(kind), 1, dtype, there, {}) for dtype in (NEWER[number % 3], "nvfp4"))
    yield from ((make, 1, INT8, there | {"stages": 2}, {}) for make in (hybrid, dense))


def _draw(
    random: Random,
    number: int,
    config: dict[str, Any],
    dtype: str,
    *,
    ranks: int,
    batch: int,
    stages: int = 1,
    tokens: int = 0,
    capability: tuple[int, int] = HOPPER,
    least: int = 29,
    cached: bool | None = None,
    states: str = "auto",
) -> Draw:
    parts = [str(number), config["model_type"], dtype, f"TP{ranks}"]
    parts += [f"PP{stages}"] * (stages > 1) + [f"MTP{tokens}"] * bool(tokens)
    parts += [states] * (states != "auto")
    parts += ["SM{}{}".format(*capability)] * (capability != HOPPER)
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
