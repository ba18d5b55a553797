"""Codes of TurboQuant's KV cache as fp16 numbers: inline PTX for GPUs, plain Triton for everything else.

The cache packs codes of 4 bits, four in 2 bytes, or of 3 bits, eight in 3 bytes. A *word* here is one such group.
Code i of all words goes to tile i, which enters the tensor cores on its own: tile i holds every 4th (8th) dimension,
and nothing is ever interleaved. Both paths return the same bits.

Each PTX text decodes one code of two words into one register with two fp16 numbers. Texts with one result let the
compiler move the change of layout to the packed words; `ptxas` merges what the texts of one word have in common.

PTX in short: `prmt d, a, b, s` picks four of the eight bytes of a and b by the four lowest hexadecimal digits of s.
`lop3` with 0xEA is (a & b) | c, and with 0x82 is ~(a ^ b) & c.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack, unpack

from vllm.triton_utils import tl, triton

Texts = tuple[str, ...]

# Registers h0, h1, l0, l1: the upper and the lower bytes of the 8 magnitudes. Bit 3 of a code c is its sign, set for
# the numbers above 0. With the bit set the magnitude's index is c & 7, otherwise ~c & 7: both are ~(c ^ m) & 7, where
# m is 7 if the bit is set. Codes 0 to 3 of the first word are the lower digits of x, those of the second those of y.
_INDEX_4 = """\
and.b32 m, $1, 0x88888888; shr.u32 t, m, 3; sub.u32 t, m, t;
lop3.b32 x, $1, t, 0x77777777, 0x82; shr.u32 y, x, 16;
not.b32 n, $1;
"""

# The same for a word of 8 codes of 3 bits, in the lower 24 bits of a register, and a table of 4 magnitudes, in h0 and
# l0. First the codes are spread to digits of 4 bits: halves of 12 bits move apart, then quarters of 6, then codes. Bit
# 2 is the sign; m is 3 if it is set.
_INDEX_3 = """\
shl.b32 s, {word}, 4; and.b32 t, {word}, 0x00000fff; lop3.b32 s, s, 0x0fff0000, t, 0xEA;
shl.b32 t, s, 2; and.b32 s, s, 0x003f003f; lop3.b32 s, t, 0x3f003f00, s, 0xEA;
shl.b32 t, s, 1; and.b32 s, s, 0x07070707; lop3.b32 {digits}, t, 0x70707070, s, 0xEA;
and.b32 m, {digits}, 0x44444444; shr.u32 t, m, 1; shr.u32 s, m, 2; or.b32 t, t, s;
lop3.b32 {index}, {digits}, t, 0x33333333, 0x82;
"""

# Look up four codes of each word, pair their bytes, put the code's two numbers together, and turn the sign of those
# whose sign bit is not set: it is set in n, and moves to the top of its half.
_LOOK_UP = """\
prmt.b32 ha, {upper}, x; prmt.b32 la, {lower}, x; prmt.b32 hb, {upper}, y; prmt.b32 lb, {lower}, y;
prmt.b32 a, la, ha, {pair}; prmt.b32 b, lb, hb, {pair}; prmt.b32 x, a, b, {one};
shl.b32 n, n, {up}; lop3.b32 $0, n, 0x80008000, x, 0xEA; }}"""
_REGISTERS = "{ .reg .b32 m, s, t, x, y, n, ha, la, hb, lb, a, b, p, q, h0, h1, l0, l1;\n"


def key_texts(bits: int, codebook: Iterable[float]) -> Texts:
    """Return the PTX that decodes keys of 4 or 3 bits, by the code's place in the word; none for keys in fp8."""
    if bits == 8:
        return ()
    magnitudes = half_magnitudes(tuple(codebook))
    upper, lower = [half >> 8 for half in magnitudes], [half & 255 for half in magnitudes]
    table = "".join(
        f"mov.b32 {name}{at // 4}, 0x{int.from_bytes(bytes(values[at : at + 4]), 'little'):08x};\n"
        for name, values in (("h", upper), ("l", lower))
        for at in range(0, len(values), 4)
    )
    if bits == 4:
        return tuple(_REGISTERS + table + _look_up_4(code) for code in range(4))
    return tuple(_REGISTERS + table + _look_up_3(code) for code in range(8))


def _look_up_4(code: int) -> str:
    return _INDEX_4 + _picked(code, "h0, h1", "l0, l1", up=12 - 4 * code)


def _look_up_3(code: int) -> str:
    """Like that of 4 bits; of the 8 digits of a word, four are looked up, and of the signs those of the same four."""
    index = _INDEX_3.format(word="$1", digits="p", index="x") + _INDEX_3.format(word="$2", digits="q", index="y")
    upper_half = "shr.u32 x, x, 16; shr.u32 y, y, 16;\n" if code >= 4 else ""
    signs = f"prmt.b32 n, p, q, {'0x7632' if code >= 4 else '0x5410'}; not.b32 n, n;\n"
    return index + upper_half + signs + _picked(code % 4, "h0, h0", "l0, l0", up=13 - 4 * (code % 4))


def _picked(code: int, upper: str, lower: str, up: int) -> str:
    pair, one = "0x5140" if code < 2 else "0x7362", "0x7632" if code % 2 else "0x5410"
    return _LOOK_UP.format(upper=upper, lower=lower, pair=pair, one=one, up=up)


