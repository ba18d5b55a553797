"""What users see without an overlay: error messages are those of vLLM's sources, or of Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover
from vpatch.known.lines import MESSAGE

from tests.releases import FACTS, FIRST, fact, tree_of

SYMPTOMS = {item.id: item.overlay.symptoms for item in discover() if item.id in FACTS}
ERRORS = {item.id: item.overlay.errors for item in discover() if item.id in FACTS}
MESSAGES = [
    (name, text) for of in (SYMPTOMS, ERRORS) for name, texts in of.items() for text in texts if MESSAGE.match(text)
]

# By overlay, a release with the defect, and its file that has the error message.
RAISED = {
    "ct-fp8-lm-head": ("0.20.2", "vllm/model_executor/models/utils.py"),
    "turboquant-auto-dtype": ("0.26.0", "vllm/model_executor/layers/quantization/turboquant/config.py"),
    "turboquant-hybrid": ("0.20.2", "vllm/engine/arg_utils.py"),
    "turboquant-workspace": ("0.21.0", "vllm/v1/worker/workspace.py"),
}
# Where vLLM writes what shows that a line with many causes is an overlay's, as its source has it.
SIGNS = {
    "SpeculativeConfig(method": ("vllm/config/speculative.py", "SpeculativeConfig({method=}"),
    "attention page size is >= mamba page size": (
        "vllm/platforms/interface.py",
        "to ensure that attention page size is >= mamba page size.",
    ),
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)": (
        "vllm/v1/worker/gpu_model_runner.py",
        "Capturing CUDA graphs ({}, {})",
    ),
    "Capturing CUDA graphs (decode, FULL)": ("vllm/v1/worker/gpu_model_runner.py", '"decode" if uniform_decode else'),
    "Directly load AOT compilation": ("vllm/compilation/decorators.py", "Directly load AOT compilation from path"),
    "in _continuation_prefill": ("vllm/v1/attention/backends/turboquant_attn.py", "def _continuation_prefill("),
    "turboquant_attn.py": ("vllm/v1/attention/backends/turboquant_attn.py", ""),
}
BY_PYTHON = {"turboquant-skip-list": lambda: int("sliding_window")}


def texts(file: Path) -> Iterator[str]:
    """Yield every string of a module; "..." stands for the expressions in it."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else "..." for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_overlay_has_symptoms_and_a_probe() -> None:
    assert all(SYMPTOMS.values())
    assert all(item.overlay.probes for item in discover())
    assert {name for name, _ in MESSAGES} == {*RAISED, *BY_PYTHON}
    assert not [text for texts in SYMPTOMS.values() for text in texts if "`" in text or "\n" in text]
    sentences = {text for texts in SYMPTOMS.values() for text in texts} - {text for _, text in MESSAGES}
    assert all(text.endswith(".") for text in sentences)


@pytest.mark.parametrize(("overlay", "message"), [one for one in MESSAGES if one[0] in RAISED])
def test_a_message_is_in_the_sources(overlay: str, message: str) -> None:
    release, name = RAISED[overlay]
    file = tree_of(release) / name
    error, _, text = message.partition(": ")
    # What is in quotes, such as a file name, is a value in one run.
    words = [word for word in re.split(r"'[^']*'|\.\.\.", text) if word.strip()]
    said = re.compile(".*".join(map(re.escape, words)))

    assert fact(overlay, release) == "pending"
    assert len("".join(words)) > 30
    assert [one for one in texts(file) if said.search(one)]
    assert f"raise {error}(" in file.read_text()


def test_signs_are_in_the_sources() -> None:
    overlays = [item.overlay for item in discover()]

    assert {sign for overlay in overlays for sign in (*overlay.beside, *overlay.not_beside)} == {*SIGNS}
    for release in FIRST:
        lacking = [sign for sign, (file, text) in SIGNS.items() if text not in (tree_of(release) / file).read_text()]
        assert not lacking, release


@pytest.mark.parametrize("overlay", BY_PYTHON)
def test_a_message_is_pythons(overlay: str) -> None:
    with pytest.raises(ValueError, match="invalid literal") as raised:
        BY_PYTHON[overlay]()

    assert SYMPTOMS[overlay] == (f"ValueError: {raised.value}",)
