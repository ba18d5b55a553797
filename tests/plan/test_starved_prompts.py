"""How many tokens a batch needs so that a long prompt goes on while others decode, by each release's own scheduler.

The part of vLLM's scheduler that cuts a hybrid model's chunk is run as it stands in the release; around it is what
`Scheduler.schedule` does of it: decodes first, then the prompt gets what is left of the batch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from vpatch.plan.cautions import cautions
from vpatch.plan.fit import fit, remedies
from vpatch.plan.verdict import plan

from tests.plan.examples import FOUR_BITS, deployment, hybrid
from tests.releases import FIRST, RELEASES, tiered, tree_of

SCHEDULER, SPECS = "vllm/v1/core/sched/scheduler.py", "vllm/v1/kv_cache_interface.py"
SPLIT = "_mamba_block_aligned_split"
NEEDED = ("get_mamba_prefill_checkpoint_position", "is_mamba_prefill_checkpoint_valid")
BLOCK, REQUESTS, LENGTH = 1056, 16, 10_000
Split = Callable[[Any, Any, int], int]


@cache
def split_of(release: str) -> Split:
    """Return the release's function that cuts a chunk of a prompt."""
    tree = tree_of(release)
    wanted = {SCHEDULER: (SPLIT,), SPECS: NEEDED}
    functions = [
        node
        for file, names in wanted.items()
        for node in ast.walk(ast.parse((tree / file).read_bytes()))
        if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    module = ast.fix_missing_locations(ast.Module([future, *functions], []))
    scope: dict[str, Any] = {}
    exec(compile(module, release, "exec"), scope)  # noqa: S102 - vLLM's own code
    return scope[SPLIT]  # type: ignore[no-any-return]


def scheduler(batch: int, *, drafts: int) -> SimpleNamespace:
    """Return what the function reads of a scheduler, in the mode that `plan` calls aligned."""
    return SimpleNamespace(
        block_size=BLOCK,
        hash_block_size=BLOCK,
        max_num_scheduled_tokens=batch,
        cache_config=SimpleNamespace(block_size=BLOCK),
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=0, max_num_batched_tokens=batch),
        use_eagle=drafts > 0,
        use_eagle_block_drop=drafts > 0,
        num_hash_lookahead_tokens=0,
        mamba_partial_cache_hit=False,
        mamba_fine_grained_prefix_cache=False,
        mamba_shared_prefix_checkpoint=False,
        mamba_has_prefill_checkpoint_blocks=False,
        mamba_prefill_checkpoint_alignment=None,
    )


def steps(release: str, batch: int, drafts: int) -> int | None:
    """Return how many steps a prompt takes while the other requests decode; None if a step gives it no token."""
    split, own = split_of(release), scheduler(batch, drafts=drafts)
    request = SimpleNamespace(
        num_computed_tokens=0, num_prompt_tokens=LENGTH, num_tokens=LENGTH, shared_prefix_boundary=0
    )
    left = batch - (REQUESTS - 1) * (1 + drafts)
    taken = 0
    while request.num_computed_tokens < LENGTH:
        chunk = split(own, request, min(LENGTH - request.num_computed_tokens, left))
        if chunk == 0:
            return None
        request.num_computed_tokens += chunk
        taken += 1
    return taken


@pytest.mark.parametrize("drafts", [0, 1, 3])
@pytest.mark.parametrize("release", tiered(RELEASES, first=FIRST))
def test_a_prompt_of_a_hybrid_model_goes_on(release: str, drafts: int) -> None:
    decodes = REQUESTS * (1 + drafts)

    assert steps(release, BLOCK, drafts) is None, "what plan advised: a block, of which decodes take a part"
    assert steps(release, BLOCK + decodes - 1 - 2 * (1 + drafts), drafts) is None
    assert steps(release, BLOCK + decodes, drafts) == -(-LENGTH // BLOCK)


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_plan_asks_for_as_much(drafts: int) -> None:
    model = hybrid(draft_layers=1)
    options: dict[str, Any] = {"kv_cache_dtype": FOUR_BITS, "max_num_seqs": REQUESTS, "enable_prefix_caching": True}

    def found(vllm: str, batch: int, **more: Any) -> tuple[bool, str]:
        asked = deployment(vllm, max_num_batched_tokens=batch, speculative_tokens=drafts, **{**options, **more})
        warned = {one.name: one.because for one in cautions(fit(model, asked))}
        starving = fit(model, asked).starves_prompts
        assert starving is ("starved-prompts" in warned)
        return starving, warned.get("starved-prompts", "")

    laid_out = fit(model, deployment("0.21.0", speculative_tokens=drafts, **options))
    block, least = laid_out.layout.block_size, laid_out.least_batch
    assert least == block + REQUESTS * (1 + drafts)
    starving, because = found("0.21.0", least - 1)
    assert starving
    assert because.endswith(
        f"--max-num-batched-tokens {least}, or --max-num-seqs {(least - 1 - block) // (1 + drafts)}"
    )
    assert not found("0.21.0", least)[0]
    assert not found("0.21.0", block, enable_prefix_caching=False)[0]
    assert not found("0.33.0", 512)[0], "of less than a block, later releases take any chunk"


@pytest.mark.parametrize("vllm", ["0.26.0", "0.33.0"])
def test_a_batch_that_is_left_to_vllm_has_room_for_a_block(vllm: str) -> None:
    """Block + requests x (1 + drafts), in place of a default that is too small; a batch that is given stays."""
    options: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "max_model_len": 8192}
    asked = deployment(vllm, "RTX PRO 6000", speculative_tokens=3, enable_prefix_caching=True, **options)
    left, given = (plan(hybrid(), asked, (), any_batch=free) for free in (True, False))
    block = left.fit.layout.block_size

    assert left.deployment.max_num_batched_tokens == block + 256 * 4 > 2048
    assert (left.fit.starves_prompts, left.problems) == (False, ())
    assert given.deployment.max_num_batched_tokens == 2048
    assert given.fit.starves_prompts


def test_no_remedy_is_a_batch_that_starves_prompts() -> None:
    asked = deployment("0.33.0", speculative_tokens=3, enable_prefix_caching=True, max_num_batched_tokens=200_000)
    options = dict(remedy.split() for remedy in remedies(fit(hybrid(), asked)) if " " in remedy)
    smaller = fit(hybrid(), replace(asked, max_num_batched_tokens=int(options["--max-num-batched-tokens"])))

    assert smaller.fits
    assert not smaller.starves_prompts
