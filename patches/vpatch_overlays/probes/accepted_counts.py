"""Drive vLLM's own code from step to step, without a GPU, and see which accepted counts each request reads.

These run as they are: `InputBatch`, `GPUModelRunner.synchronize_input_prep`, `_update_states`, `_may_reorder_batch`,
`_compute_prev_positions`, `_update_states_after_model_execute`, and the statements of `_prepare_inputs` that read the
counts. The copy of the counts to the CPU is simulated: it lands before a chosen move of rows, or when the runner waits
for it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from vpatch_overlays.probes.bare import unpin

DRAFTS, PROMPT, REST = 3, 8, 2
EARLY, LATE = 0, 1 << 30


class Copy:
    """The copy of the counts to the CPU, and the event behind it."""

    def __init__(self) -> None:
        self.due = 0  # it lands before so many moves of rows
        self.pending: Any = None
        self.recorded = False
        self.rows: Any = None
        self.log: list[str] = []

    def record(self) -> None:
        """Note that the event is recorded."""
        self.recorded = True

    def synchronize(self) -> None:
        """Let the copy land."""
        self.log.append("wait")
        self.land()

    def land(self) -> None:
        """Write the counts, as the device does."""
        if self.pending is not None:
            self.rows[: len(self.pending)] = self.pending
            self.pending = None

    def before(self, move: str) -> None:
        """Let the copy land if this move of rows is the one before which it is due."""
        if self.due <= 0:
            self.land()
        self.due -= 1
        self.log.append(move)


class Steps:
    """A model runner with draft tokens on a hybrid model, as far as its steps need it."""

    def __init__(self, mode: str, *, asynchronous: bool = True, rows: int = 16) -> None:
        """Make a runner whose `mamba_cache_mode` is `mode`, "align" or "none"."""
        import torch
        from vllm.v1.worker import gpu_input_batch, gpu_model_runner

        unpin()
        gpu_model_runner.get_pp_group = lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1)
        gpu_model_runner.mamba_utils.postprocess_mamba = lambda *_, **__: None  # it copies states
        self.mode, self.torch, self.module, self.copy = mode, torch, gpu_model_runner, Copy()
        self.batch = _batch(gpu_input_batch.InputBatch, self.copy, rows, torch.device("cpu"))
        self.copy.rows = self.batch.num_accepted_tokens_cpu_tensor
        self.runner = self._runner(rows, asynchronous=asynchronous)
        self.code = _reading(gpu_model_runner.GPUModelRunner)

    def begin(
        self, scheduled: Mapping[str, int], *, ended: Iterable[str] = (), lands: int = 0, drafts: Iterable[str] = ()
    ) -> dict[str, int]:
        """Begin a step, and return the count that each request reads.

        Args:
            scheduled: tokens by request. One that is new or among the ended begins its prompt of PROMPT tokens; with
                REST tokens it ends a prompt that it began before.
            ended: requests that ended since the last step.
            lands: the number of moves of rows before which the last step's counts arrive on the CPU.
            drafts: requests whose last DRAFTS tokens are drafts, which the scheduler does not know yet.
        """
        self.copy.due, self.copy.log[:] = lands, []
        self.output = self._output(scheduled, set(ended), set(drafts))
        with self.runner.synchronize_input_prep():
            self.runner._update_states(self.output)
            return self._read()

    def _read(self) -> dict[str, int]:
        count = self.batch.num_reqs
        if hasattr(type(self.runner), "_compute_prev_positions"):
            self.runner._compute_prev_positions(count)
        names = {"self": self.runner, "num_reqs": count, "use_spec_decode": True}
        names["prev_req_id_to_index"] = self.batch.prev_req_id_to_index
        exec(self.code, vars(self.module) | eager(self.module) | names)  # noqa: S102 - vLLM's own statements
        # In mode "align" `preprocess_mamba` reads the rows, and copies them to the device again.
        read = self.copy.rows if self.mode == "align" else self.runner.num_accepted_tokens.gpu
        return dict(zip(self.batch.req_ids, read[:count].tolist(), strict=True))

    def end(self, counts: Mapping[str, int], *, discarded: Iterable[str] = ()) -> None:
        """End a step in which these counts of tokens were accepted; the copy to the CPU is under way then.

        Prompts that are not at their end yet are discarded.
        """
        rows, names = self.copy.rows, self.batch.req_ids
        sampled = self.torch.full((len(names), 1 + DRAFTS), -1)
        for row, name in enumerate(names):
            sampled[row, : counts[name]] = 7
        before, self.copy.recorded = rows.clone(), False
        self.runner._update_states_after_model_execute(sampled, self._output({}, set(), set()))
        if self.copy.recorded:  # otherwise the host has written the counts itself
            self.copy.pending = rows[: len(names)].clone()
            rows.copy_(before)
        if self.runner.use_async_scheduling:
            kept = [(row, name) for row, name in enumerate(names) if name not in set(discarded)]
            self.batch.prev_req_id_to_index = {name: row for row, name in kept}
            valid = [counts[name] for name in names]
            self.runner.valid_sampled_token_count_gpu = self.torch.tensor(valid, dtype=self.torch.int32)
            # The tokens are copied behind the counts: who waits for them has waited for the counts.
            self.runner.valid_sampled_token_count_event = self.copy
            self.runner.valid_sampled_token_count_cpu = self.runner.valid_sampled_token_count_gpu
            self.batch.prev_sampled_token_ids = self.torch.zeros(len(names), 1, dtype=self.torch.int32)

    def _runner(self, rows: int, *, asynchronous: bool) -> Any:
        torch, module = self.torch, self.module

        class Runner(module.GPUModelRunner):  # type: ignore[name-defined,misc]
            """A runner that has only the attributes that are set here; others are 0."""

            def __init__(self) -> None:
                pass

            def __getattr__(self, _name: str) -> int:
                return 0

        context = MagicMock(is_initialized=True)

        def postprocess(num_accepted_tokens_gpu: Any, **_: Any) -> None:
            context.num_accepted_tokens_out = num_accepted_tokens_gpu.clone()

        context.run_fused_postprocess = postprocess
        runner = Runner()
        runner.__dict__.update(
            {name: _buffer(rows, torch.int64) for name in ("num_accepted_tokens", "prev_positions")},
            prev_num_draft_tokens=_buffer(rows, torch.int32),
            num_computed_tokens=torch.zeros(rows, dtype=torch.int32),
            num_accepted_tokens_event=self.copy,
            prepare_inputs_event=MagicMock() if asynchronous else None,
            input_batch=self.batch,
            use_async_scheduling=asynchronous,
            use_async_spec_decode=asynchronous,
            device=torch.device("cpu"),
            requests={},
            num_prompt_logprobs={},
            encoder_cache={},
            late_interaction_runner=MagicMock(),
            speculative_config=SimpleNamespace(use_ngram_gpu=lambda: False),
            model_config=SimpleNamespace(is_hybrid=True),
            cache_config=SimpleNamespace(mamba_cache_mode=self.mode),
            compilation_config=SimpleNamespace(static_forward_context={}),
            kv_cache_config=SimpleNamespace(kv_cache_groups=[None]),
            reorder_batch_threshold=1 + DRAFTS,
            model=MagicMock(),
            _get_mamba_copy_bufs=MagicMock(),
            _get_mamba_state_copy_funcs=MagicMock(),
            _get_mamba_bufs=lambda: SimpleNamespace(postprocess_align=context),
        )
        return runner

    def _output(self, scheduled: Mapping[str, int], ended: set[str], drafts: set[str]) -> Any:
        from vllm.v1.core.sched.output import SchedulerOutput

        output, known = SchedulerOutput.make_empty(), self.runner.requests.keys() - ended
        output.finished_req_ids = ended
        output.num_scheduled_tokens = dict(scheduled)
        output.scheduled_spec_decode_tokens = {name: [-1] * DRAFTS for name in scheduled if name in drafts}
        output.scheduled_new_reqs = [_new_request(name) for name in scheduled if name not in known]
        cached = output.scheduled_cached_reqs
        cached.req_ids = [name for name in scheduled if name in known]
        for name in cached.req_ids:
            cached.num_computed_tokens.append(PROMPT - REST if scheduled[name] == REST else PROMPT)
            cached.new_block_ids.append(None)
            cached.num_output_tokens.append(1)
            cached.all_token_ids[name] = [7] * (PROMPT + 1)
        return output


class _NewRequest(SimpleNamespace):
    def __getattr__(self, _name: str) -> None:
        return None


def _new_request(name: str) -> _NewRequest:
    from vllm import SamplingParams

    given = {"prompt_token_ids": [1] * PROMPT, "sampling_params": SamplingParams(temperature=0.0)}
    return _NewRequest(req_id=name, block_ids=([1],), num_computed_tokens=0, mm_features=[], **given)


def _batch(kind: Any, copy: Copy, rows: int, device: Any) -> Any:
    """Make vLLM's batch, which reports each move of rows."""

    class Batch(kind):  # type: ignore[misc]
        def add_request(self, *args: Any) -> Any:
            copy.before("add")
            return super().add_request(*args)

        def condense(self) -> Any:
            copy.before("condense")
            return super().condense()

        def swap_states(self, *args: Any) -> Any:
            copy.before("swap")
            return super().swap_states(*args)

    given = {"max_num_reqs": rows, "max_model_len": 64, "max_num_batched_tokens": 256, "device": device}
    given |= {"pin_memory": False, "vocab_size": 32, "block_sizes": [16], "kernel_block_sizes": [16]}
    given |= {"max_num_blocks_per_req": [4], "is_spec_decode": True, "num_spec_tokens": DRAFTS}
    taken = inspect.signature(kind.__init__).parameters
    return Batch(**{name: value for name, value in given.items() if name in taken})


def _buffer(rows: int, dtype: Any) -> Any:
    import torch
    from vllm.v1.utils import CpuGpuBuffer

    return CpuGpuBuffer(rows, dtype=dtype, device=torch.device("cpu"), pin_memory=False)


@cache
def _reading(runner: Any) -> Any:
    """Compile the statements that read the counts for a step."""
    wanted = ("num_accepted_tokens_event", "num_accepted_tokens.np", "update_num_computed_tokens_for_batch_change(")
    for function in (runner._prepare_inputs, runner._build_attention_metadata):
        tree: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        found = [one for one in tree.body if any(text in ast.unparse(one) for text in wanted)]
        if any(wanted[1] in ast.unparse(one) for one in found):
            return compile(ast.Module(found, []), function.__name__, "exec")
    raise LookupError("this vLLM reads accepted counts elsewhere")


def eager(module: Any) -> dict[str, Any]:
    """Return the function that corrects counts on the device, not compiled."""
    name = "update_num_computed_tokens_for_batch_change"
    function = getattr(module, name, None)
    return {name: getattr(function, "_torchdynamo_orig_callable", function)}
