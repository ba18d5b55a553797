"""The header of a hunk names the function or class that the hunk's first change is in."""

from __future__ import annotations

import pytest
from vpatch.tree.unified import headed, unified

OLD = """import a


@final
class C:
    x = 1

    def f(self):
        one()
        two()
        three()
        four()
        five()

    def g(self): return 1


def h():
    def inner():
        return 2
    return inner
"""


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("import a", "import b", ""),
        ("x = 1", "x = 2", "class C"),
        ("@final", "@last", "class C"),
        ("three()", "3", "def C.f"),
        ("        five()\n", "        five()\n        six()\n", "def C.f"),  # below it stands nothing of the function
        ("        one()\n", "", "def C.f"),
        ("def g(self)", "def g(self, a)", "def C.g"),
        ("    def g(self): return 1\n", "    def g(self): return 1\n\n    def k(self): return 2\n", "class C"),
        ("    def g", "    def a(self):\n        return 0\n\n    def g", "class C"),
        ("return 2", "return 3", "def h.inner"),
        ("    return inner\n", "    return inner\n\n\ndef last(): ...\n", ""),
    ],
)
def test_the_header_of_a_hunk(old: str, new: str, named: str) -> None:
    assert OLD.count(old) == 1
    before, after = OLD.encode(), OLD.replace(old, new).encode()
    plain = unified("vllm/m.py", before, after)

    lines = headed(plain, before, after)

    (header,) = (line for line in lines if line.startswith("@@"))
    assert header.rpartition("@@")[2].strip() == named
    assert [line if line != header else header.rpartition("@@")[0] + "@@" for line in lines] == plain
