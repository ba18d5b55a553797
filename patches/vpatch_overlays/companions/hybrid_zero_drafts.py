"""Decodes without drafts on hybrid models: they verify no drafts, and go on from the last one that was accepted.

Layers with a state read `num_decode_draft_tokens`: a row of -1 is no decode, or one without speculation; all others go
on from the state that the number of accepted tokens selects. So a decode without drafts is a row of 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def mark_zero_drafts(runner: GPUModelRunner, tokens: Any, *, verifies: bool) -> None:
    """Count decodes without drafts as rows of 0 drafts, on a hybrid model with speculation.

    Args:
        runner: with the requests of the step in its batch.
        tokens: an array of those that each request has in the step, of shape (requests,).
        verifies: whether a request has drafts; the runner has then counted those, and otherwise none.
    """
    if runner.speculative_config is None or not runner.model_config.is_hybrid:
        return
    batch, counts = runner.input_batch, runner.num_decode_draft_tokens.np
    rows = batch.num_reqs
    if not verifies:
        counts.fill(-1)
    decodes = batch.num_computed_tokens_cpu[:rows] >= batch.num_prompt_tokens[:rows]
    counts[:rows][decodes & (tokens[:rows] == 1) & (counts[:rows] < 0)] = 0
    runner.num_decode_draft_tokens.copy_to_gpu()


def has_zero_drafts(runner: GPUModelRunner) -> bool:
    """Return whether the step, whose inputs are prepared, has decodes that `mark_zero_drafts` has counted."""
    if runner.speculative_config is None or not runner.model_config.is_hybrid:
        return False
    return bool((runner.num_decode_draft_tokens.np[: runner.input_batch.num_reqs] == 0).any())


def mark_zero_drafts_v2(states: MambaHybridModelState, batch: InputBatch, counts: Any) -> None:
    """Count decodes without drafts as rows of 0 drafts: on the V2 model runner.

    Args:
        states: of the model.
        batch: the step.
        counts: an array of the drafts of each row, of shape (requests and padding,); -1 where the layers see none.
    """
    speculation = states.vllm_config.speculative_config
    if speculation is None:
        return
    rows, tokens = batch.num_reqs, batch.num_scheduled_tokens
    drafts = batch.num_draft_tokens_per_req
    decodes = ~batch.is_prefilling_np & (tokens > 0) & (tokens <= 1 + speculation.num_speculative_tokens)
    counts[:rows][decodes if drafts is None else decodes & (drafts == 0)] = 0
