"""Plan reads from a config what the real vLLM builds from it, on the CPU and without memory for weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from vpatch.plan import BOTH, FULL, KDA, LINEAR, MAMBA1, MLP, MOE, SLIDING, STATEFUL, Model
from vpatch.plan.architectures import KNOWN
from vpatch.plan.checkpoint import read
from vpatch.plan.defaults import lengths
from vpatch.plan.weights import from_tensors

from tests.conftest import Trees
from tests.plan.configs import CONFIGS, write
from tests.plan.examples import traits, weights_of
from tests.tiers import sampled
from tests.validation.cpu import environment

pytestmark = pytest.mark.deep

RELEASES = sampled(("0.33.0", "0.24.0", "0.20.2"), 2)
NOT_YET = {
    **{name: known.since for name, known in KNOWN.items() if known.since},
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
    seen = model.window + (model.inclusive and traits(release).includes_last)
    shapes: list[list[Any]] = []
    for kind in model.layers:
        if kind not in (LINEAR, MLP, MOE):
            attention = model.attention if kind in (FULL, BOTH) else model.local or model.attention
            window = seen if kind == SLIDING else None
            shapes.append([attention.heads, attention.kv_heads, attention.head_size, window])
        if kind in STATEFUL:
            shapes.append(state_of(model, release))
    # vLLM numbers the states of a Falcon-H1 after all attention layers.
    return sorted(shapes, key=len, reverse=True) if BOTH in model.layers else shapes


def state_of(model: Model, release: str) -> list[Any]:
    """Return the shapes of a state, each sorted, and their types, as the probe prints them."""
    state = model.state
    assert state
    recurrent = [state.heads, state.head_size, state.state_size]
    shapes = [sorted((state.kernel - 1, state.channels()))]
    dtypes = [model.dtype]
    if state.kind == KDA and release < "0.24":  # queries, keys and values have a convolution each
        shapes, dtypes = 3 * [sorted((state.kernel - 1, state.width))], 3 * dtypes
    if state.state_size:
        shapes.append(sorted(recurrent[::2] if state.kind == MAMBA1 else recurrent))
        dtypes.append(state.dtype or "float32")  # of each release that is tested
    return [shapes, dtypes]


def indexers(model: Model, release: str) -> int:
    """Return how many layers have an indexer, which each has in releases up to 0.23."""
    latent = model.attention.latent
    if not latent or not latent.index:
        return 0
    return len(model.layers) - (len(latent.shares) if release >= "0.24" else 0)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", CONFIGS)
def test_it_reads_what_vllm_builds(name: str, release: str, reads: Reads) -> None:
    home, all_found = reads(release)
    found = all_found[name]
    if release < NOT_YET.get(name, ""):
        assert "refused" in found
        return
    if release < "0.26" and found.get("refused") == "KeyError: 'linear_attention'":
        pytest.skip("the newest transformers names the kinds of a Granite 4's layers otherwise than this release")
    assert "refused" not in found, found
    model = read(home / name)
    if ", dense" in name:
        found = found | {"experts": 0}  # vLLM has the number in the config, and no layer with experts

    assert not model.unknown
    assert layers(model, release) == found["layers"]
    assert {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "max_model_len": lengths(model, traits(release))[0],
        "dtype": model.dtype,
        "tied": model.tied,
        "experts": model.experts.count if model.experts else 0,
        "indexers": indexers(model, release),
    } == {key: value for key, value in found.items() if key not in ("layers", "parameters")}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", CONFIGS)
def test_its_estimate_of_the_weights_is_close(name: str, release: str, reads: Reads) -> None:
    home, all_found = reads(release)
    if "refused" in all_found[name]:
        pytest.skip("this release does not have the architecture")
    model = read(home / name)
    if indexers(model, release) > indexers(model, "0.24"):
        pytest.skip("this release has more indexers than the checkpoint")
    estimate, built = weights_of(model), weights_of(from_tensors(model, all_found[name]["parameters"], ""))

    assert not estimate.exact
    for part in ("loaded", "embedding", "head"):
        # The estimate leaves out biases, norms of heads and float32 parameters.
        assert getattr(estimate, part) == pytest.approx(getattr(built, part), rel=0.0005), part
    assert estimate.layers == pytest.approx(built.layers, rel=0.0005)
    assert estimate.other == pytest.approx(built.other, abs=4096)  # a norm has a weight, a weight and a bias, or none