def half_magnitudes(codebook: tuple[float, ...]) -> list[int]:
    """Return the upper half of a codebook as the bits of fp16 numbers.

    The codebooks are those of a normal distribution: the numbers of code c and of ~c differ in their sign, and in the
    last digits of the numerical integration.

    Raises:
        ValueError: the codebook is not symmetric.
    """
    middle = len(codebook) // 2
    upper, lower = codebook[middle:], codebook[middle - 1 :: -1]
    if any(abs(a + b) > 2e-4 * codebook[-1] for a, b in zip(upper, lower, strict=True)):
        raise ValueError("the codebook is not symmetric")
    return [unpack("<H", pack("<e", (a - b) / 2))[0] for a, b in zip(upper, lower, strict=True)]


def value_texts(bits: int) -> Texts:
    """Return the PTX that decodes values of 4 or 3 bits to code - 7.5 or code - 3.5, by the code's place in the word.

    A code at bit 4 of the fp16 number 64 (0x5400), whose last bits count sixteenths, makes it 64 + code. From that
    71.5 (0x5478) or 67.5 (0x5438) are subtracted: exact.
    """
    if bits == 4:
        return tuple(_difference("", "$1", 4 * code - 4, "0x00f000f0", "0x54785478") for code in range(4))
    # 16 bits of a word hold codes 0 to 4; from bit 8 on, codes 3 to 7.
    lower, upper = "prmt.b32 t, $1, $2, 0x5410;", "prmt.b32 t, $1, $2, 0x6521;"
    return tuple(
        _difference(
            *((lower, "t", 3 * code - 4) if code < 4 else (upper, "t", 3 * code - 12)), "0x00700070", "0x54385438"
        )
        for code in range(8)
    )


def _difference(before: str, word: str, down: int, mask: str, subtracted: str) -> str:
    shift = f"shr.u32 t, {word}, {down};" if down >= 0 else f"shl.b32 t, {word}, {-down};"
    return (
        f"{{ .reg .b32 t, k; mov.b32 k, {subtracted}; {before} {shift} "
        f"lop3.b32 t, t, {mask}, 0x54005400, 0xEA; sub.rn.f16x2 $0, t, k; }}"
    )


@triton.jit
def load_words(cache, row, BITS: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """Load the words at the bytes `row`: (WIDTH, rows), word first, so that a warp reads neighbouring bytes.

    Args:
        cache: pointer to bytes.
        row: offsets in bytes, even.
        BITS: of a code.
        COUNT: words of a row.
        WIDTH: words of the tile; those beyond COUNT repeat the last one.
    """
    word = tl.arange(0, WIDTH)
    if WIDTH > COUNT:
        word = tl.minimum(word, COUNT - 1)
    if BITS == 8:
        return tl.load(cache + row[None, :] + word[:, None])
    elif BITS == 4:
        return tl.load(cache.to(tl.pointer_type(tl.uint16)) + row[None, :] // 2 + word[:, None])
    else:
        first = cache + row[None, :] + word[:, None] * 3
        two = tl.load(first).to(tl.int32) | (tl.load(first + 1).to(tl.int32) << 8)
        return two | (tl.load(first + 2).to(tl.int32) << 16)


@triton.jit
def by_text(words, TEXTS: tl.constexpr, CODE: tl.constexpr, BITS: tl.constexpr):
    """Decode one code of all words by its PTX."""
    TEXT: tl.constexpr = TEXTS[CODE]
    if BITS == 4:
        return tl.inline_asm_elementwise(TEXT, "=r,r", [words], tl.float16, True, 2)
    else:
        return tl.inline_asm_elementwise(TEXT, "=r,r,r", [words], tl.float16, True, 2)


@triton.jit
def decoded_keys(words, codebook, BITS: tl.constexpr, E4B15: tl.constexpr, TEXTS: tl.constexpr):
    """Return the tiles of keys, in fp16, of the words of a tile. `codebook` points to its numbers in float32."""
    if BITS == 8:
        if E4B15:
            # Sign, 4 bits of exponent and 3 of mantissa, with fp16's bias: move them to fp16's places.
            wide = words.to(tl.uint16)
            return (((wide & 0x80) << 8 | (wide & 0x7F) << 7).to(tl.float16, bitcast=True),)
        else:
            return (words.to(tl.float8e4nv, bitcast=True).to(tl.float16),)
    else:
        tiles = ()
        for code in tl.static_range(4 if BITS == 4 else 8):
            if TEXTS is None:
                index = (words.to(tl.int32) >> (code * BITS)) & (2**BITS - 1)
                tiles = tiles + (tl.load(codebook + index).to(tl.float16),)
            else:
                tiles = tiles + (by_text(words, TEXTS, code, BITS),)
        return tiles


@triton.jit
def decoded_values(words, BITS: tl.constexpr, TEXTS: tl.constexpr):
    """Return the tiles of values, as code - 7.5 (4 bits) or code - 3.5 (3 bits), of the words of a tile."""
    tiles = ()
    for code in tl.static_range(4 if BITS == 4 else 8):
        if TEXTS is None:
            number = (words.to(tl.int32) >> (code * BITS)) & (2**BITS - 1)
            tiles = tiles + (number.to(tl.float16) - (2**BITS - 1) / 2,)
        else:
            tiles = tiles + (by_text(words, TEXTS, code, BITS),)
    return tiles


@triton.jit
def squares(tile, PACKED: tl.constexpr):
    """Square fp16 numbers; PACKED takes two at once, which the compiler does not do by itself."""
    if PACKED:
        return tl.inline_asm_elementwise("mul.rn.f16x2 $0, $1, $1;", "=r,r", [tile], tl.float16, True, 2)
    else:
        return tile * tile
