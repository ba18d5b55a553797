"""Where the inline PTX of `turboquant-decode`, which Python runs here, decodes otherwise than the plain kernels."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from struct import pack, unpack
from typing import Any

from tests.validation.cpu.probe_decode import companion

WORD = 0xFFFFFFFF


def run(text: str, *inputs: int) -> int:
    """Run a block with inputs $1, $2 ...; return $0, as 32 bits.

    Raises:
        KeyError: an instruction that is not known here, or a register that nothing was written to.
    """
    registers = {f"${place}": value for place, value in enumerate(inputs, 1)}

    def value(operand: str) -> int:
        return int(operand, 0) & WORD if operand[0].isdigit() else registers[operand]

    for statement in text.strip().strip("{}").split(";"):
        name, _, operands = statement.strip().partition(" ")
        if name and name != ".reg":
            target, *sources = re.split(r",\s*", operands)
            registers[target] = KNOWN[name](*map(value, sources)) & WORD
    return registers["$0"]


def prmt(a: int, b: int, selector: int) -> int:
    """Pick bytes of the two registers; bit 3 of a digit would copy a sign and is not used."""
    together = b << 32 | a
    digits = [selector >> 4 * place & 15 for place in range(4)]
    assert max(digits) < 8
    return sum((together >> 8 * digit & 255) << 8 * place for place, digit in enumerate(digits))


def lop3(a: int, b: int, c: int, table: int) -> int:
    """Look each bit up in a table of 8: the bits of a, b and c number the entry."""
    picked = 0
    for entry in range(8):
        if table >> entry & 1:
            picked |= (a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c)
    return picked


def halves(word: int) -> tuple[float, float]:
    """Return the two fp16 numbers of a register, the lower first."""
    low, high = unpack("<2e", pack("<I", word))
    return low, high


def difference(a: int, b: int) -> int:
    """Subtract two fp16 numbers from two others."""
    return int(unpack("<I", pack("<2e", *(x - y for x, y in zip(halves(a), halves(b), strict=True))))[0])


KNOWN: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "not.b32": lambda a: ~a,
    "shl.b32": lambda a, by: a << by,
    "shr.u32": lambda a, by: a >> by,
    "sub.u32": lambda a, b: a - b,
    "prmt.b32": prmt,
    "lop3.b32": lop3,
    "sub.rn.f16x2": difference,
}

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
