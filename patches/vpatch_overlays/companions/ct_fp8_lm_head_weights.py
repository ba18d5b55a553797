"""The weights of an output head (`lm_head`) in FP8: its geometry, and loading a checkpoint's scales into it.

Rows are tokens. A rank holds its share of the vocabulary, padding rows, and then its share of added tokens.
Imported by `vocab_parallel_embedding.py`: nothing of vLLM at module level.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

PADDING = 1.0
"""The scale of blocks that hold padding rows only. Kernels may take its logarithm."""

TIED = "vpatch_tied_head"
"""Attribute of embeddings that serve as the head of this name, which the checkpoint's config quantizes."""


def set_geometry(layer: VocabParallelEmbedding, prefix: str) -> None:
    """Set the attributes by which quantized kernels recognize a linear layer, as vLLM 0.31 sets them."""
    layer.input_size = layer.input_size_per_partition = layer.embedding_dim
    layer.output_size = layer.num_embeddings_padded
    layer.output_size_per_partition = layer.num_embeddings_padded // layer.tp_size
    layer.output_partition_sizes = [layer.output_size_per_partition]
    layer.prefix = prefix


def pad_to_blocks(layer: ParallelLMHead) -> None:
    """Pad the vocabulary of a head with block scales, so that tensor parallelism cuts no block of its weights in two.

    Each rank then holds a multiple of `block_n` rows, as kernels and `validate_fp8_block_shape` require. Call this once
    the quantization method is known, before it creates weights. Other heads stay unchanged.
    """
    from vllm._vpatch.ct_fp8_lm_head import is_quantized

    if layer.tp_size > 1 and is_quantized(layer) and (block := getattr(layer.scheme, "weight_block_size", None)):
        set_padding(layer, lcm(layer.padding_size, block[0] * layer.tp_size))


def set_padding(layer: ParallelLMHead, rows: int) -> None:
    """Pad the vocabulary of a head, and then its added tokens, to multiples of `rows`; split both among ranks again.

    If the size of the bias changes, it is allocated again, and has to be loaded afterwards. The caller handles weights.
    """
    # The rank in any process group: every rank has an even share of the padded vocabulary.
    rank = layer.shard_indices.padded_org_vocab_start_index // (layer.org_vocab_size_padded // layer.tp_size)
    added = layer.num_embeddings - layer.org_vocab_size
    layer.padding_size = rows
    layer.org_vocab_size_padded = -(-layer.org_vocab_size // rows) * rows
    layer.num_embeddings_padded = -(-(layer.org_vocab_size_padded + added) // rows) * rows
    layer.num_embeddings_per_partition = layer.num_embeddings_padded // layer.tp_size
    layer.shard_indices = layer._get_indices(
        vocab_size_padded=layer.num_embeddings_padded,
        org_vocab_size_padded=layer.org_vocab_size_padded,
        vocab_size=layer.num_embeddings,
        org_vocab_size=layer.org_vocab_size,
        tp_rank=rank,
        tp_size=layer.tp_size,
    )
    shard = layer.shard_indices
    layer.num_org_embeddings_per_partition = shard.org_vocab_end_index - shard.org_vocab_start_index
    layer.num_added_embeddings_per_partition = shard.added_vocab_end_index - shard.added_vocab_start_index
    set_geometry(layer, layer.prefix)
    bias = getattr(layer, "bias", None)
    if bias is not None and len(bias) != layer.num_embeddings_per_partition:
        bias.data = bias.new_empty(layer.num_embeddings_per_partition)  # the parameter keeps its loader


def load(layer: VocabParallelEmbedding, param: torch.nn.Parameter, loaded: torch.Tensor) -> bool:
    """Load a head's block scales of shape [ceil(V / block_n), ceil(H / block_k)], and check other FP8 tensors.

    Returns:
        True if it is loaded, False if vLLM's own loader has to load it.

    Raises:
        ValueError: the tensor's rows or columns do not fit the vocabulary, the hidden size and the blocks; or it is an
            FP8 head, but the model ties its head to the embeddings; or it is a plain head, but the config quantizes it.
    """
    from vllm._vpatch.ct_fp8_lm_head import is_quantized

    if _is_fp8(loaded) and (head := getattr(layer, TIED, None)):
        raise ValueError(
            f"The checkpoint has an FP8 {head} of its own, but its config ties the head to the input embeddings, which "
            "would be read without scales. Set tie_word_embeddings to false in the checkpoint's config."
        )
    if not is_quantized(layer):
        return False
    from vllm.model_executor.parameter import (
        BlockQuantScaleParameter,
        ChannelQuantScaleParameter,
        ModelWeightParameter,
    )

    if isinstance(param, BlockQuantScaleParameter):
        block_n = layer.weight_block_size[0]
        _check(layer, param, loaded, rows=-(-layer.org_vocab_size // block_n))
        shard = layer.shard_indices
        mine = loaded[shard.padded_org_vocab_start_index // block_n : -(-shard.org_vocab_end_index // block_n)]
        param.data[: len(mine)].copy_(mine)
        param.data[len(mine) :].fill_(PADDING)
        return True
    weight = isinstance(param, ModelWeightParameter) and _is_fp8(param)
    if weight and not _is_fp8(loaded):
        raise ValueError(
            f"The checkpoint's config quantizes {layer.prefix} to FP8, but the checkpoint has it as {loaded.dtype}. "
            "If it is the model's head, add it to the ignore list of the config. "
            "If an MTP module has a head of its own that vLLM loads as lm_head, quantize that head, too."
        )
    if weight or isinstance(param, ChannelQuantScaleParameter):
        _check(layer, param, loaded, rows=layer.org_vocab_size)
    return False


def _is_fp8(tensor: torch.Tensor) -> bool:
    return bool(tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1)


def _check(layer: ParallelLMHead, param: torch.nn.Parameter, loaded: torch.Tensor, rows: int) -> None:
    wanted = (rows, *param.shape[1:])
    if tuple(loaded.shape) != wanted:
        block = getattr(layer, "weight_block_size", None)
        raise ValueError(
            f"A tensor of {layer.prefix} has the shape {list(loaded.shape)} in the checkpoint, not {list(wanted)}: "
            f"there are {layer.org_vocab_size} tokens of {layer.embedding_dim} values"
            + (f" in blocks of {list(block)}." if block else ".")
        )
