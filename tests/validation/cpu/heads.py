"""Output heads of the real vLLM, loaded from a made-up checkpoint and compared with it row by row.

The expected values are computed here, from the checkpoint's tensors alone.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from tests.validation.cpu.head_cases import Head

Tensors = dict[str, Any]


def dequantize(weight: Any, scale: Any, block: Sequence[int] | None) -> Any:
    """Dequantize weights [rows, H] by their scales: one for all, one a row, or one a block."""
    import torch

    if not block:
        return weight.float() * scale.float()
    rows, columns = (torch.arange(count) // size for count, size in zip(weight.shape, block, strict=True))
    return weight.float() * scale.float()[rows][:, columns]


class Reference:
    """A stand-in for the FP8 kernels, which need a GPU: dequantizes the layer's weights and multiplies."""

    def __init__(self, **options: Any) -> None:
        self.block = options.get("weight_group_shape")

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.processed = True

    def input_quant_key(self) -> None:
        return None

    def apply_weights(self, layer: Any, x: Any, bias: Any = None) -> Any:
        weight = layer.weight if layer.weight_block_size else layer.weight.t()
        return self.multiply(x, dequantize(weight, layer.weight_scale, layer.weight_block_size), bias)

    # Up to 0.19, for blocks.
    def apply(self, input: Any, weight: Any, weight_scale: Any, input_scale: Any, bias: Any) -> Any:  # noqa: A002
        assert input_scale is None
        return self.multiply(input, dequantize(weight, weight_scale, self.block), bias)

    def multiply(self, x: Any, weight: Any, bias: Any) -> Any:
        logits = x.float() @ weight.t()
        return (logits if bias is None else logits + bias).to(x.dtype)


def stand_in() -> None:
    """Replace the kernels by the reference. Call this before vLLM lists its quantizations."""
    import torch
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    # vLLM imports it with all others; it needs a package that comes with a GPU
    humming = "vllm.model_executor.layers.quantization.humming"
    sys.modules[humming] = ModuleType(humming)
    sys.modules[humming].HummingConfig = QuantizationConfig  # type: ignore[attr-defined]
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
        compressed_tensors_w8a8_fp8,
        compressed_tensors_w8a16_fp8,
    )

    for module in (compressed_tensors_w8a8_fp8, compressed_tensors_w8a16_fp8):
        for name in ("init_fp8_linear_kernel", "init_wfp8_a16_linear_kernel", "W8A8BlockFp8LinearOp"):
            if hasattr(module, name):
                setattr(module, name, Reference)

    def quantize(out: Any, x: Any, scale: Any, *_: Any) -> None:
        out.copy_((x.float() / scale).to(out.dtype))

    torch.ops._C.static_scaled_fp8_quant = quantize
    torch.cuda.Event = object


@contextlib.contextmanager
def rank(number: int, ranks: int) -> Iterator[None]:
    """Make this process one rank of several, without communication to the others."""
    from vllm.distributed import parallel_state

    group = parallel_state.get_tp_group()
    before = group.rank_in_group, group.world_size
    group.rank_in_group, group.world_size = number, ranks
    try:
        yield
    finally:
        group.rank_in_group, group.world_size = before


def checkpoint(head: Head) -> Tensors:
    """Return a checkpoint's tensors of a head; all its scales differ."""
    import torch

    torch.manual_seed(head.vocab)
    weight = torch.randn(head.vocab, head.hidden, dtype=torch.float32).to(torch.float8_e4m3fn)
    rows, columns = (-(-size // step) for size, step in zip((head.vocab, head.hidden), head.block, strict=True))
    shapes = {"block": (rows, columns), "channel": (head.vocab, 1), "tensor": (1,), "scalar": ()}
    shape = torch.Size(shapes[head.kind])
    tensors = {"weight": weight, "weight_scale": (torch.arange(shape.numel()).float() + 1).reshape(shape) / 64}
    if head.activations == "static":
        tensors["input_scale"] = torch.full(shape, 0.75)
    return tensors


def reference(head: Head, tensors: Tensors) -> Any:
    """Return the dequantized weights of a checkpoint, [V, H]."""
    return dequantize(tensors["weight"], tensors["weight_scale"], head.block if head.kind == "block" else None)


def build(head: Head, config: Any, prefix: str = "lm_head") -> Any:
    """Make a head as models do."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return ParallelLMHead(
        head.vocab + head.added,
        head.hidden,
        org_num_embeddings=head.vocab,
        padding_size=head.padding,
        quant_config=config,
        prefix=prefix,
    )


def load(layer: Any, tensors: Tensors) -> None:
    """Load a checkpoint's tensors as vLLM's model loaders do."""
    parameters = dict(layer.named_parameters())
    for name, tensor in tensors.items():
        if name not in parameters:
            raise KeyError(f"no parameter is named {name!r}")
        parameters[name].weight_loader(parameters[name], tensor)


def compare(head: Head, layer: Any, weights: Any, number: int) -> dict[str, Any]:
    """Compare one rank's share with the checkpoint's dequantized `weights` [V, H]: how many rows, and which are wrong.

    A rank has an even share of the padded vocabulary, in order.
    """
    share = -(-head.vocab // head.multiple) * head.multiple // head.ranks
    wanted = weights[number * share : (number + 1) * share]
    got = dequantize(layer.weight, layer.weight_scale, head.block if head.kind == "block" else None)
    rows = len(wanted)
    return {
        "rows": rows,
        "wrong": (got[:rows] != wanted).any(dim=1).nonzero().flatten().tolist()[:5],
        "padding": len(got) - rows,
        "masked": layer.shard_indices.num_org_vocab_padding,
        "padding not zero": got[rows:].count_nonzero().item(),
        "scales not finite": (~layer.weight_scale.isfinite()).sum().item(),
        "least scale": layer.weight_scale.min().item(),
        "input scale": layer.input_scale.tolist() if head.activations == "static" else None,
    }


def logits(layer: Any, hidden: Any) -> Any:
    """Return a head's logits for hidden states [n, H] once its weights are processed: [n, its rows]."""
    layer.quant_method.process_weights_after_loading(layer)
    return layer.quant_method.apply(layer, hidden, None)
