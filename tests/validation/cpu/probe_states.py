"""What the kernels of states compute on one tree, in Triton's interpreter, by number of accepted tokens.

Of all states only the request's own hold numbers. The others, and what
stands around the request's row of state indices, are guards: their states are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

DRAFTS = 3
COUNTS = (0, *range(1, DRAFTS + 2), 9)
LENGTHS = (DRAFTS + 1, 2)
"""Tokens of a step: all drafts, and fewer than the last step accepted."""

SIZE, CHANNELS, WIDTH = 8, 16, 4
WINDOW = WIDTH - 1 + DRAFTS
OWN = range(1, DRAFTS + 2)
BLOCKS = 8

FOLDERS = ("model_executor/layers/fla/ops", "third_party/flash_linear_attention/ops")


def kernel(module: str, name: str) -> Callable[..., Any]:
    """Return a function of the delta rule's kernels, whose folder differs between releases."""
    import vllm

    folder = next(one for one in FOLDERS if Path(str(vllm.__file__)).parent.joinpath(one).exists())
    found = vars(import_module(f"vllm.{folder.replace('/', '.')}.{module}"))

    def exp(x: Any) -> Any:
        return found["tl"].exp(x)  # the interpreter replaces members of `tl`, but not other names for them

    if "exp" in found:
        found["exp"] = exp
    wanted: Callable[..., Any] = found[name]
    return wanted


def states(*shape: int) -> Any:
    """Return states for `BLOCKS` blocks: random ones of the request, and NaN."""
    import torch

    made = torch.full((BLOCKS, *shape), float("nan"))
    made[OWN.start : OWN.stop] = torch.randn(OWN.stop - OWN.start, *shape, generator=torch.Generator().manual_seed(1))
    return made


def selecting(length: int, accepted: int) -> dict[str, Any]:
    """Return the arguments that select a state: one row of a table whose other rows lead to guards."""
    import torch

    table = torch.full((5, DRAFTS + 1), OWN.stop, dtype=torch.int32)
    table[1] = torch.tensor([*OWN])
    return {
        "cu_seqlens": torch.tensor([0, length], dtype=torch.int32),
        "ssm_state_indices": table[1:2],
        "num_accepted_tokens": torch.tensor([accepted], dtype=torch.int32),
    }


def inputs(length: int) -> Iterator[Any]:
    """Yield queries, keys and values, then two gates, of one request with one head."""
    import torch

    random = torch.Generator().manual_seed(2)
    for shape in ((SIZE,), (SIZE,), (SIZE,), (), ()):
        yield torch.randn(1, length, 1, *shape, generator=random)


def recurrent(length: int, accepted: int) -> tuple[Any, Any]:
    """Return the output and the states of `fused_recurrent.py`."""
    q, k, v, g, beta = inputs(length)
    held = states(1, SIZE, SIZE)
    forward = kernel("fused_recurrent", "fused_recurrent_gated_delta_rule_fwd")
    fixed = {"scale": 1.0, "inplace_final_state": True, "use_qk_l2norm_in_kernel": True}
    output, _ = forward(
        q, k, v, g=-g.abs(), beta=beta.sigmoid(), initial_state=held, **fixed, **selecting(length, accepted)
    )
    return output, held


def sigmoid(length: int, accepted: int) -> tuple[Any, Any]:
    """Return the output and the states of `fused_sigmoid_gating.py`."""
    import torch

    q, k, v, a, b = inputs(length)
    held = states(1, SIZE, SIZE)
    update = kernel("fused_sigmoid_gating", "fused_sigmoid_gating_delta_rule_update")
    fixed = {"A_log": torch.zeros(1), "dt_bias": torch.zeros(1), "use_qk_l2norm_in_kernel": True}
    output, _ = update(q=q, k=k, v=v, a=a[0], b=b[0], initial_state=held, **fixed, **selecting(length, accepted))
    return output, held


def convolution(length: int, accepted: int) -> tuple[Any, Any]:
    """Return the output and the states of `causal_conv1d.py`; only the first of the request's states is used."""
    import torch
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

    random = torch.Generator().manual_seed(3)
    held = states(WINDOW, CHANNELS)
    held[OWN.start + 1 :] = float("nan")
    output = causal_conv1d_update(
        torch.randn(length, CHANNELS, generator=random),
        held.transpose(1, 2),
        torch.randn(CHANNELS, WIDTH, generator=random),
        activation="silu",
        conv_state_indices=torch.tensor([OWN.start], dtype=torch.int32),
        num_accepted_tokens=torch.tensor([accepted], dtype=torch.int32),
        query_start_loc=torch.tensor([0, length], dtype=torch.int32),
        max_query_len=DRAFTS + 1,
    )
    return output, held


KERNELS = {"recurrent": recurrent, "sigmoid": sigmoid, "convolution": convolution}


def computed(name: str, length: int, accepted: int) -> dict[str, Any]:
    """Return output and states as hexadecimal text, whether there is NaN in them, and whether the guards are whole."""
    output, held = KERNELS[name](length, accepted)
    own = held[OWN.start : OWN.stop if name != "convolution" else OWN.start + 1]
    return {
        "bytes": output.numpy().tobytes().hex() + own.numpy().tobytes().hex(),
        "wrong": bool(output.isnan().any() or own.isnan().any()),
        "guards": bool(held.isnan().sum() == held.numel() - own.numel() + own.isnan().sum()),
    }


def main(_home: str) -> dict[str, Any]:
    return {
        f"{name} {length} {accepted}": computed(name, length, accepted)
        for name, length, accepted in product(KERNELS, LENGTHS, COUNTS)
    }
