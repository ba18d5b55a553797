"""The companion modules without vLLM; `test_ct_fp8_lm_head_cpu.py` runs them inside the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vpatch_overlays.companions.ct_fp8_lm_head import spellings
from vpatch_overlays.companions.ct_fp8_lm_head_weights import set_padding


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("lm_head", ("lm_head", "language_model.lm_head")),
        ("language_model.lm_head", ("language_model.lm_head", "lm_head")),
        ("thinker.lm_head", ("thinker.lm_head", "lm_head")),
        ("embed_out", ("embed_out", "language_model.embed_out")),
        ("", ("",)),
    ],
)
def test_a_config_may_name_a_head_by_another_prefix(prefix: str, names: tuple[str, ...]) -> None:
    assert spellings(prefix) == names


def shards(
    vocab_size_padded: int, org_vocab_size_padded: int, vocab_size: int, org_vocab_size: int, tp_rank: int, tp_size: int
) -> Any:
    """Split a vocabulary as vLLM's `_get_indices`."""
    own, vocab, rank, ranks = org_vocab_size_padded, org_vocab_size, tp_rank, tp_size
    share = own // ranks
    return SimpleNamespace(
        padded_org_vocab_start_index=rank * share,
        org_vocab_start_index=min(rank * share, vocab),
        org_vocab_end_index=min((rank + 1) * share, vocab),
        added_vocab_start_index=0,
        added_vocab_end_index=0,
    )


@pytest.mark.parametrize("added", [0, 16, 200])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("vocab", [1026, 128_256, 129_280, 151_936, 154_880, 200_064, 201_088, 248_320])
def test_every_rank_has_whole_blocks_in_order(vocab: int, ranks: int, added: int) -> None:
    stock, rows = -(-vocab // 64) * 64, 128 * ranks
    for rank in range(ranks):
        layer: Any = SimpleNamespace(
            tp_size=ranks, num_embeddings=vocab + added, org_vocab_size=vocab, embedding_dim=8, prefix="lm_head"
        )
        layer.org_vocab_size_padded, layer._get_indices = stock, shards
        layer.shard_indices = shards(0, stock, 0, vocab, rank, ranks)

        set_padding(layer, rows)

        assert layer.org_vocab_size_padded // ranks % 128 == layer.num_embeddings_per_partition % 128 == 0
        assert 0 <= layer.org_vocab_size_padded - vocab < rows
        start = layer.shard_indices.padded_org_vocab_start_index
        assert start == rank * layer.org_vocab_size_padded // ranks
        share = layer.org_vocab_size_padded // ranks
        assert layer.num_org_embeddings_per_partition == max(0, min(share, vocab - start))
        assert layer.output_partition_sizes == [layer.num_embeddings_padded // ranks]
