"""Peak memory of PyTorch, as its CPU allocator reports it to the profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def peak(do: Callable[[], Any]) -> int:
    """Call a function; return the most bytes that it held at once."""
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
    """Yield the time of each allocation or release in ns, its bytes (negative if released) and its address."""
    from torch._C._profiler import _EventType

    for event in events:
        if event.tag == _EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.ptr
        yield from _allocations(event.children)
