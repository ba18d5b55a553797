"""The weights of an output head (`lm_head`) in FP8: its geometry, and how a checkpoint's scales get into it.

Rows are tokens. A rank holds its share of the vocabulary, padding rows, and then its share of added tokens.
Imported by `vocab_parallel_embedding.py`: nothing of vLLM at module level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

PADDING = 1.0
"""The scale of blocks that hold padding rows only. Kernels may take its logarithm."""


def set_geometry(layer: VocabParallelEmbedding, prefix: str) -> None:
    """Give a layer the attributes by which quantised kernels know a linear layer; as vLLM 0.31 has them."""
    layer.input_size = layer.input_size_per_partition = layer.embedding_dim
    layer.output_size = layer.num_embeddings_padded
    layer.output_size_per_partition = layer.num_embeddings_padded // layer.tp_size
    layer.output_partition_sizes = [layer.output_size_per_partition]
    layer.prefix = prefix


def cut(rows: int, ranks: int, block: int) -> bool:
    """Tell whether sharing `rows` evenly among `ranks` cuts a block of so many rows."""
    return ranks > 1 and rows // ranks % block != 0


def refuse_cut_blocks(layer: ParallelLMHead) -> None:
    """Refuse a tensor parallelism that would cut a block of a head's weights in two, each half on another rank.

    Raises:
        ValueError: it would.
    """
    from vllm._vpatch.ct_fp8_lm_head import is_quantised

    if not is_quantised(layer) or not (block := getattr(layer.scheme, "weight_block_size", None)):
        return
    for rows in (layer.org_vocab_size_padded, layer.num_embeddings_padded):
        if cut(rows, layer.tp_size, block[0]):
            raise ValueError(
                f"Tensor parallelism of {layer.tp_size} cuts a block of {layer.prefix}: its vocabulary of "
                f"{layer.org_vocab_size} tokens ({rows} with padding) makes {rows // layer.tp_size} rows a rank, which "
                f"is no multiple of the {block[0]} rows of a quantisation block {list(block)}."
            )


def load(layer: ParallelLMHead, param: torch.nn.Parameter, loaded: torch.Tensor) -> bool:
    """Load a head's block scales of shape [ceil(V / block_n), ceil(H / block_k)], and check other FP8 tensors.

    Returns:
        True if it is loaded, False if it is for vLLM's own loader to do.

    Raises:
        ValueError: the checkpoint's tensor has another number of rows or columns than the vocabulary, the hidden size
            and the blocks make.
    """
    from vllm._vpatch.ct_fp8_lm_head import is_quantised

    if not is_quantised(layer):
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
    fp8 = param.dtype.is_floating_point and param.dtype.itemsize == 1
    if isinstance(param, ChannelQuantScaleParameter) or (isinstance(param, ModelWeightParameter) and fp8):
        _check(layer, param, loaded, rows=layer.org_vocab_size)
    return False


def _check(layer: ParallelLMHead, param: torch.nn.Parameter, loaded: torch.Tensor, rows: int) -> None:
    wanted = (rows, *param.shape[1:])
    if tuple(loaded.shape) != wanted:
        block = getattr(layer, "weight_block_size", None)
        raise ValueError(
            f"A tensor of {layer.prefix} has the shape {list(loaded.shape)} in the checkpoint, not {list(wanted)}: "
            f"there are {layer.org_vocab_size} tokens of {layer.embedding_dim} values"
            + (f" in blocks of {list(block)}." if block else ".")
        )
