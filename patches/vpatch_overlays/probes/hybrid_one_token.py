"""Which rows of a step Gated DeltaNet starts from nothing, and which requests the scheduler pads with drafts."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from vpatch_overlays.probes.bare import expect, settle, unpin
from vpatch_overlays.probes.statements import run

DRAFTS = 3
ROWS = 8
"""At most in a step."""
STALE = -7
"""In the buffers that graphs of decodes read, before a step."""

Row = tuple[int, int, int]
"""Tokens of a request: in the step, before it, and of its prompt."""

DECODE: Row = (1, 9, 8)
NEW: Row = (1, 0, 1)
TAIL: Row = (1, 7, 8)
"""The last token of a prompt, whose state is there."""

TELLS = ("num_computed_tokens_cpu", "num_prompt_tokens_cpu", "seq_lens_cpu", "is_prefilling", "cm_base")


def main() -> None:
    """Build the metadata of a step with a new prompt of one token, and schedule one beside a decode."""
    settle()
    for rows in ([DECODE, NEW], [DECODE, TAIL, NEW, NEW], [DECODE, NEW, (5, 0, 5)]):
        wanted = [computed > 0 for _, computed, _ in rows]
        expect(
            f"a new prompt of one token, of rows {rows}: which go on from a state",
            wanted,
            goes_on(metadata(builder(), rows)),
        )
    expect("a new prompt of one token, scheduled beside a decode: its drafts", 0, DRAFTS if pads(0) else 0)


def builder() -> Any:
    """Return the builder of Gated DeltaNet's metadata, with buffers for graphs; what is not set here is 0."""
    import torch
    from vllm.v1.attention.backends import gdn_attn
    from vllm.v1.kv_cache_interface import MambaSpec

    class Builder(gdn_attn.GDNAttentionMetadataBuilder):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        def __getattr__(self, _name: str) -> int:
            return 0

    unpin()
    gdn_attn.compute_causal_conv1d_metadata = lambda *_, **__: (None, None, None)
    made = Builder()
    made.__dict__.update(
        vllm_config=SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode="none")),
        kv_cache_spec=MambaSpec(block_size=16, shapes=((1, 8),), dtypes=(torch.float32,)),
        use_full_cuda_graph=True, decode_cudagraph_max_bs=ROWS, gdn_prefill_backend="triton",
        non_spec_state_indices_tensor=torch.full((ROWS,), STALE, dtype=torch.int32),
        non_spec_query_start_loc=torch.full((ROWS + 1,), STALE, dtype=torch.int32),
        checkpoint_builder=SimpleNamespace(build=lambda *_: None), mamba_aligned_state_indices=None,
    )  # fmt: skip
    return made


def metadata(made: Any, rows: Sequence[Row], *, padding: int = 0, columns: int = 1, **given: Any) -> Any:
    """Build the metadata of a step, from what the V1 runner tells of it.

    Row `i` has its state in block `i + 1`; rows of padding, behind the others, have block 0.

    Args:
        made: the builder.
        rows: the requests.
        padding: rows behind them.
        columns: blocks of a row for the states of its drafts. With more than one, row `i` has the blocks from
            `i * columns + 1` on.
        given: what the builder is told of drafts, beside the step.
    """
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    count, filled = len(rows), [*rows, *[(0, 0, 0)] * padding]
    lengths, computed, prompts = torch.tensor(filled, dtype=torch.int32).unbind(1)
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0, dtype=torch.int32)])
    seen = computed + lengths
    blocks = torch.arange(count * columns).reshape(count, columns) + 1
    build = GPUModelRunner._build_attention_metadata
    pair = SimpleNamespace(gpu=seen, cpu=seen)
    runner = MagicMock(
        input_batch=SimpleNamespace(
            num_computed_tokens_cpu_tensor=computed, num_prompt_tokens_cpu_tensor=prompts,
            num_prompt_tokens=prompts.numpy(),
        ),
        use_async_spec_decode=False, query_start_loc=SimpleNamespace(gpu=starts, cpu=starts),
        optimistic_seq_lens_cpu=seen, seq_lens=pair if "self.seq_lens.gpu" in inspect.getsource(build) else seen,
    )  # fmt: skip
    names = {
        "self": runner, "num_reqs": count, "num_reqs_padded": len(filled),
        "num_tokens_padded": int(starts[-1]) + padding, "max_query_len": int(lengths.max()),
        "max_seq_len": int(seen.max()), "slot_mapping_gid_0": None,
        "block_table_gid_0": torch.cat([blocks, torch.zeros(padding, columns, dtype=blocks.dtype)]),
    }  # fmt: skip
    return made.build(0, run(build, _tells, names)["cm_base"], **given)


def _tells(one: ast.stmt) -> bool:
    return isinstance(one, ast.Assign) and ast.unparse(one.targets[0]).startswith(TELLS)


def _pads(one: ast.stmt) -> bool:
    return isinstance(one, ast.If) and "num_new_tokens == 1" in ast.unparse(one.test)


def goes_on(built: Any) -> list[bool]:
    """Return for each row whether its layers start from what is in its block: decodes always do."""
    rows = built.num_decodes + built.num_prefills
    asked = built.has_initial_state
    return [row < built.num_decodes or bool(asked[row]) for row in range(rows)]


def pads(computed: int, *, states: bool = True) -> bool | None:
    """Return whether the scheduler pads a request that begins with one token beside decodes; None if it pads none."""
    from vllm.v1.core.sched.scheduler import Scheduler

    scheduler = SimpleNamespace(
        num_spec_tokens=DRAFTS, dynamic_sd_lookup=None, num_sampled_tokens_per_step=1, has_mamba_layers=states,
        max_model_len=64,
    )  # fmt: skip
    names = {
        "self": scheduler, "num_new_tokens": 1, "num_computed_tokens": computed, "scheduled_running_reqs": [None],
        "prefill_scheduled": False, "token_budget": 64, "request_token_budget": 64, "pad_spec_decode": False,
    }  # fmt: skip
    try:
        return bool(run(Scheduler.schedule, _pads, names)["pad_spec_decode"])
    except LookupError:
        return None


if __name__ == "__main__":
    main()
