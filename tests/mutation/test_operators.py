"""The mutants of a piece of code: those that a test should notice, and no others."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.operators import compiles, mutants

MADE = {
    "if a < b:\n    c()": {"if (a <= b):\n    c()", "if (not (a < b)):\n    c()", "if a < b:\n    pass"},
    "x = a and not b": {"x = (a or not b)", "x = (a)", "x = (not b)", "x = a and (b)"},
    "x = a + 1": {"x = (a - 1)", "x = a + 2"},
    "def f():\n    return a": {"def f():\n    return None"},
    "for a in b:\n    break": {"for a in b:\n    continue"},
    "x = 'a' in b": {"x = ('a' not in b)", "x = 'a_' in b"},
    "x = [a for a in b if a]": {"x = [a for a in b]"},
    "@a\ndef f(b=True): ...": {"\ndef f(b=True): ...", "@a\ndef f(b=False): ..."},
    "try:\n    x = a\nexcept E:\n    x = b": {"try:\n    x = a\nexcept E:\n    raise"},
    "x = a if b else c": {"x = (a if not b else c)"},
    "x = f(a, b=c)": {"x = f(a)"},
    "x = {a, b}": {"x = ({b})", "x = ({a})"},
    "raise E('a' + b)": {"pass"},
}
"""By a piece of code, its mutants."""

LEFT = (
    '"""Text."""',
    "x: dict[str, 1]",
    "def f(a: X | Y) -> 'Z': ...",
    "if TYPE_CHECKING:\n    from a import b",
    "x = f('words')",
    "x = f'{a + b}'",
    "__all__ = ['a', 'b']",
    "@cache\ndef f(): ...",
    "from a import b",
)
"""Code without mutants."""


@pytest.mark.parametrize("code", MADE)
def test_mutants(code: str) -> None:
    made = [mutant.apply(code.encode()).decode() for mutant in mutants("a.py", code)]

    assert {text for text in made if compiles(text.encode())} == MADE[code]


@pytest.mark.parametrize("code", LEFT)
def test_nothing_to_mutate(code: str) -> None:
    ast.parse(code)

    assert mutants("a.py", code) == []


def test_the_lines_whose_tests_may_notice() -> None:
    code = (
        "@a\ndef f(b=1):\n    if g(\n        b\n    ):\n        h()\n    try:\n        i()\n    finally:\n        j()\n"
    )

    found = {mutant.operator: (mutant.line, mutant.lines) for mutant in mutants("a.py", code)}

    assert found["drop decorator"] == (1, (2, 10))
    assert found["change constant"] == (2, (2, 10))
    assert found["negate condition"] == (3, (3, 5))
    assert found["drop finally"] == (10, (10, 10))
