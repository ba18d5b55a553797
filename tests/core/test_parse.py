"""Elided code comes back byte for byte, and code in reach is never elided."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.core import nesting
from vpatch.core.parse import elide, restore

from tests.tiers import deep


def elided(data: bytes, reach: tuple[str, ...]) -> tuple[bytes, tuple[str, ...]]:
    """Elide a module as the parser does; a module that Python cannot parse stays whole."""
    try:
        tree = nesting.parse(nesting.decode(data)[0])
    except (SyntaxError, ValueError, LookupError):
        return data, ()
    return elide(data, tree, reach)


MODULE = '''\
"""A module."""
import a


def first(x):
    """One."""
    if x:
        return 1

    return 2  # two


class Outer:
    attribute = 1

    @property
    def name(self):
        # a comment above
        @cache
        def inner():
            return """text
            over lines"""
        return inner

    async def run(self): return await self.it

    class Inner:
        def deep(self):
            return 3


if a:
    def conditional():
        return 4
else:
    try:
        def conditional():
            return 5
    except E:
        def conditional():
            return 6
'''

PIECES = (
    *('"""One."""', "attribute = 1", "return inner", "return await self.it"),
    *("def deep", "return 3", "return 4", "return 5", "return 6"),
)

CASES = {
    (): (),
    ("first",): ('"""One."""',),
    ("first.inner",): ('"""One."""',),
    ("Outer",): ("attribute = 1", "return inner", "return await self.it", "def deep", "return 3"),
    # In a class in reach, a method that begins on the line of its header stays, and so does the last member.
    ("Outer.run",): ("return await self.it",),
    ("Outer.Inner.deep",): ("def deep", "return 3"),
    ("Outer.name", "conditional"): ("return inner", "return 4", "return 5", "return 6"),
    ("Out",): (),
    ("",): PIECES,
}


@pytest.mark.parametrize(("reach", "there"), CASES.items())
def test_only_code_in_reach_stays(reach: tuple[str, ...], there: tuple[str, ...]) -> None:
    """And the headers, on their lines."""

    def headers(source: bytes) -> list[tuple[str, int]]:
        tree = ast.parse(source)
        return sorted((n.name, n.lineno) for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef))

    rest, bodies = elided(MODULE.encode(), reach)

    assert tuple(piece for piece in PIECES if piece in rest.decode()) == there
    assert restore(rest, bodies, "utf-8") == MODULE.encode()
    assert headers(rest) == headers(MODULE.encode())
    assert rest.count(b"\n") == MODULE.encode().count(b"\n")


MARKED = """\
class C:
    a = 1
    def first(self):  # vpatch: some-overlay
        return 1
    b = 2
    def second(self): return 2
    def third(self):
        return 3
        # of the last member's block
"""


def test_marked_definitions_and_the_last_member_stay() -> None:
    """Edits sort what they add by the marked definitions at the end of a class."""
    rest, bodies = elided(MARKED.encode(), ("C.third",))
    text = rest.decode()

    assert "def first(self):  # vpatch: some-overlay" in text
    assert [piece for piece in ("a = 1", "return 1", "b = 2", "return 2", "return 3") if piece in text] == ["return 3"]
    assert restore(rest, bodies, "utf-8") == MARKED.encode()


ENCODED = {
    "crlf": MODULE.replace("\n", "\r\n").encode(),
    "bom": b"\xef\xbb\xbf" + MODULE.encode(),
    "latin-1": b"# -*- coding: latin-1 -*-\ndef f():\n    return '\xe9'\n",
    "tabs": MODULE.replace("    ", "\t").encode(),
    "no newline at the end": b"def f():\n    return 1",
    "a body after a semicolon": b"def f():\n    x = 1; y = 2  # both\n    # and below\n\n\nx = 3\n",
    "a backslash": b"def f():\n    return 1 + \\\n        2\n",
    "wide characters": "def f():\n    é = 'ü'; return é\n".encode(),
}


@pytest.mark.parametrize("data", ENCODED.values(), ids=ENCODED)
def test_every_byte_comes_back(data: bytes) -> None:
    rest, bodies = elided(data, ())
    encoding = "iso-8859-1" if b"latin-1" in data else "utf-8-sig" if data.startswith(b"\xef") else "utf-8"

    assert bodies
    assert rest != data
    assert restore(rest, bodies, encoding) == data


WHOLE = {
    "not python": b"def f(:\n    return 1\n",
    "null byte": b"def f():\n    return '\x00'\n",
    "not text": b"def f():\n    return '\xff'\n",
    "unknown encoding": b"# coding: nonsense\ndef f():\n    return 1\n",
    "old newlines": b"def f():\r    return 1\r",
    "form feed": b"def f():\n    return 1\n\x0c\ndef g():\n    return 2\n",
    "our own label": b'def f():\n    return """vpatch:elided:0"""\n',
}


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE)
def test_code_that_cannot_be_elided_safely_stays(data: bytes) -> None:
    assert elided(data, ()) == (data, ())


@pytest.mark.parametrize("every", [16, deep(1)])
def test_a_whole_release_comes_back(pristine: Callable[[str], Path], every: int) -> None:
    modules = sorted(pristine("0.20.2").glob("vllm/**/*.py"))[::every]
    left_out = 0

    for module in modules:
        data = module.read_bytes()
        rest, bodies = elided(data, ())
        assert restore(rest, bodies, "utf-8") == data, module
        left_out += len(data) - len(rest)

    assert len(modules) * every > 1500
    assert left_out * every > 5_000_000
