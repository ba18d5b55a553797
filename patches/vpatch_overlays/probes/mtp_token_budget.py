"""The tokens that a model embeds after a step had no room for one of the requests that decode."""

from typing import Any
from unittest.mock import MagicMock

from vpatch_overlays.probes.accepted_counts import DRAFTS, PROMPT, Steps, eager
from vpatch_overlays.probes.bare import expect, settle

DRAFT = 5
DECODE = 1 + DRAFTS


def main() -> None:
    """Leave B out of a step, and look at the tokens of the next one."""
    settle()
    found = tokens()
    expect("drafts of a request that goes on", [DRAFT] * DRAFTS, found["A"][1:])
    missing = [token for token in found["B"] if token < 0]
    expect("placeholders that reach the embedding, of a request that was left out of a step", [], missing)


def tokens() -> dict[str, list[int]]:
    """Return the tokens that reach the model by request, in the step in which B comes back."""
    import torch

    steps = Steps("none")
    runner = steps.runner
    prepare(runner)
    steps.begin(dict.fromkeys("AB", PROMPT))
    steps.end(dict.fromkeys("AB", 1))
    for scheduled in ("AB", "A"):
        steps.begin(dict.fromkeys(scheduled, DECODE), drafts=scheduled)
        steps.end(dict.fromkeys(scheduled, 2))
    runner._draft_token_ids = torch.full((1, DRAFTS), DRAFT)  # of the last step, which had A alone
    steps.begin(dict.fromkeys("AB", DECODE), drafts="AB")
    steps.output.total_num_scheduled_tokens = 2 * DECODE
    runner._prepare_inputs(steps.output, torch.full((2,), DECODE, dtype=torch.int32).numpy())
    ids, *_ = runner._preprocess(steps.output, 2 * DECODE)
    return dict(zip(steps.batch.req_ids, ids.reshape(2, DECODE).tolist(), strict=True))


def prepare(runner: Any) -> None:
    """Set on a runner of `Steps` the other attributes that `_prepare_inputs` and `_preprocess` read, in any release."""
    import torch
    from vllm.v1.utils import CpuGpuBuffer
    from vllm.v1.worker import gpu_model_runner

    def buffer(dtype: Any) -> Any:
        return CpuGpuBuffer(64, dtype=dtype, device=runner.device, pin_memory=False)

    vars(gpu_model_runner).update(eager(gpu_model_runner))
    runner.model_config.is_encoder_decoder = False
    runner.input_batch.block_table = MagicMock()
    numbers = {name: buffer(torch.int64) for name in ("query_pos", "req_indices", "positions", "seq_lens")}
    if hasattr(gpu_model_runner.GPUModelRunner, "_compute_prev_positions"):  # from 0.19 on
        numbers |= {name: numbers[name].gpu for name in ("positions", "seq_lens")}
    vars(runner).update(
        numbers,
        **{
            name: buffer(torch.int32)
            for name in ("input_ids", "query_start_loc", "num_decode_draft_tokens", "num_scheduled_tokens")
        },
        discard_request_mask=buffer(torch.bool),
        optimistic_seq_lens_cpu=torch.zeros(64, dtype=torch.int32),
        arange_np=torch.arange(64).numpy(),
        _arange_scratch=torch.arange(64).numpy(),
        num_spec_tokens=DRAFTS,
        prev_num_spec_tokens=DRAFTS,
        mamba_prev_last_scheduled_idx=None,
        pin_memory=False,
        _pp_recv_work=None,  # one rank
        lookback_token_ids=None,
        _calc_spec_decode_metadata=MagicMock(),  # for the sampler
    )


if __name__ == "__main__":
    main()
