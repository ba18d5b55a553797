"""Print what Gated DeltaNet computes of two requests that verify drafts, by the order of a step's rows.

Run by `environment.probe`; the output is JSON. The kernels that verify run in Triton's interpreter. A third request has
one token without drafts, for which nothing is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

from vpatch_overlays.probes.hybrid_mtp_gates import DRAFTS, SIZE, blocks_of, forward, idle, states

from tests.validation.cpu.probe_states import kernel

OTHER, *VERIFYING = range(3)
"""Requests, by the seed of their numbers."""
ORDERS = (*permutations((OTHER, *VERIFYING)), *permutations(VERIFYING))


def drawn(request: int, *shape: int) -> Any:
    """Return random numbers of a request, the same in every order."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(10 * request + len(shape)))


def computed(order: Sequence[int]) -> dict[str, str]:
    """Return output and states of each verifying request as hexadecimal text, in a step with this order of rows."""
    import torch

    rows = [request != OTHER for request in order]
    tokens = [DRAFTS + 1 if verifies else 1 for verifies in rows]
    mixed, gates = (
        torch.cat([drawn(request, count, width) for request, count in zip(order, tokens, strict=True)])
        for width in (3 * SIZE, 2)
    )
    windows, held = states(len(rows))
    for row, request in enumerate(order):
        own = [*blocks_of(row)]
        windows[own], held[own] = drawn(request, *windows[own].shape), drawn(request, *held[own].shape)
    verify = kernel("fused_sigmoid_gating", "fused_sigmoid_gating_delta_rule_update")
    replaced = idle() | {"fused_sigmoid_gating_delta_rule_update": verify}
    a, b = (gate.contiguous() for gate in gates.split(1, dim=1))
    output = forward(rows, mixed, a, b, (windows, held), replaced).split(tokens)
    found = {}
    for row, request in enumerate(order):
        if request != OTHER:
            own = held[[*blocks_of(row)]]
            found[str(request)] = output[row].numpy().tobytes().hex() + own.numpy().tobytes().hex()
    return found


def main(_home: str) -> dict[str, Any]:
    return {" ".join(map(str, order)): computed(order) for order in ORDERS}
