"""Bytecode is compared with a source without being loaded: it may be hostile."""

from __future__ import annotations

import importlib.util
import marshal
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from vpatch.guest.marshalled import HEADER, is_compiled_from

SOURCE = '''"""About it."""
import os as ö
assert True
x: int = 1 << 80, -1 << 70, 1.5e300, 2j, b"\\xff", "\\udcff", "ein\\u2028 Text", None, ..., -0.0, 0.0, True
kinds = x in {"a", "b", "c", 3, None, (1, 2)}

def outer(a, /, b=("t", 1), *rest, c=frozenset({1}), **more):
    def inner():
        return a, b, rest[1:2], rest[::2]
    with inner() as d:
        try:
            yield from (e for e in d if e)
        except* ValueError as group:
            raise group from None
        finally:
            await_ = lambda: (yield)
    return inner

class Klass(metaclass=type):
    __slots__ = ("slot",)
    async def method(self):
        match self:
            case {"k": [1, *_]} | Klass(slot=2):
                return [f"{self!r:>{x}}" async for _ in self]
        return __class__
'''
COMPILE = (
    "import py_compile, sys; py_compile.compile(sys.argv[1], sys.argv[2], optimize=int(sys.argv[3]), doraise=True)"
)


def compiled(source: str | bytes, optimize: int = 0) -> bytes:
    code = compile(source, "/some/where.py", "exec", dont_inherit=True, optimize=optimize)
    return importlib.util.MAGIC_NUMBER + bytes(HEADER - 4) + marshal.dumps(code)


@pytest.mark.parametrize("optimize", [0, 1, 2])
def test_the_code_of_another_process_is_the_same(tmp_path: Path, optimize: int) -> None:
    """Whatever its sets are ordered by, the file is called, and the interpreter has interned."""
    (tmp_path / "m.py").write_text(SOURCE)
    found = set()
    for seed in ("1", "2"):
        twin = tmp_path / f"m{seed}.pyc"
        command = [sys.executable, "-c", COMPILE, str(tmp_path / "m.py"), str(twin), str(optimize)]
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, check=True)
        found.add(twin.read_bytes())

    names = ("m.cpython-311.pyc", "m.cpython-311.opt-1.pyc", "m.cpython-311.opt-2.pyc")
    for content in found:
        assert [is_compiled_from(content, SOURCE.encode(), name) for name in names] == [n == optimize for n in range(3)]


def test_another_source_has_other_code() -> None:
    """Each change of one character that still compiles, except for those that Python does not see."""
    drawn, content, compared = random.Random(3), compiled(SOURCE), 0  # noqa: S311 - a test draws
    for _ in range(200):
        at = drawn.randrange(len(SOURCE))
        other = SOURCE[:at] + drawn.choice("abx0_ 1") + SOURCE[at + 1 :]
        try:
            same = marshal.loads(compiled(other)[HEADER:]) == marshal.loads(content[HEADER:])  # noqa: S302 - the test's own
        except SyntaxError:
            same = False
        else:
            compared += 1
        assert is_compiled_from(content, other.encode(), "m.pyc") == same, other
    assert compared > 25


def test_damaged_code_is_other_code() -> None:
    drawn, content, same = random.Random(4), compiled(SOURCE), 0  # noqa: S311 - a test draws
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(drawn.randrange(1, 4)):
            damaged[drawn.randrange(HEADER, len(damaged))] = drawn.randrange(256)
        cut = drawn.choice((len(damaged), drawn.randrange(len(damaged))))
        same += is_compiled_from(bytes(damaged[:cut]), SOURCE.encode(), "m.pyc")
    assert same < 60  # what a file is called and the lines of tracebacks do not count


@pytest.mark.parametrize(
    "code",
    [
        b"(" + (40_000_000).to_bytes(4, "little"),
        b"[" + (40_000_000).to_bytes(4, "little"),
        b"<" + (40_000_000).to_bytes(4, "little"),
        b"s" + (400_000_000).to_bytes(4, "little"),
        b"l" + (100_000_000).to_bytes(4, "little"),
        b"r" + (5).to_bytes(4, "little"),
        b"\xa9\x01r" + bytes(4),
        b")\x01" * 4_000 + b"N",
        b"c" * 4_000,
        b"N" * 40_000_000,
        b"?",
        b"",
    ],
    ids=lambda code: repr(code[:6]),
)
def test_hostile_code_takes_neither_memory_nor_time(code: bytes) -> None:
    tracemalloc.start()
    try:
        assert not is_compiled_from(importlib.util.MAGIC_NUMBER + bytes(12) + code, b"x = 1\n", "m.pyc")
        assert tracemalloc.get_traced_memory()[1] < 3_000_000 + 2 * len(code)
    finally:
        tracemalloc.stop()
