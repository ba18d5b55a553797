"""A compressed-tensors output head in FP8 by blocks: the config targets it, and its scales load."""

import os
import tempfile
from types import SimpleNamespace
from typing import Any

from vpatch_overlays.probes.bare import DENSE, engine_config, expect, settle

VOCABULARY, HIDDEN, BLOCK = 1000, 256, 128

FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
GROUP = {
    "targets": ["lm_head"],
    "weights": FP8 | {"strategy": "block", "block_structure": [BLOCK, BLOCK], "dynamic": False},
    "input_activations": FP8 | {"strategy": "group", "group_size": BLOCK, "dynamic": True},
    "format": "float-quantized",
}
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": [],
    "config_groups": {"group_0": GROUP},
}
PREFIX = "language_model.lm_head"  # the prefix in multimodal models

KERNELS = ("init_fp8_linear_kernel", "init_wfp8_a16_linear_kernel", "W8A8BlockFp8LinearOp")


def single_rank() -> None:
    """Make the process groups of tensor parallelism 1."""
    from vllm.distributed import parallel_state

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # there may be no other network
    parallel_state.init_distributed_environment(1, 0, f"file://{tempfile.mkdtemp()}/rendezvous", 0, "gloo")
    parallel_state.initialize_model_parallel(1, 1, backend="gloo")


def stand_in_for_kernels() -> None:
    """Make layers constructible whose kernels are missing here."""
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
        compressed_tensors_w8a8_fp8,
        compressed_tensors_w8a16_fp8,
    )

    for module in (compressed_tensors_w8a8_fp8, compressed_tensors_w8a16_fp8):
        for name in vars(module).keys() & KERNELS:
            setattr(module, name, lambda *_, **__: SimpleNamespace(input_quant_key=lambda: None))


def head() -> Any:
    """Make a head as models do."""
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    config = CompressedTensorsConfig.from_config(CONFIG)
    return ParallelLMHead(VOCABULARY, HIDDEN, quant_config=config, prefix=PREFIX)


def main() -> None:
    """Make a head and load it."""
    settle()
    import torch
    from vllm.config import set_current_vllm_config

    stand_in_for_kernels()
    rows = -(-VOCABULARY // BLOCK)
    scales = (torch.arange(rows * HIDDEN // BLOCK).float() + 1).reshape(rows, -1)
    with set_current_vllm_config(engine_config(DENSE)):
        single_rank()
        layer = head()
        parameters = dict(layer.named_parameters())
        expect(f"parameters of {PREFIX}, targeted as lm_head", ["weight", "weight_scale"], sorted(parameters))
        scale = parameters["weight_scale"]
        try:
            scale.weight_loader(scale, scales)
        except AssertionError as error:
            raise AssertionError(f"scales of shape {[*scales.shape]} were to load: {str(error) or 'refused'}") from None
    expect("loaded scales", scales.tolist(), scale.tolist())


if __name__ == "__main__":
    main()
