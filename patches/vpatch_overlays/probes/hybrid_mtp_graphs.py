"""Whether a step of a hybrid model replays the `FULL` CUDA graph of decodes, on the code of both model runners."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from vpatch_overlays.probes.bare import expect, settle
from vpatch_overlays.probes.statements import holding, run

DRAFTS = 3


@dataclass(frozen=True)
class Row:
    """A request of a step, in tokens."""

    tokens: int
    drafts: int = 0
    computed: int = 0
    """Before the step, of prompt and answer."""
    prompt: int = 8


VERIFIES = Row(1 + DRAFTS, DRAFTS, computed=8)
DECODES = Row(1, computed=8)
STEPS: Mapping[str, tuple[int, Sequence[Row], bool]] = {
    "decodes that verify drafts": (DRAFTS, [VERIFIES] * 2, True),
    "a prompt as long as a decode with drafts": (DRAFTS, [Row(1 + DRAFTS, prompt=1 + DRAFTS)], False),
    "a last chunk as long as a decode, beside one": (DRAFTS, [VERIFIES, Row(1 + DRAFTS, computed=4)], False),
    "decodes without speculation": (0, [DECODES] * 2, True),
    "a prompt of one token beside a decode": (0, [DECODES, Row(1, prompt=1)], False),
}
"""By name: drafts of a step, its rows, and whether the graph of decodes is right for it."""

FILLS = holding("self.num_decode_draft_tokens.np", ast.If)
DECIDES = holding("self._determine_batch_execution_and_padding(", ast.Assign)


def main() -> None:
    """Ask both runners for each step."""
    settle()
    runners: Mapping[str, Callable[..., bool | None]] = {"V1": replays_on_v1, "V2": replays_on_v2}
    for runner, replays in runners.items():
        for name, (drafts, rows, right) in STEPS.items():
            found = replays(rows, drafts)
            if found is not None:
                expect(f"a graph of decodes, on the {runner} runner, for {name}", right, found)


def replays_on_v1(rows: Sequence[Row], drafts: int, *, hybrid: bool = True, forced: bool | None = None) -> bool:
    """Return whether the V1 runner takes a step for one of decodes.

    Args:
        rows: the step's requests.
        drafts: as many as `num_speculative_tokens`.
        hybrid: whether layers of the model keep a state.
        forced: make a dummy run, which says what it is.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    kind, taken = GPUModelRunner, []
    tokens = _numbers([row.tokens for row in rows])
    batch = MagicMock(num_reqs=len(rows), req_id_to_index={str(at): at for at in range(len(rows))})
    batch.num_computed_tokens_cpu = _numbers([row.computed for row in rows])
    batch.num_prompt_tokens = _numbers([row.prompt for row in rows])
    runner = MagicMock(input_batch=batch, uniform_decode_query_len=1 + drafts, lora_config=None)
    # What a step before left in the buffer, all of whose rows were decodes.
    runner.num_decode_draft_tokens.np = _numbers([drafts] * 16)
    runner.model_config = SimpleNamespace(is_hybrid=hybrid, is_encoder_decoder=False)
    runner.vllm_config.parallel_config.data_parallel_size = 1
    runner.compilation_config.pass_config.enable_sp = False
    runner._pad_for_sequence_parallelism = lambda count: count
    runner._is_uniform_decode = kind._is_uniform_decode

    def dispatch(**given: Any) -> Any:
        taken.append(given["uniform_decode"])
        return MagicMock(), MagicMock(num_tokens=int(tokens.sum()))

    runner.cudagraph_dispatcher.dispatch = dispatch
    runner._determine_batch_execution_and_padding = decide = partial(
        kind._determine_batch_execution_and_padding, runner
    )
    step = _step(rows)
    names: dict[str, Any] = {
        "self": runner, "scheduler_output": step, "num_reqs": len(rows), "num_scheduled_tokens": tokens,
        "num_scheduled_tokens_np": tokens, "max_num_scheduled_tokens": int(tokens.max()),
        "num_tokens_unpadded": int(tokens.sum()), "cascade_attn_prefix_lens": None,
        "use_spec_decode": bool(step.scheduled_spec_decode_tokens),
    }  # fmt: skip
    if forced is None:
        run(kind._prepare_inputs, FILLS, names)
        run(kind.execute_model, DECIDES, names)
    else:
        sizes = int(tokens.sum()), len(rows), tokens, int(tokens.max())
        decide(*sizes, use_cascade_attn=False, force_uniform_decode=forced)
    return bool(taken[0])


def replays_on_v2(rows: Sequence[Row], drafts: int, *, hybrid: bool = True, dummy_run: bool = False) -> bool | None:
    """Return whether the V2 runner takes a step for one of decodes; None if it has no hybrid models."""
    if not find_spec("vllm.v1.worker.gpu.model_states.mamba_hybrid"):
        return None
    from vllm.v1.worker.gpu import model_runner as module

    class Decided(Exception):
        """Carries the number of tokens that each request has, in a step of decodes."""

    def dispatch(_manager: Any, _rows: int, _tokens: int, uniform: int | None, *_: Any, **__: Any) -> None:
        raise Decided(uniform)

    states = MagicMock(req_id_to_index={} if dummy_run else {str(at): at for at in range(len(rows))})
    computed = _numbers([min(row.computed, row.prompt) for row in rows])
    states.num_computed_prefill_tokens = computed
    states.prefill_len.np = _numbers([row.prompt for row in rows])
    runner = MagicMock(
        req_states=states, model_config=SimpleNamespace(is_hybrid=hybrid), lora_config=None, pcp_manager=None,
        is_encoder_decoder=False, decode_query_len=1 + drafts, adaptive_verification=None, use_pp=False,
        num_speculative_steps=drafts,
    )  # fmt: skip
    kind = module.GPUModelRunner
    if hasattr(kind, "gather_batch_req_state"):
        runner.gather_batch_req_state = partial(kind.gather_batch_req_state, runner)
    kept, module.dispatch_cg_and_sync_dp = module.dispatch_cg_and_sync_dp, dispatch
    try:
        kind.execute_model(runner, _step(rows), dummy_run=dummy_run)
    except Decided as decided:
        return bool(decided.args[0] == 1 + drafts)
    finally:
        module.dispatch_cg_and_sync_dp = kept
    raise LookupError("this vLLM chooses CUDA graphs elsewhere")


def _numbers(values: Iterable[int]) -> Any:
    import torch

    return torch.tensor([*values], dtype=torch.int32).numpy()


def _step(rows: Sequence[Row]) -> Any:
    return MagicMock(
        num_scheduled_tokens={str(at): row.tokens for at, row in enumerate(rows)},
        total_num_scheduled_tokens=sum(row.tokens for row in rows),
        scheduled_spec_decode_tokens={str(at): [-1] * row.drafts for at, row in enumerate(rows) if row.drafts},
        scheduled_encoder_inputs={},
        encoder_input_updates={},
        # Once a step, and only from 0.30 on.
        num_spec_tokens_to_schedule=DRAFTS,
    )


if __name__ == "__main__":
    main()
