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
from tests.tiers import sampled

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


def heads(text: str) -> Iterator[set[str | None]]:
    """Yield the arguments that each construction of a head passes by name."""
    for node in ast.walk(ast.parse(text)) if "ParallelLMHead(" in text else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ParallelLMHead"):
            yield {keyword.arg for keyword in node.keywords}


@pytest.mark.deep
@pytest.mark.parametrize("release", [*sampled(RELEASES[:-1], 6), RELEASES[-1]])
def test_models_whose_heads_cannot_be_served_in_fp8_are_listed_as_uncovered(
    pristine: Callable[[str], Path], release: str
) -> None:
    """Those that read the weight of their head, or normalize it while loading."""
    texts = {file: file.read_text() for file in pristine(release).glob("vllm/**/models/**/*.py")}
    without = [(file, passed) for file in texts for passed in heads(texts[file]) if "quant_config" not in passed]
    reading = [file for file in texts if file.name != "adapters.py" and READS.search(texts[file])]
    normalizing = {file.name for file, text in texts.items() if NORMALIZES.search(text)}
    classes = set[str]().union(*(NORMALIZERS[file] for file in normalizing & NORMALIZERS.keys()))
    derived = {
        name
        for text in texts.values()
        for name, bases in re.findall(r"^class (\w+)\(([^)]*)\):", text, re.MULTILINE)
        if classes & set(re.split(r"\W+", bases))
    }

    assert len(without) >= 28
    assert {file.name for file, passed in without if "prefix" not in passed} <= UNNAMED
    names = {
        one.name if "model_executor" in str(one) else one.relative_to(pristine(release)).parts[2] for one in reading
    }
    assert names <= READERS.keys()
    assert {"bailing_moe.py"} <= normalizing <= NORMALIZERS.keys()
    assert derived == SUBCLASSES
    assert classes | derived <= UNCOVERED.keys()


def test_nothing_else_is_listed_as_uncovered() -> None:
    named = set[str]().union(*READERS.values(), *NORMALIZERS.values(), SUBCLASSES)

    assert named == UNCOVERED.keys() | READ_THEMSELVES
