"""How much memory PyTorch takes at once, as its CPU allocator tells the profiler."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any


def peak(do: Callable[[], Any]) -> int:
    """Do something; give the bytes that it had allocated and not freed, at their most."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        do()
    events = (event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]")
    in_order: list[tuple[int, int]] = sorted((event.start_ns(), event.nbytes()) for event in events)
    return max(accumulate((size for _, size in in_order), initial=0))
