"""The GPU of this machine, as CUDA's driver reports it."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t

from vpatch.plan.deployment import Gpu, gpu

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NAME = 256  # characters, more than any name has


def gpu_here(library: str = "libcuda.so.1") -> Gpu | None:
    """Return the first GPU, with the memory that vLLM takes its share of; None if there is no driver or no GPU.

    NVML would say what is built in, of which the driver keeps some 2 %. This creates no context, and takes no memory.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None
    device, memory, major, minor = c_int(), c_size_t(), c_int(), c_int()
    name = ctypes.create_string_buffer(_NAME)
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(byref(device), 0)
        or cuda.cuDeviceGetName(name, _NAME, device)
        or cuda.cuDeviceTotalMem_v2(byref(memory), device)
        or cuda.cuDeviceGetAttribute(byref(major), _MAJOR, device)
        or cuda.cuDeviceGetAttribute(byref(minor), _MINOR, device)
    )
    if failed:
        return None
    called = name.value.decode("utf-8", "replace").removeprefix("NVIDIA ").removeprefix("GeForce ")
    known = gpu(called, memory.value)
    return Gpu(known.name, memory.value, (major.value, minor.value), "the driver of this machine")
