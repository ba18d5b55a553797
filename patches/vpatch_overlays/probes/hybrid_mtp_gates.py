"""The gates of Gated DeltaNet in a step that verifies drafts and does other work: each token has its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

from vpatch_overlays.probes.bare import expect, settle

LAYERS = {
    "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn": "QwenGatedDeltaNetAttention",
    "vllm.model_executor.layers.mamba.gdn_linear_attn": "GatedDeltaNetAttention",
    "vllm.model_executor.models.qwen3_next": "Qwen3NextGatedDeltaNet",
}
"""The layer by module: from 0.22 on, from 0.19 on, and in 0.18."""
DRAFTS = 3
SIZE = 8
"""Of a head. The layer has one head of keys and one of values, so a token has three times as many channels."""
WIDTH = 4
"""Of the convolution."""

Replaced = Mapping[str, Callable[..., Any]]
"""By name, functions to use instead of those that the layer's module has."""


def main() -> None:
    """Verify the drafts of two requests behind the last token of another request's prompt."""
    settle()
    import torch

    rows = (False, True, True)
    tokens = 1 + 2 * (DRAFTS + 1)
    numbers = torch.arange(tokens, dtype=torch.float32).unsqueeze(1)
    taken = {}

    def verify(**given: Any) -> tuple[Any, None]:
        length = given["q"].shape[1]  # the kernel reads as many gates as there are queries
        taken.update({name: given[name][:length, 0].tolist() for name in "ab"})
        return given["v"], None

    forward(rows, torch.zeros(tokens, 3 * SIZE), numbers, numbers + 100, states(len(rows)), recorded(verify))
    for name, first in (("a", 1), ("b", 101)):
        expect(f"gates `{name}` of the tokens that verify drafts", [*map(float, range(first, first + 8))], taken[name])


def layer_module() -> ModuleType:
    """Return the module of the layer, where this vLLM has it."""
    for name in LAYERS:
        if find_spec(name.rpartition(".")[0]) and find_spec(name):
            return import_module(name)
    raise ImportError(f"none of {', '.join(LAYERS)}")


def states(rows: int) -> tuple[Any, Any]:
    """Return zeros for the convolution's windows and the layer's states, of so many requests."""
    import torch

    blocks = 1 + rows * (DRAFTS + 1)  # block 0 is nobody's
    return torch.zeros(blocks, WIDTH - 1 + DRAFTS, 3 * SIZE), torch.zeros(blocks, 1, SIZE, SIZE)


def blocks_of(row: int) -> range:
    """Return the blocks of a row's request: one for each token that it may verify."""
    return range(1 + row * (DRAFTS + 1), 1 + (row + 1) * (DRAFTS + 1))


def recorded(verify: Callable[..., tuple[Any, None]]) -> dict[str, Callable[..., Any]]:
    """Return functions that compute nothing, for a machine without a GPU; `verify` stands for the kernel."""
    return {
        "causal_conv1d_update": lambda mixed, *_, **__: mixed,
        "fused_sigmoid_gating_delta_rule_update": verify,
        **idle(),
    }


def idle() -> dict[str, Callable[..., Any]]:
    """Return functions that compute nothing for rows without drafts."""
    import torch

    def prepare(conv_output: Any, a: Any, b: Any, **_: Any) -> tuple[Any, ...]:
        heads = conv_output.reshape(-1, 3, 1, SIZE)
        return *heads.unbind(1), a, b

    def gating(_: Any, a: Any, b: Any, __: Any) -> tuple[Any, Any]:
        return torch.zeros_like(a).unsqueeze(0), torch.zeros_like(b).unsqueeze(0)

    return {
        "causal_conv1d_fn": lambda mixed, *_, **__: mixed,
        "fused_post_conv_prep": prepare,
        "fused_gdn_gating": gating,
    }


