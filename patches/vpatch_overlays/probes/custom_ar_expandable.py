"""CUDA graphs with custom all-reduce: captured, and their buffers registered, with expandable segments off."""

import os
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

from vpatch_overlays.probes.bare import expect, settle

CONF = "max_split_size_mb:512,expandable_segments:True"
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
FAILS = "a capture that fails"

Events = list[tuple[str, str]]
"""What happened, with the allocator's configuration at that time."""


def main() -> None:
    """Capture with a group that has custom all-reduce, once with an error; no GPU is used."""
    settle()
    for error in ("", FAILS):
        events, behind = captured(CONF, error=error)
        seen = [(event, "expandable_segments:True" in conf) for event, conf in events]
        expect(f"expandable segments, {error or 'a capture'}", [("captured", False), ("registered", False)], seen)
        expect("the allocator's other options meanwhile", 2, sum("max_split_size_mb:512" in conf for _, conf in events))
        expect("the allocator's configuration behind it", sorted(CONF.split(",")), sorted(behind.split(",")))


def captured(conf: str, *, disabled: bool = False, groups: int = 1, error: str = "") -> tuple[Events, str]:
    """Let groups of this release capture, one in the other, with an allocator that is configured by `conf`.

    Returns:
        The events, and the configuration behind them.
    """
    import torch
    from vllm.distributed.parallel_state import GraphCaptureContext, GroupCoordinator

    allocator, events = Allocator(conf), Events()
    stream = SimpleNamespace(wait_stream=lambda _: None)
    vars(torch.cuda).update(current_stream=lambda *_: stream, stream=lambda _: nullcontext())
    context: Any = GraphCaptureContext(stream)
    every = [group(allocator, events, disabled=disabled) for _ in range(groups)]

    def capture(rest: list[Any]) -> None:
        if rest:
            with GroupCoordinator.graph_capture(rest[0], context):
                capture(rest[1:])
            return
        events.append(("captured", allocator.conf))
        if error:
            raise RuntimeError(error)

    with suppress(RuntimeError):
        capture(every)
    return events, allocator.conf


class Allocator:
    """The configuration of PyTorch's allocator, installed in this process; a new one replaces all of the old one."""

    def __init__(self, conf: str) -> None:
        import torch

        os.environ.pop("PYTORCH_ALLOC_CONF", None)
        os.environ[VARIABLE] = self.conf = conf
        vars(torch._C)["_accelerator_setAllocatorSettings"] = self.set
        vars(torch.cuda.memory).update(_set_allocator_settings=self.set, _snapshot=self.snapshot)

    def set(self, conf: str) -> None:
        """Replace the configuration."""
        self.conf = conf

    def snapshot(self, *_: object, **__: object) -> dict[str, Any]:
        """Return the configuration, where PyTorch reports it."""
        on = "expandable_segments:True" in self.conf
        return {"segments": [], "allocator_settings": {VARIABLE: self.conf, "expandable_segments": on}}


def group(allocator: Allocator, events: Events, *, disabled: bool) -> Any:
    """Return a group of ranks with custom all-reduce, as vLLM makes it, which registers its buffers in `events`."""
    from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator
    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

    class Reduces(CustomAllreduce):  # type: ignore[misc]
        def __init__(self) -> None:
            self.disabled, self._ptr = disabled, 0

        def register_graph_buffers(self) -> None:
            events.append(("registered", allocator.conf))

        def close(self) -> None:
            """Free nothing: it has no buffers."""

    communicator = CudaCommunicator.__new__(CudaCommunicator)
    vars(communicator).update(ca_comm=Reduces(), fi_pcie_ipc_ar_comm=None, aiter_ar_comm=None)
    return SimpleNamespace(device_communicator=communicator)


if __name__ == "__main__":
    main()
