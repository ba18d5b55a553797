"""The state that a decode without drafts goes on from, after a step that accepted some: on both model runners."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from vpatch_overlays.probes.bare import expect, settle
from vpatch_overlays.probes.hybrid_one_token import Row, builder, metadata
from vpatch_overlays.probes.statements import holding, run

DRAFTS = 3
DECODE: Row = (1, 12, 8)
VERIFIES: Row = (1 + DRAFTS, 12, 8)
PROMPT: Row = (5, 0, 9)
STEPS: Mapping[str, Sequence[Row]] = {
    "decodes without drafts": [DECODE, DECODE],
    "one beside one that verifies drafts": [DECODE, VERIFIES],
    "one beside a prompt": [DECODE, PROMPT],
}
ACCEPTED = (3, 2)
"""Tokens that the step before accepted, by row."""

DRAWS: Callable[[ast.stmt], bool] = holding("num_decode_draft_tokens_np", ast.If)


def main() -> None:
    """Ask both runners for each step, and Kimi K3 whether a step without drafts is one that verifies."""
    settle()
    runners: Mapping[str, Callable[[Sequence[Row]], list[int] | None]] = {"V1": on_v1, "V2": on_v2}
    for runner, columns in runners.items():
        for name, rows in STEPS.items():
            found = columns(rows)
            wanted = [0 if row == PROMPT else count - 1 for row, count in zip(rows, ACCEPTED, strict=True)]
            if found is not None:
                expect(f"states to go on from, on the {runner} runner, of {name}", wanted, found)
    verifying = kimi_k3([0, -1])
    if verifying is not None:
        expect("rows of Kimi K3 that go on from the accepted state, of a decode without drafts", 1, verifying)


def on_v1(rows: Sequence[Row], *, hybrid: bool = True, speculates: bool = True) -> list[int]:
    """Return for each row which of its states the layers go on from, by what the V1 runner prepares.

    Args:
        rows: the step's requests; one of more than one token behind its prompt verifies drafts.
        hybrid: whether layers of the model keep a state.
        speculates: whether the server has speculation.
    """
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    kind, made = GPUModelRunner, _builder()
    lengths, computed, prompts = torch.tensor(rows, dtype=torch.int32).unbind(1)
    batch = MagicMock(num_reqs=len(rows), req_id_to_index={str(at): at for at in range(len(rows))})
    batch.num_computed_tokens_cpu, batch.num_prompt_tokens = computed.numpy(), prompts.numpy()
    batch.num_accepted_tokens_cpu = _accepted(rows).numpy()
    runner = MagicMock(input_batch=batch, lora_config=None, speculative_config=object() if speculates else None)
    runner.model_config.is_hybrid = hybrid
    # A step before left this, all of whose rows verified drafts.
    runner.num_decode_draft_tokens = _buffer(torch.full((len(rows),), DRAFTS, dtype=torch.int32))
    runner.num_accepted_tokens = _buffer(_accepted(rows))
    runner.mamba_prev_last_scheduled_idx = None
    drafts = {str(at): [7] * (row[0] - 1) for at, row in enumerate(rows) if row == VERIFIES}
    names = {
        "self": runner, "scheduler_output": SimpleNamespace(scheduled_spec_decode_tokens=drafts),
        "num_reqs": len(rows), "num_reqs_padded": len(rows), "num_scheduled_tokens": lengths.numpy(), "builder": made,
        "query_start_loc": torch.zeros(len(rows) + 1, dtype=torch.int32), "ubid": None, "extra_attn_metadata_args": {},
    }  # fmt: skip
    run(kind._prepare_inputs, _prepares, names)
    verifies = run(kind.execute_model, _decides, names)["use_spec_decode"]
    given = run(kind._build_attention_metadata, _passes, names | {"use_spec_decode": verifies})
    return _states(metadata(made, rows, columns=1 + DRAFTS, **given["extra_attn_metadata_args"]), rows)


def on_v2(rows: Sequence[Row], *, drafts: bool = True) -> list[int] | None:
    """Return the same by what the V2 runner prepares; None if it has no hybrid models.

    Args:
        rows: the step's requests.
        drafts: False if a step without drafts has no list of them at all.
    """
    if not find_spec("vllm.v1.worker.gpu.model_states.mamba_hybrid"):
        return None
    import torch
    from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

    lengths, computed, prompts = torch.tensor(rows, dtype=torch.int32).unbind(1)
    prefills = (computed < prompts).numpy()
    counts = torch.where(computed < prompts, torch.zeros_like(lengths), lengths - 1).numpy()
    batch = SimpleNamespace(
        num_reqs=len(rows), is_prefilling_np=prefills, num_scheduled_tokens=lengths.numpy(),
        num_draft_tokens_per_req=counts if drafts or counts.any() else None, idx_mapping=torch.arange(len(rows)),
    )  # fmt: skip
    config = SimpleNamespace(
        num_speculative_tokens=DRAFTS, speculative_config=SimpleNamespace(num_speculative_tokens=DRAFTS)
    )
    states = SimpleNamespace(vllm_config=config, num_accepted_tokens_gpu=_accepted(rows))
    names = {
        "self": states, "input_batch": batch, "num_reqs": len(rows), "for_capture": False, "is_prefilling_np": prefills
    }  # fmt: skip
    found = run(MambaHybridModelState.prepare_attn, DRAWS, names)
    given = {name: found[name] for name in ("num_accepted_tokens", "num_decode_draft_tokens_cpu")}
    return _states(metadata(_builder(), rows, columns=1 + DRAFTS, **given), rows)


def kimi_k3(drafts: Sequence[int]) -> int | None:
    """Return how many rows Kimi K3 lets go on from the accepted state, by their drafts; None if vLLM has no Kimi K3."""
    import torch

    try:
        from vllm.models.kimi_k3.nvidia.kda_metadata import KimiK3KDAMetadataBuilder
    except ImportError:
        return None
    names = {
        "self": SimpleNamespace(use_spec_decode=True, use_recoverssm=False, num_spec=DRAFTS),
        "num_decode_draft_tokens_cpu": torch.tensor(drafts, dtype=torch.int32),
    }
    masks = holding("spec_sequence_masks_cpu = num_decode_draft_tokens_cpu >= 0", ast.If)
    return int(run(KimiK3KDAMetadataBuilder.build, masks, names)["num_spec_decodes"])


def _builder() -> Any:
    made = builder()
    made.__dict__.update(use_full_cuda_graph=False, use_spec_decode=True, num_spec=DRAFTS)
    return made


def _accepted(rows: Sequence[Row]) -> Any:
    import torch

    return torch.tensor([1 if row == PROMPT else count for row, count in zip(rows, ACCEPTED, strict=True)])


def _buffer(values: Any) -> Any:
    return SimpleNamespace(cpu=values, gpu=values, np=values.numpy(), copy_to_gpu=lambda *_: None)


def _prepares(one: ast.stmt) -> bool:
    return isinstance(one, ast.Assign | ast.If | ast.Expr) and "use_spec_decode" in ast.unparse(one)


def _decides(one: ast.stmt) -> bool:
    return isinstance(one, ast.Assign) and ast.unparse(one).startswith("use_spec_decode = ")


def _passes(one: ast.stmt) -> bool:
    return isinstance(one, ast.If) and ast.unparse(one.test).startswith("use_spec_decode")


def _states(built: Any, rows: Sequence[Row]) -> list[int]:
    """Return the column of each row's blocks from which it goes on."""
    width, others = 1 + DRAFTS, built.non_spec_state_indices_tensor
    read = [] if others is None else others.tolist()
    if built.num_spec_decodes:
        blocks, counts = built.spec_state_indices_tensor, built.num_accepted_tokens
        read += [int(blocks[at, int(count) - 1]) for at, count in enumerate(counts)]
    found = {(block - 1) // width: (block - 1) % width for block in read}
    return [found[row] for row in range(len(rows))]


if __name__ == "__main__":
    main()