def forward(rows: Sequence[bool], mixed: Any, a: Any, b: Any, held: tuple[Any, Any], replaced: Replaced) -> Any:
    """Run the layer's core for one step.

    Args:
        rows: for each request, whether it verifies drafts; the others have one token. All accepted one token before.
        mixed: queries, keys and values of all tokens, of shape (tokens, 3 * SIZE).
        a: the first gate of all tokens, of shape (tokens, 1).
        b: the second one.
        held: windows and states, as from `states`; see `blocks_of`.
        replaced: see `Replaced`.

    Returns:
        The layer's output, of shape (tokens, 1, SIZE). Rows without drafts have their values.
    """
    import torch

    module = layer_module()
    kind = getattr(module, LAYERS[module.__name__])
    by_engine = "virtual_engine" in kind._forward_core.__code__.co_names
    layer = SimpleNamespace(
        prefix="layer", enable_packed_recurrent_decode=False, kv_cache=[held] if by_engine else held,
        conv1d=SimpleNamespace(weight=torch.ones(3 * SIZE, 1, WIDTH), bias=None), activation="silu", tp_size=1,
        num_k_heads=1, num_v_heads=1, key_dim=SIZE, value_dim=SIZE, head_k_dim=SIZE, head_v_dim=SIZE,
        A_log=torch.zeros(1), dt_bias=torch.zeros(1),
        chunk_gated_delta_rule=lambda v, initial_state, **_: (v, initial_state),
    )  # fmt: skip
    layer.rearrange_mixed_qkv = partial(kind.rearrange_mixed_qkv, layer)
    context = SimpleNamespace(attn_metadata={"layer": step(module.GDNAttentionMetadata, rows)}, virtual_engine=0)
    output = torch.zeros(len(mixed), 1, SIZE)
    before = dict(vars(module))
    vars(module).update({name: one for name, one in replaced.items() if name in before})
    vars(module)["get_forward_context"] = lambda: context
    try:
        kind._forward_core(layer, mixed, b, a, output)
    finally:
        vars(module).update(before)
    return output


def step(kind: Any, rows: Sequence[bool]) -> Any:
    """Return the metadata of a step, as vLLM's builder makes it for a mixed batch; see `forward`."""
    import torch

    def starts(lengths: Sequence[int]) -> Any:
        return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)

    def numbers(values: Sequence[int]) -> Any:
        return torch.tensor(values, dtype=torch.int32)

    lengths = [DRAFTS + 1 if verifies else 1 for verifies in rows]
    owners = [row for row, length in enumerate(lengths) for _ in range(length)]
    places = {wanted: [at for at, row in enumerate(owners) if rows[row] is wanted] for wanted in (True, False)}
    verifying, others = ([i for i, verifies in enumerate(rows) if verifies is wanted] for wanted in (True, False))
    other_starts, other_states = starts([1] * len(others)), numbers([blocks_of(i)[0] for i in others])
    given = {
        "num_prefills": len(others), "num_prefill_tokens": len(others), "num_decodes": 0, "num_decode_tokens": 0,
        "num_spec_decodes": len(verifying), "num_spec_decode_tokens": (DRAFTS + 1) * len(verifying),
        "num_actual_tokens": len(owners), "has_initial_state": torch.ones(len(others), dtype=torch.bool),
        "spec_query_start_loc": starts([DRAFTS + 1] * len(verifying)), "non_spec_query_start_loc": other_starts,
        "spec_state_indices_tensor": torch.tensor([[*blocks_of(i)] for i in verifying], dtype=torch.int32),
        "non_spec_state_indices_tensor": other_states, "spec_sequence_masks": torch.tensor(list(rows)),
        "spec_token_indx": torch.tensor(places[True], dtype=torch.long),
        "non_spec_token_indx": torch.tensor(places[False], dtype=torch.long),
        "num_accepted_tokens": torch.ones(len(verifying), dtype=torch.int32),
        "prefill_query_start_loc": other_starts, "prefill_state_indices": other_states,
        "prefill_has_initial_state": torch.ones(len(others), dtype=torch.bool),
    }  # fmt: skip
    known = {one.name for one in fields(kind)}
    return kind(**{name: value for name, value in given.items() if name in known})


if __name__ == "__main__":
    main()
