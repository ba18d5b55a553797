"""Run the few PTX instructions that `turboquant-decode` has, in Python: what its texts compute, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import pack, unpack

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
