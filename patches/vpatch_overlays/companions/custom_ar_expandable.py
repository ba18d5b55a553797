"""CUDA graphs with custom all-reduce, captured outside of expandable segments; vllm-project/vllm#42609.

Imported by `vllm/distributed/parallel_state.py`: nothing of vLLM at module level.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

SEGMENTS = "expandable_segments"
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Where the allocator's configuration comes from, and where PyTorch reports it: one of these, by its version."""


@contextmanager
def capture_shareably(ca_comm: CustomAllreduce) -> Iterator[None]:
    """Capture with a group's custom all-reduce, and register its buffers, with expandable segments off meanwhile.

    If the all-reduce is disabled, or expandable segments are not on, it is only `ca_comm.capture()`.
    """
    conf = None if ca_comm.disabled else _with_segments()
    if conf is None:
        with ca_comm.capture():
            yield
        return
    _set(_switched(conf, on=False))
    try:
        with ca_comm.capture():
            yield
    finally:
        _set(_switched(conf, on=True))


def _with_segments() -> str | None:
    """Return the allocator's present configuration if expandable segments are on, None if they are not.

    Only a process whose environment names them is asked: what the allocator reports may take long.
    """
    environment = [os.environ[name] for name in VARIABLES if os.environ.get(name)]
    if not any(SEGMENTS in conf for conf in environment):
        return None
    import torch

    settings = torch.cuda.memory._snapshot().get("allocator_settings", {})
    conf: str = next((settings[name] for name in VARIABLES if settings.get(name)), environment[0])
    on = settings.get(SEGMENTS, f"{SEGMENTS}:True" in conf.replace(" ", ""))
    return conf if on else None


def _switched(conf: str, *, on: bool) -> str:
    """Return a configuration with expandable segments on or off, and all else as it is."""
    fields = [field.strip() for field in conf.split(",")]
    kept = [field for field in fields if field and field.partition(":")[0].strip() != SEGMENTS]
    return ",".join([*kept, f"{SEGMENTS}:{on}"])


def _set(conf: str) -> None:
    """Set the allocator's whole configuration. The name of the setter depends on the version of PyTorch."""
    import torch

    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (setter or torch.cuda.memory._set_allocator_settings)(conf)
