"""Plan reads from a config what the real vLLM builds from it, on the CPU and without memory for weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from vpatch.plan import FULL, LINEAR, SLIDING, Model
from vpatch.plan.checkpoint import read
from vpatch.plan.deployment import arithmetic_of, lengths
from vpatch.plan.weights import from_tensors

from tests.conftest import Trees
from tests.plan.configs import CONFIGS, write
from tests.plan.examples import weights_of
from tests.validation.cpu import environment
from tests.validation.cpu.comparison import one_first

RELEASES = one_first("0.33.0", ("0.20.2", "0.24.0"))
NOT_YET = {
    "Qwen3_5ForCausalLM": "0.27.0",  # registered from there on
    "Qwen3_5MoeForCausalLM": "0.27.0",
    "Mistral3ForConditionalGeneration": "0.28.0",  # before, the tower needs an older transformers
    "Ministral 3": "0.28.0",
    **dict.fromkeys((name for name in CONFIGS if name.startswith(("Gemma4", "Gemma 4"))), "0.28.0"),  # the config, too
}

Reads = Callable[[str], tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def reads(pristine: Trees, tmp_path_factory: pytest.TempPathFactory) -> Reads:
    @cache
    def run(release: str) -> tuple[Path, dict[str, Any]]:
        home = tmp_path_factory.mktemp("reads")
        write(home)
        python = environment.interpreter(release)
        return home, environment.probe(python, "read_configs", pristine(release), home)

    return run


def layers(model: Model, release: str) -> list[list[Any]]:
    """Return each layer as the probe prints it."""
    seen = model.window + (model.inclusive and arithmetic_of(Version(release)).includes_last)
    shapes: list[list[Any]] = []
    for kind in model.layers:
        if kind != LINEAR:
            attention = model.attention if kind == FULL else model.local or model.attention
            window = seen if kind == SLIDING else None
            shapes.append([attention.heads, attention.kv_heads, attention.head_size, window])
            continue
        linear = model.linear
        assert linear
        keys, values = linear.key_heads * linear.key_head_size, linear.value_heads * linear.value_head_size
        convolution = sorted((linear.conv_kernel - 1, 2 * keys + values))
        state = sorted((linear.value_heads, linear.value_head_size, linear.key_head_size))
        shapes.append([[convolution, state], [model.dtype, linear.state_dtype]])
    return shapes


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", CONFIGS)
def test_it_reads_what_vllm_builds(name: str, release: str, reads: Reads) -> None:
    home, all_found = reads(release)
    found = all_found[name]
    if release < NOT_YET.get(name, ""):
        assert "refused" in found
        return
    assert "refused" not in found, found
    model = read(home / name)

    assert not model.unknown
    assert layers(model, release) == found["layers"]
    assert {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "max_model_len": lengths(model, Version(release))[0],
        "dtype": model.dtype,
        "tied": model.tied,
        "experts": model.experts.count if model.experts else 0,
    } == {key: value for key, value in found.items() if key not in ("layers", "parameters")}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", CONFIGS)
def test_its_estimate_of_the_weights_is_close(name: str, release: str, reads: Reads) -> None:
    home, all_found = reads(release)
    if "refused" in all_found[name]:
        pytest.skip("this release does not have the architecture")
    model = read(home / name)
    estimate, built = weights_of(model), weights_of(from_tensors(model, all_found[name]["parameters"], ""))

    assert not estimate.exact
    for part in ("loaded", "embedding", "head"):
        # The estimate leaves out biases, norms of heads and float32 parameters.
        assert getattr(estimate, part) == pytest.approx(getattr(built, part), rel=0.0005), part
    assert estimate.layers == pytest.approx(built.layers, rel=0.0005)
    assert estimate.other == pytest.approx(built.other, abs=4096)  # a norm has a weight, a weight and a bias, or none
