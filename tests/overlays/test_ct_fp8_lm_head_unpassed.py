"""The heads of all models in a release: which get no quantization config, and which cannot be served in FP8."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vpatch_overlays.companions.ct_fp8_lm_head_models import READ_THEMSELVES
from vpatch_overlays.ct_fp8_lm_head import UNCOVERED

from tests.releases import RELEASES
from tests.tiers import deep, sampled

PARAMS = [*map(deep, sampled(RELEASES[:-1], 3)), RELEASES[-1]]

# Models whose heads have no name: one converts rerankers, one is tied, and one is uncovered.
UNNAMED = {"adapters.py", "nemotron_parse3_5_mtp.py", "diffusion_gemma.py"}
READS = re.compile(r"^\s*[^#\n]*\blm_head\.weight(?:\.dtype\)|\[|$)", re.MULTILINE)
READERS = {
    "inkling": {"InklingForCausalLM", "InklingForConditionalGeneration"},
    "muse_spark": {"MuseSparkForConditionalGeneration", *READ_THEMSELVES},
    "diffusion_gemma.py": {"DiffusionGemmaForBlockDiffusion"},
    "gemma4_mtp.py": set[str](),  # a draft with its own head, in the draft's width: `vpatch plan` knows targets only
}

NORMALIZES = re.compile(r"loaded_weight = \S*normalize\(")
NORMALIZERS = {
    "bailing_moe.py": {"BailingMoeForCausalLM"},
    "baichuan.py": {"BaichuanForCausalLM"},  # up to 0.24; of its two classes, the one with Baichuan 2
}
SUBCLASSES = {"BailingMoeV2ForCausalLM", "SarvamMoEForCausalLM"}


def heads(tree: Path) -> Iterator[tuple[Path, ast.Call]]:
    for file in tree.glob("vllm/**/models/**/*.py"):
        if "ParallelLMHead(" in (text := file.read_text()):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ParallelLMHead"):
                    yield file, node


@pytest.mark.parametrize("release", PARAMS)
def test_every_head_without_a_config_has_a_name(pristine: Callable[[str], Path], release: str) -> None:
    given = [(file, {keyword.arg for keyword in call.keywords}) for file, call in heads(pristine(release))]
    without = [(file, passed) for file, passed in given if "quant_config" not in passed]

    assert len(without) >= 28
    assert {file.name for file, passed in without if "prefix" not in passed} <= UNNAMED


@pytest.mark.parametrize("release", PARAMS)
def test_models_that_read_the_weight_of_their_head_are_listed_as_uncovered(
    pristine: Callable[[str], Path], release: str
) -> None:
    found = set()
    for folder in ("vllm/models", "vllm/model_executor/models"):
        for file in (pristine(release) / folder).glob("**/*.py"):
            if file.name != "adapters.py" and "lm_head.weight" in (text := file.read_text()) and READS.search(text):
                found.add(file.name if "model_executor" in str(file) else file.relative_to(pristine(release)).parts[2])

    assert found <= READERS.keys()
    assert set[str]().union(*READERS.values()) <= UNCOVERED.keys() | READ_THEMSELVES


@pytest.mark.parametrize("release", PARAMS)
def test_models_that_normalize_their_head_while_loading_are_listed_as_uncovered(
    pristine: Callable[[str], Path], release: str
) -> None:
    texts = {file: file.read_text() for file in pristine(release).glob("vllm/**/models/**/*.py")}
    found = {file.name for file, text in texts.items() if NORMALIZES.search(text)}
    classes = set[str]().union(*(NORMALIZERS[file] for file in found & NORMALIZERS.keys()))
    derived = {
        name
        for text in texts.values()
        for name, bases in re.findall(r"^class (\w+)\(([^)]*)\):", text, re.MULTILINE)
        if classes & set(re.split(r"\W+", bases))
    }

    assert {"bailing_moe.py"} <= found <= NORMALIZERS.keys()
    assert derived == SUBCLASSES
    assert classes | derived <= UNCOVERED.keys()


def test_nothing_else_is_listed_as_uncovered() -> None:
    named = set[str]().union(*READERS.values(), *NORMALIZERS.values(), SUBCLASSES)

    assert named == UNCOVERED.keys() | READ_THEMSELVES
