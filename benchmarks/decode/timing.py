"""Times of kernels from replays of CUDA graphs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

REPLAYS = (5, 25)  # fewest and most
ENOUGH = 20.0  # milliseconds of replays


def per_layer(calls: Sequence[Callable[[], Any]]) -> float:
    """Return the median time of a call in microseconds.

    The calls, one for each layer, are captured in one graph. So neither Python nor the driver's launches are timed, and
    the cache of a layer is not in L2 because the same call ran just before.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # compile, and let cuBLAS allocate
            calls[0]()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = [_replay(graph)]
    least, most = REPLAYS
    while len(times) < least or (len(times) < most and sum(times) < ENOUGH):
        times.append(_replay(graph))
    del graph
    return statistics.median(times) * 1000 / len(calls)


def _replay(graph: Any) -> float:
    """Return the milliseconds of a replay."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
