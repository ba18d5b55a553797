"""Which steps of a hybrid model may replay a CUDA graph of decodes: those in which every row is a decode.

A row is a decode if the layers with a state treat it as one: it verifies drafts and has one more token or, where a
decode has one token, it goes on from a state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as V2ModelRunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def forced_uniform_decode(runner: GPUModelRunner, step: SchedulerOutput) -> bool | None:
    """Return False if a row of a hybrid model's step is no decode; None, and vLLM compares lengths as before.

    The runner must have prepared the inputs of the step: drafts and computed tokens are then those of its rows. With
    speculation the answer is that of the builders of metadata, which read the same buffer; only a step with drafts
    fills it.
    """
    rows = runner.input_batch.num_reqs
    if not runner.model_config.is_hybrid:
        return None
    if runner.uniform_decode_query_len == 1:
        decodes = runner.input_batch.num_computed_tokens_cpu[:rows] > 0
    elif step.scheduled_spec_decode_tokens:
        decodes = runner.num_decode_draft_tokens.np[:rows] >= 0
    else:
        return False
    return None if decodes.all() else False


def has_prompt(runner: V2ModelRunner, step: SchedulerOutput) -> bool:
    """Return whether a row of a hybrid model's step is no decode; its requests must be known to the runner."""
    states, drafts = runner.req_states, step.scheduled_spec_decode_tokens
    return bool(runner.model_config.is_hybrid) and any(
        tokens != 1 + len(drafts.get(name, ())) or states.num_computed_prefill_tokens[states.req_id_to_index[name]] == 0
        for name, tokens in step.num_scheduled_tokens.items()
    )
