"""Compiled models: another kernel, weight or GPU has a folder of its own, and a second start finds the first one's."""

import os
from contextlib import nullcontext
from typing import Any

from vpatch_overlays.probes.bare import expect, settle


def main() -> None:
    """Ask this release's `__call__` where it looks for a compiled model; nothing is compiled, and no GPU is used."""
    os.environ["VLLM_USE_AOT_COMPILE"] = "1"
    settle()
    first = folder()
    expect("the folder at a second start", first, folder())
    for what, changed in {
        "another kernel": folder(kernel="Marlin"),
        "a weight of another name": folder(weight="weight_packed"),
        "another layout of the weight": folder(transposed=True),
        "another GPU": folder(capability=(8, 6)),
    }.items():
        expect(f"folders for the first start and one with {what}", 2, len({first, changed}))


def folder(
    *,
    kernel: str = "Cutlass",
    weight: str = "weight",
    transposed: bool = False,
    capability: tuple[int, int] = (9, 0),
    value: float = 0.0,
    wrapped: bool = False,
    more: dict[str, Any] | None = None,
) -> str:
    """Return where a model with one layer in FP8 is looked for, at its first call.

    Args:
        kernel: the class of its kernel.
        weight: the name of its weight.
        transposed: whether the weight is stored by columns.
        capability: the GPU's compute capability.
        value: each number of the weight.
        wrapped: whether another layer holds it, as with LoRA.
        more: attributes of the layer; a number stands for a tensor of that many.
    """
    import torch
    from vllm.compilation import decorators
    from vllm.config import CompilationConfig, CompilationMode, VllmConfig, set_current_vllm_config
    from vllm.platforms import current_platform

    type(current_platform).get_device_capability = classmethod(lambda cls, device_id=0: capability)
    asked: list[str] = []

    def load(_: Any, path: str) -> Any:
        asked.append(path)
        return lambda _, x: x

    vars(decorators).update(_try_load_aot_compiled_fn=load)
    for name in ("monitor_profiling_run", "maybe_use_cudagraph_partition_wrapper"):
        vars(decorators)[name] = lambda *_, **__: nullcontext()

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            tensor = torch.full((4, 4), value)
            self.register_parameter(weight, torch.nn.Parameter(tensor.t() if transposed else tensor))
            self.quant_method = method(kernel)
            for name, given in (more or {}).items():
                setattr(self, name, given if isinstance(given, bool) else torch.zeros(given))

    compiled = VllmConfig(compilation_config=CompilationConfig(mode=CompilationMode.VLLM_COMPILE))
    with set_current_vllm_config(compiled):
        model = model_class()(vllm_config=compiled)
        model.layer = torch.nn.Sequential(Layer()) if wrapped else Layer()
        model(torch.zeros(2, 4))
    (path,) = asked
    return path


def method(kernel: str) -> Any:
    """Return a quantization method with a kernel, as classes of vLLM."""
    chosen = type(kernel, (), {"__module__": "vllm.model_executor.kernels.linear"})()
    holder = type("Fp8LinearMethod", (), {"__module__": "vllm.model_executor.layers.quantization.fp8"})()
    holder.fp8_linear = chosen
    return holder


def model_class() -> Any:
    """Return a class that this release compiles, the same one each time."""
    import torch
    from vllm.compilation.decorators import support_torch_compile

    @support_torch_compile(dynamic_arg_dims={"x": 0})
    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    return Model


if __name__ == "__main__":
    main()
