"""Key of the layers that vLLM compiles: what a compiled model reads of them, and the GPU that it is compiled for."""

import hashlib
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch

DEPTH = 3
"""How far from a layer its objects are read: quantization method, scheme, kernel."""

LATER = "kv_cache"
"""Allocated by the free memory, behind the first run."""


def layers_key(model: torch.nn.Module) -> str:
    """Hash the layers of a model as they are once its weights are loaded, and the GPU.

    Two starts have the same key if all layers have the same classes, kernels and tensors (shape, stride and dtype). The
    values of weights do not count.
    """
    from vllm.platforms import current_platform

    digest = hashlib.sha256()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    digest.update(f"{gpu} {current_platform.get_device_capability()}\n".encode())
    for name, layer in model.named_modules():
        for line in _layer(layer):
            digest.update(f"{name}: {line}\n".encode())
    return digest.hexdigest()


def _layer(layer: torch.nn.Module) -> Iterator[str]:
    """Describe a layer, without the layers in it."""
    yield _class(layer)
    for name, tensor in sorted((layer._parameters | layer._buffers).items()):
        yield f"{name}={_tensor(tensor)}"
    # A compiled layer within another one keeps there whether it was loaded or compiled.
    if "do_not_compile" not in vars(layer):
        yield from _attributes(layer, "", DEPTH)


def _attributes(owner: Any, path: str, depth: int) -> Iterator[str]:
    """Describe what an object refers to: classes, functions, switches and tensors, but no text and no number."""
    for name, value in sorted(getattr(owner, "__dict__", {}).items()):
        where = f"{path}.{name}"
        if value is None or isinstance(value, bool | Enum):
            yield f"{where}={value}"
        elif isinstance(value, torch.Tensor):
            if name != LATER:
                yield f"{where}={_tensor(value)}"
        elif callable(value) and hasattr(value, "__qualname__"):
            yield f"{where}={getattr(value, '__module__', None)}.{value.__qualname__}"
        elif type(value).__module__.startswith("vllm."):
            yield f"{where}={_class(value)}"
            # The configuration is in the key already.
            if depth > 1 and not (isinstance(value, torch.nn.Module) or _class(value).startswith("vllm.config.")):
                yield from _attributes(value, where, depth - 1)


def _class(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _tensor(tensor: torch.Tensor | None) -> str:
    if tensor is None or torch.nn.parameter.is_lazy(tensor):
        return "None"
    stride = tensor.stride() if tensor.layout == torch.strided else tensor.layout
    return f"{tensor.dtype} {tuple(tensor.shape)} {stride}"
