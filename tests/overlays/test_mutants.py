"""Drawn changes of the modules that overlays touch: each is patched correctly or refused, never an exception.

Of renames and overrides, docs/mutants.md counts many more.
"""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
from vpatch.core.judge import judge
from vpatch.core.marks import mark
from vpatch.core.verdict import State
from vpatch.core.workspace import Workspace

from tests.engines import over
from tests.overlays.hostile import File, Release, run_release
from tests.overlays.mutants import KINDS, STATEMENTS, Mutant, Mutator, mutants, places
from tests.releases import tree_of
from tests.tiers import WHOLE, sampled

pytestmark = pytest.mark.no_cover  # other tests cover the same code; coverage doubles the time

FIRST = "vllm/platforms/interface.py"
LAYERS = "vllm/model_executor/layers"
FILES = (
    f"{LAYERS}/quantization/compressed_tensors/compressed_tensors.py",
    "vllm/v1/attention/backends/turboquant_attn.py",
    "vllm/engine/arg_utils.py",
    "vllm/v1/worker/gpu_model_runner.py",
    f"{LAYERS}/vocab_parallel_embedding.py",
    "vllm/v1/core/kv_cache_coordinator.py",
    f"{LAYERS}/mamba/gdn_linear_attn.py",
    "vllm/v1/attention/backends/gdn_attn.py",
    "vllm/v1/worker/mamba_utils.py",
    f"{LAYERS}/mamba/ops/causal_conv1d.py",
    "vllm/v1/core/sched/scheduler.py",
)
EACH, MANY = 2, 40
"""Mutants of each kind in each file."""

Hold = Callable[[File, Mutant, Path], str]
release = cache(partial(Release, tree_of("0.20.2")))


def statements(text: str) -> Counter[str]:
    """Count the simple statements of a module, regardless of their order."""
    return Counter(ast.dump(place.node) for place in places(ast.parse(text).body) if not hasattr(place.node, "body"))


def merged(folder: Path, *texts: str) -> str | None:
    """Return a file with the changes of two versions to a third, which comes second; None if they conflict."""
    for number, text in enumerate(texts):
        (folder / str(number)).write_text(text)
    ran = subprocess.run(["git", "merge-file", "-p", "0", "1", "2"], cwd=folder, capture_output=True, check=False)
    return None if ran.returncode else ran.stdout.decode()


def is_about(file: File, mutant: Mutant, because: str) -> bool:
    """Whether the code that a refusal quotes has a name in the lines that the mutation changed."""
    lines = difflib.unified_diff(file.text.splitlines(), mutant.text.splitlines(), n=0)
    changed, quoted = " ".join(line[1:] for line in lines), " ".join(re.findall(r"`([^`]*)`", because))
    return not {*re.findall(r"[^\W\d]\w*", changed)}.isdisjoint(re.findall(r"[^\W\d]\w*", quoted))


def outcome(file: File, mutant: Mutant, folder: Path) -> str:
    """Apply a file's overlays to a mutant, and hold what becomes of it."""
    refused, result, because = release().outcome(file, mutant.text)
    twin = merged(folder, file.patched, file.text, mutant.text)
    if refused:
        never = mutant.kind == "literal" and " never runs: " in because  # as in `while False`
        assert mutant.fate != "applies" or never or is_about(file, mutant, because), because
        return "drifted"
    assert mutant.fate != "drifts"
    compile(result, mutant.file, "exec", dont_inherit=True)
    if mutant.fate == "applies":
        made = statements(file.patched)
        made.subtract(statements(file.text))
        made.update(statements(mutant.text))
        assert +made == statements(result)
        assert twin is None or ast.dump(ast.parse(twin)) == ast.dump(ast.parse(result))
    return "applied"


def after(file: File, mutant: Mutant, _: Path) -> str:
    """Hold what becomes of a mutant of the patched file: it is applied only if every added statement is left."""
    made = file.engine.plan(release().read).files
    states = {verdict.state for verdict in release().plan(file, mutant.text, made).before}
    assert not states & {State.MERGED, State.NOT_APPLICABLE}
    known = mutant.fate == "drifts" or (mutant.fate == "either" and mutant.kind in STATEMENTS)
    if states == {State.APPLIED} and known:
        assert statements(file.patched) - statements(file.text) <= statements(mutant.text)
        for item in file.items:
            assert mutant.text.count(mark(item.id)) >= file.patched.count(mark(item.id))
    return "applied" if states == {State.APPLIED} else "drifted"


def mutator(file: File, text: str) -> Mutator:
    """Return the mutator of a file with this text, and with what its overlays' edits find there."""
    files = Workspace(over({file.name: text.encode()}, release().read))
    found = [pair for item in file.items for part in judge(item, files).parts for pair in part.findings]
    return Mutator(files.source(file.name), found)


@pytest.mark.deep
@pytest.mark.parametrize("hold", [outcome, after])
@pytest.mark.parametrize("name", [FIRST, *sampled(FILES, 5)])
def test_a_mutant_is_patched_as_the_release_is_or_drifts(hold: Hold, name: str, tmp_path: Path) -> None:
    (file,) = (file for file in release().files if file.name == name)
    mutated = mutator(file, file.patched if hold is after else file.text)
    outcomes, failures = Counter[tuple[str, str]](), []
    for mutant in mutants(mutated, MANY if WHOLE else EACH, seed=20):
        try:
            outcomes[mutant.kind, hold(file, mutant, tmp_path)] += 1
        except Exception as error:
            failures.append(f"{mutant}: {type(error).__name__}: {str(error)[:300]}")

    assert not failures, "\n".join(failures)
    assert {kind for kind, _ in outcomes} == set(KINDS)
    assert {how for _, how in outcomes} >= {"applied", *(["drifted"] if hold is outcome else [])}


@pytest.mark.deep
@pytest.mark.parametrize("version", sampled(["0.20.2", "0.24.0", "0.33.0"], 3))
def test_renames_and_overrides(version: str) -> None:
    count = 36
    results, _ = run_release(version, count, seed=2)

    assert [f"{r.kind}, {r.what}: {r.wrong}" for r in results if r.wrong] == []
    assert len(results) >= 0.9 * count
    assert min(Counter(result.refused for result in results).values()) >= len(results) / 4
    assert len({result.kind for result in results}) >= 15
