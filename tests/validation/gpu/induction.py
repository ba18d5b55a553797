"""A Qwen3 that does induction by construction: greedy answers continue a repeated text by margins above 12 nats.

Answers then differ from the repetition only if attention is wrong, and n-gram drafts are usually accepted. Layer 0,
whose KV cache is not quantized, copies the code of the previous token. Layer 3 (TurboQuant) finds where the current
token was seen before and copies the code of the token that followed. All other layers are small random noise.

The residual stream holds the code of the token (dimensions 0 to 255), the code of the previous token (256 to 511), the
prediction (512 to 767), and a constant (768).
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from tests.validation.gpu.models import HIDDEN, VOCABULARY, Config, Weights, body, dense

if TYPE_CHECKING:
    from torch import Generator, Tensor

LAYERS, SIZE, CODE, CONSTANT = 8, 128, 256, 768
PREVIOUS, PREDICTION = CODE, 2 * CODE
NOISE = 0.02
COPYING, FINDING = 0, 3
"""Layers with designed attention; each uses the query heads 0 and 2 with the KV heads 0 and 1."""
HEADS = ((0, 0), (2, 1))
FAST, SLOW = range(24), range(40, 64)
"""Rotary pairs: the fast ones tell neighboring positions apart, the slow ones hardly depend on the position."""
PERIOD = 50


def repeated(length: int, period: int = PERIOD, seed: int = 5) -> tuple[list[int], list[int]]:
    """Return a text that repeats a pattern, and the pattern.

    In the first and the last two repetitions but one, some tokens are others, so that drafts are rejected, too.
    """
    tokens = random.Random(seed).sample(range(10, 3900), period + 4)  # noqa: S311
    pattern, others = tokens[:period], tokens[period:]
    count = -(-length // period)
    text: list[int] = []
    for i in range(count):
        block = list(pattern)
        if i in (0, count - 3, count - 2):
            for at, other in zip((11, 23, 24, 40), others, strict=True):
                block[at] = other
        text += block
    return text[:length], pattern


def config_and_weights() -> tuple[Config, Weights]:
    import torch

    generator = torch.Generator().manual_seed(11)
    config = dense(LAYERS)
    weights = body(config, seed=3)
    for i in range(LAYERS):
        weights[f"model.layers.{i}.self_attn.o_proj.weight"] *= NOISE / 4
        weights[f"model.layers.{i}.mlp.down_proj.weight"] *= NOISE
    code = (torch.randint(0, 2, (VOCABULARY, CODE), generator=generator) * 2 - 1).float()
    embedding = torch.zeros(VOCABULARY, HIDDEN)
    embedding[:, :CODE] = code
    embedding[:, CONSTANT] = 4.0
    rest = HIDDEN - CONSTANT - 1
    embedding[:, CONSTANT + 1 :] = 0.05 * torch.randn(VOCABULARY, rest, generator=generator)
    weights["model.embed_tokens.weight"] = embedding.bfloat16()
    _copy_previous(weights)
    _find_current(weights, generator)
    head = 0.01 * torch.randn(VOCABULARY, HIDDEN, generator=generator) / 8
    head[:, PREDICTION : PREDICTION + CODE] += 0.05 * code
    weights["lm_head.weight"] = head.bfloat16()
    return config, weights


def _copy_previous(weights: Weights) -> None:
    """Let layer 0 attend from each token to the one before it: the query is the key's, turned by one position."""
    import torch

    query, key, value, out = _projections(weights, COPYING)
    scale = math.sqrt((CODE + 16) / HIDDEN)  # of the layer's input
    for head, kv in HEADS:
        q, k = head * SIZE, kv * SIZE
        query[q : q + SIZE] = key[k : k + SIZE] = value[k : k + SIZE] = 0
        for i in FAST:
            angle = 1e6 ** (-i / 64)
            size = 0.25 * (1.0 if i < 6 else 0.6)
            query[q + i, CONSTANT], query[q + i + 64, CONSTANT] = size * math.cos(angle), -size * math.sin(angle)
            key[k + i, CONSTANT] = size
        there = torch.arange(SIZE)
        value[k + there, k + there] = 1.0
        out[:, q : q + SIZE] = 0
        out[PREVIOUS + k + there, q + there] = scale
        out[PREVIOUS + k : PREVIOUS + k + SIZE, q + SIZE : q + 2 * SIZE] = 0
    _store(weights, COPYING, (query, key, value, out), gain=16.0)


def _find_current(weights: Weights, generator: Generator) -> None:
    """Let layer 3 attend to tokens whose previous token is the current one, and write their code as the prediction."""
    import torch

    query, key, value, out = _projections(weights, FINDING)
    rows = [*SLOW, *(i + 64 for i in SLOW)]
    mixed = torch.randn(len(rows), CODE, generator=generator) / 16
    for head, kv in HEADS:
        q, k = head * SIZE, kv * SIZE
        query[q : q + SIZE] = key[k : k + SIZE] = value[k : k + SIZE] = 0
        for n, row in enumerate(rows):
            query[q + row, :CODE] = mixed[n]
            key[k + row, PREVIOUS : PREVIOUS + CODE] = mixed[n]
        there = torch.arange(SIZE)
        value[k + there, k + there] = 1.0
        out[:, q : q + SIZE] = 0
        out[PREDICTION + k + there, q + there] = 2.0
    _store(weights, FINDING, (query, key, value, out), gain=3.0)


def _projections(weights: Weights, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value, out = (weights[f"model.layers.{layer}.self_attn.{n}_proj.weight"].float() for n in "qkvo")
    return query, key, value, out


def _store(weights: Weights, layer: int, matrices: tuple[Tensor, ...], gain: float) -> None:
    import torch

    prefix = f"model.layers.{layer}.self_attn."
    for name, matrix in zip("qkvo", matrices, strict=True):
        weights[f"{prefix}{name}_proj.weight"] = matrix.bfloat16()
    weights[f"{prefix}q_norm.weight"] = torch.full((SIZE,), gain).bfloat16()
