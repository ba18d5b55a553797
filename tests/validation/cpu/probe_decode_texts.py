"""Print where the inline PTX of `turboquant-decode` decodes otherwise than the plain kernels, as JSON.

Run by `environment.probe`.
"""

from __future__ import annotations

import random
from typing import Any

from tests.validation.cpu.probe_decode import companion
from tests.validation.cpu.ptx import halves, run

WORDS = 200


def numbers(text: str, bits: int, words: tuple[int, int]) -> tuple[float, float]:
    """Decode one code of two words: 16 bits each in one register, or 24 bits each in two, with nothing above them."""
    return halves(run(text, words[1] << 16 | words[0]) if bits == 4 else run(text, *words))


def wrong(texts: tuple[str, ...], bits: int, meaning: list[float]) -> list[Any]:
    """Return the first words that the texts decode to other numbers than `meaning` has."""
    draw = random.Random(bits)  # noqa: S311 - of test data
    size = 1 << bits * len(texts)
    # Every code at every place, then words as they come.
    each = [code << bits * place for place in range(len(texts)) for code in range(1 << bits)]
    words = [(word, size - 1 - word) for word in each]
    words += [(draw.randrange(size), draw.randrange(size)) for _ in range(WORDS)]
    return [
        [pair, place]
        for pair in words
        for place, text in enumerate(texts)
        if numbers(text, bits, pair) != tuple(meaning[word >> bits * place & (1 << bits) - 1] for word in pair)
    ][:5]


def main(_home: str) -> dict[str, Any]:
    """Compare keys with vLLM's codebooks in fp16, as the plain kernels round them, and values with the codes."""
    from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids

    codes = companion("turboquant_decode_codes")
    found: dict[str, Any] = {}
    for bits in (4, 3):
        found[f"values of {bits} bits"] = wrong(
            codes.value_texts(bits), bits, [code - (2**bits - 1) / 2 for code in range(2**bits)]
        )
        for size in (64, 128, 256):
            codebook = get_centroids(size, bits)
            texts = codes.key_texts(bits, codebook.tolist())
            found[f"keys of {bits} bits, head size {size}"] = wrong(texts, bits, codebook.half().tolist())
    try:
        codes.key_texts(4, [*range(15), 99.0])
    except ValueError as error:
        found["error"] = str(error)
    texts = companion("turboquant_decode").texts
    before = texts(4, 4, 128, inline_ptx=True)
    texts.cache_clear()
    get_centroids(128, 4).uniform_()  # as dummy weights overwrite it on 0.20, where it is a buffer of the layer
    found["kept"] = texts(4, 4, 128, inline_ptx=True) == before
    return found
