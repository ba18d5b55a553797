"""vLLM's newest tests of quantized language model heads on every release, on stock and patched code.

`python -m tests.validation.cpu.validation` writes its part of docs/validation.md; with releases as arguments, it
prints theirs.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.blocks import put
from tests.paths import ROOT
from tests.releases import RELEASES, tree_of
from tests.validation.cpu import upstream
from tests.validation.cpu.comparison import Comparison
from tests.validation.cpu.environment import interpreter
from tests.validation.cpu.trees import patched_tree

DOCUMENT = ROOT / "docs/validation.md"
OVERLAY = "ct-fp8-lm-head"
NEWEST = RELEASES[-1]
FILES = (
    "tests/kernels/core/test_vocab_parallel_embedding.py",
    "tests/kernels/quantization/test_quantized_embedding.py",
    "tests/model_executor/model_loader/test_weight_tying.py",
    "tests/model_executor/test_eagle_quantization.py",
    "tests/model_executor/test_qwen3_5_quantization.py",
    "tests/quantization/test_compressed_tensors.py",
    "tests/quantization/test_lm_head.py",
    "tests/v1/sample/test_head_dtype.py",
    "tests/v1/worker/test_gpu_draft_lm_head.py",
)

Cases = dict[str, upstream.Case]


def compared(release: str) -> Comparison:
    return Comparison(_cases(release, tree_of(release)), _cases(release, patched_tree(release, OVERLAY)))


def changes(found: Comparison) -> list[str]:
    """Return the tests with another outcome on the patched tree, as "test: outcome -> outcome"."""
    names = sorted(found.stock.keys() | found.patched.keys())
    outcomes = {name: [_outcome(cases, name) for cases in found] for name in names}
    return [f"`{name}`: {before} -> {after}" for name, (before, after) in outcomes.items() if before != after]


def row(release: str, found: Comparison) -> str:
    """Return a release's row: how many tests passed, failed, were skipped, and could not run."""
    return f"| {release} | {' | '.join(map(_counts, found))} |"


def document(found: dict[str, Comparison]) -> str:
    differing = [f"- {release}: {change}" for release, one in found.items() for change in changes(one)]
    return "\n".join(
        [
            "## Upstream's own tests, stock beside patched",
            "",
            f"`{OVERLAY}`, on the CPU: the tests of vLLM {NEWEST} for language model heads and compressed tensors,",
            "unchanged, from its source distribution, on the code of each release.",
            "",
            "Each cell counts the tests that passed, failed, could not run (an import or a fixture is missing), and",
            "were skipped. vLLM 0.20.2 runs with the packages of the newest releases, which it accepts; the other",
            "releases before 0.24 run with transformers 4 and without fastapi.",
            "`python -m tests.validation.cpu.validation` writes this part.",
            "",
            "| vLLM | stock | patched |",
            "|---|---|---|",
            *(row(release, one) for release, one in found.items()),
            "",
            "### What the overlay changes",
            "",
            *(differing or ["Nothing."]),
            "",
        ]
    )


def main(*releases: str) -> None:
    """Run the tests on the releases; if on all of them, write this part of the document."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = dict(zip(releases or RELEASES, pool.map(compared, releases or RELEASES), strict=True))
    if releases:
        sys.stdout.write(document(found))
    else:
        DOCUMENT.write_text(put(DOCUMENT.read_text(), "cpu", document(found)))


def _cases(release: str, tree: Path) -> Cases:
    files = [upstream.fetch(NEWEST, file) for file in FILES]
    with tempfile.TemporaryDirectory() as home:
        return {case.name: case for case in upstream.cases(interpreter(release), files, tree, Path(home))}


def _outcome(cases: Cases, name: str) -> str:
    return cases[name].outcome if name in cases else "-"


def _counts(cases: Cases) -> str:
    counted = Counter(case.outcome for case in cases.values())
    return ", ".join(str(counted[outcome]) for outcome in ("passed", "failure", "error", "skipped"))


if __name__ == "__main__":
    main(*sys.argv[1:])
