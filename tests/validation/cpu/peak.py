"""How much memory PyTorch takes at once, as its CPU allocator tells the profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def peak(do: Callable[[], Any]) -> int:
    """Do something; give the bytes that it had allocated and not freed, at their most."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        do()
    held: dict[int, int] = {}
    most = 0
    for _, size, where in sorted(_allocations(seen.profiler.kineto_results.experimental_event_tree())):
        if size > 0:
            held[where] = size
            most = max(most, sum(held.values()))
        else:
            held.pop(where, None)  # or it was there before
    return most


def _allocations(events: Any) -> Iterator[tuple[int, int, int]]:
    """Give when memory was allocated or freed, in ns, how many bytes (freed ones are negative), and where."""
    from torch._C._profiler import _EventType

    for event in events:
        if event.tag == _EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.ptr
        yield from _allocations(event.children)
