"""A decode step of TurboQuant: which kernels attend to the KV cache. They compute nothing here."""

from collections.abc import Callable
from contextlib import suppress

from vpatch_overlays.probes.bare import expect, settle

HEADS, KV_HEADS, SIZE, PAGE, REQUESTS = 8, 2, 128, 16, 3
KEY_BYTES, VALUE_BYTES = SIZE // 2 + 2, SIZE // 2 + 4  # of turboquant_4bit_nc


class Recorder:
    """A Triton kernel that notes its name when it is launched."""

    def __init__(self, name: str, launched: list[str]) -> None:
        self.name, self.launched = name, launched

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *_, **__: self.launched.append(self.name)


def main() -> None:
    """Launch attention of some requests on the meta device."""
    settle()
    import torch
    from vllm.triton_utils import triton
    from vllm.v1.attention.backends.turboquant_attn import _build_hadamard
    from vllm.v1.attention.ops import triton_turboquant_decode as ops

    launched: list[str] = []
    stock = ("_tq_decode_stage1", "_fwd_kernel_stage2")
    vars(ops).update({name: Recorder(name, launched) for name in stock}, _use_fp8_e4b15=lambda device=0: 0)
    vars(triton).setdefault("next_power_of_2", lambda number: 1 << (number - 1).bit_length())  # absent without GPU
    names = ("split_kernel", "combine_kernel")
    with suppress(ImportError):  # unless the overlay is applied
        from vllm._vpatch import turboquant_decode, turboquant_decode_supported

        vars(turboquant_decode).update({name: Recorder(name, launched) for name in names})
        vars(turboquant_decode).update(multiprocessors=lambda _device: 1)
        vars(turboquant_decode_supported).update(no_gpu=lambda: None)
    rotation = _build_hadamard(SIZE, "meta")
    ops.triton_turboquant_decode_attention(
        torch.empty(REQUESTS, HEADS, SIZE, dtype=torch.float16, device="meta"),
        torch.empty(4, PAGE, KV_HEADS, KEY_BYTES + VALUE_BYTES, dtype=torch.uint8, device="meta"),
        torch.empty(REQUESTS, 4, dtype=torch.int32, device="meta"),
        torch.empty(REQUESTS, dtype=torch.int32, device="meta"),
        rotation,
        torch.empty(16, device="meta"),
        SIZE**-0.5,
        4,
        KEY_BYTES,
        4,
        norm_correction=True,
        PiT=rotation,
    )
    expect("kernels of a decode step", list(names), launched)


if __name__ == "__main__":
    main()
