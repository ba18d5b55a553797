"""Code that nests too deeply, or is too large, is refused."""

from __future__ import annotations

import base64
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import pytest
from vpatch import EnsureImport
from vpatch.core import nesting
from vpatch.core.parse import Lost
from vpatch.core.workspace import Workspace

from tests.conftest import Trees
from tests.releases import FIRST
from tests.snippets import FILE, M, applied, module, overlay
from tests.tiers import deep

DEEP: dict[str, Callable[[int], str]] = {
    "parentheses": lambda n: "(" * n + "1" + ")" * n,
    "parentheses, never closed": lambda n: "(" * n,
    "lists": lambda n: "[" * n + "]" * n,
    "braces": lambda n: "{" * n + "1" + "}" * n,
    "calls": lambda n: "f(" * n + ")" * n,
    "annotations": lambda n: "def f(a: " + "list[" * n + "int" + "]" * n + "): pass",
    "brackets of all kinds": lambda n: "f(a=[{1:(" * n + "1" + ")}])" * n,
    "indents": lambda n: "".join(" " * i + "if a:\n" for i in range(min(n, 300))) + " " * min(n, 300) + "pass",
    "lambdas": lambda n: "lambda: " * n + "1",
    "not": lambda n: "not " * n + "1",
    "minus": lambda n: "-" * n + "1",
    "powers": lambda n: "**".join("1" * n),
    "and": lambda n: " and ".join("a" * n),
    "or, over lines": lambda n: "(" + "\nor ".join("a" * n) + ")",
    "conditions": lambda n: "a if b else " * n + "1",
    "attributes": lambda n: "a" + ".a" * n,
    "results": lambda n: "a" + "()" * n,
    "sums": lambda n: "+".join("1" * n),
    "a decorator": lambda n: "@a" + ".a" * n + "\ndef f(): pass",
    "an exception": lambda n: "try: pass\nexcept a" + ".a" * n + ": pass",
    "a case": lambda n: "match a:\n case b if a" + ".a" * n + ": pass",
    "elif": lambda n: "if a: pass\n" + "elif a: pass\n" * n,
    "elif, a few": lambda n: "if a: pass\n" + "elif a: pass\n" * (n // 4),
    "formats": lambda n: "f'" + "{1:" * n + "}" * n + "'",
}


FIRST_KINDS = {"parentheses, never closed", "indents", "lambdas", "and", "a decorator", "elif, a few", "formats"}


@pytest.mark.parametrize("kind", [kind if kind in FIRST_KINDS else deep(kind) for kind in DEEP])
def test_too_deep(kind: str) -> None:
    data = f"import a\n\nx = (1,\n2)\n{DEEP[kind](5000)}\n".encode()

    with pytest.raises(nesting.TooDeep, match=r"(nest|too many levels).* \(line \d+\)$") as refused:
        nesting.parse(data.decode())
    assert "(line 5)" in str(refused.value) or kind not in {"lambdas", "and"}
    with pytest.raises(Lost, match="not valid Python: "):
        Workspace({FILE: data}.get).source(FILE)


FLAT = {
    "a table": "x = {" + "'key': [1, (2, 3)],\n" * 1000 + "}",
    "a list": "x = [" + "a and b or c,\n" * 1000 + "]",
    "a call": "f(" + "a=1, " * 250 + ")",
    "brackets in a string": f"x = '{'(' * 5000}'",
    "brackets in a comment": f"x = 1  # {'(' * 5000}",
    "many statements": "if a and b:\n    pass\nelif not a: pass\n" * 1500,
    "200 parentheses": "x = " + "(" * 199 + "1" + ")" * 199,
    "comparisons": " < ".join("a" * 300),
    "targets": "a = " * 300 + "1",
    "a string": "'" + "(-a. " * 5000 + "'",
}


@pytest.mark.parametrize("kind", FLAT)
def test_long_and_flat(kind: str) -> None:
    data = FLAT[kind].encode()

    assert Workspace({FILE: data}.get).source(FILE).text == FLAT[kind]


def test_code_that_python_refuses_has_its_reason() -> None:
    """An open parenthesis makes one statement of all that follows: it looked as if it nested too deeply."""
    source = "def (\n" + "".join(f"    x.y[{number}].f(a, b)\n" for number in range(1000))

    with pytest.raises(SyntaxError, match="invalid syntax"):
        nesting.parse(source)


def test_limits_apply_to_decoded_text() -> None:
    """UTF-7 writes any code as few words."""
    code = base64.b64encode("\n".join(["", "a = " + DEEP["and"](5000), ""]).encode("utf-16-be")).rstrip(b"=")
    data = b"# coding: utf-7\n+" + code + b"-\n"
    assert DEEP["and"](5000) in data.decode("utf-7")

    with pytest.raises(Lost, match="not readable as text: its encoding is utf-7"):
        Workspace({FILE: data}.get).source(FILE)


@pytest.mark.parametrize("cookie", ["utf-8", "utf8", "UTF-8", "latin-1", "ISO-8859-1", "l1", "us-ascii", "ascii"])
def test_encodings_that_are_read(cookie: str) -> None:
    data = f"# coding: {cookie}\nx = 1\ndef f():\n    return '{'é' if 'a' not in cookie else 'e'}'\n".encode(cookie)

    source = Workspace({FILE: data}.get).source(FILE)
    assert source.text.encode(source.encoding) == data


@pytest.mark.parametrize("cookie", ["latin-1", "utf-8"])
def test_columns_count_in_any_encoding(cookie: str) -> None:
    """Python counts columns in UTF-8, in files of any encoding."""
    data = f"# coding: {cookie}\nx = '{'é' * 40_000}'; y = {DEEP['and'](5000)}\n".encode(cookie)

    with pytest.raises(nesting.TooDeep, match=r"nested too deeply \(line 2\)$"):
        nesting.parse(data.decode(cookie))


MUCH = {
    "statements": "a;" * nesting.TOKENS,
    "lines": "a\n" * nesting.TOKENS,
    "empty lines": "\n" * (nesting.TOKENS + 1),
    "returns": "\r" * (nesting.TOKENS + 1),
    "a list": "x = [" + "()," * nesting.TOKENS + "]",
    "an f-string": "f'" + "{a}" * nesting.TOKENS + "'",
    "what Python cannot parse": "a\n" * nesting.TOKENS + "x = 1 if else\n",
    "a huge file": "a\n" * (32 << 20),
}


QUICK = ("empty lines", "a list")


@pytest.mark.parametrize("kind", [kind if kind in QUICK else deep(kind) for kind in MUCH])
def test_too_much_code(kind: str) -> None:
    """A megabyte of the shortest statements needs a gigabyte to parse, and four more for libcst."""
    message = f"too large: more than {nesting.TOKENS:,} tokens, the most that vpatch parses of a module"
    tracemalloc.start()
    data = MUCH[kind].encode()
    before, _ = tracemalloc.get_traced_memory()

    with pytest.raises(Lost, match=f"^{message}$"):
        Workspace({FILE: data}.get).source(FILE)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - before < len(data) + (16 << 20)


@pytest.mark.deep
@pytest.mark.parametrize("release", FIRST)
def test_every_module_of_a_release_is_within_the_limits(
    release: str, pristine: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nesting, "TOKENS", nesting.TOKENS // 4)

    for file in pristine(release).rglob("*.py"):
        if file.stat().st_size > nesting.TOKENS:
            nesting.bound(file.read_text("utf-8"))


AT_THE_LIMITS = f"""
import resource
import libcst
from vpatch.core.workspace import Workspace
for text in (" and ".join("a" * 1000), "(" * 199 + "1" + ")" * 199, "not " * 2500 + "1", "lambda: " * 900 + "1"):
    libcst.parse_module(text)
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
Workspace({{"a.py": b"a\\n" * {nesting.TOKENS // 2}}}.get).source("a.py")
"""


@pytest.mark.deep
def test_libcst_parses_code_at_the_limits() -> None:
    """The worst known code, in a process of its own, which might crash, with limited address space."""
    assert subprocess.run([sys.executable, "-c", AT_THE_LIMITS], check=False).returncode == 0


def test_deep_code_around_a_change_stays() -> None:
    """As deep as the parsers take it; libcst writes the changed statement alone."""
    deep = f"import a\nx = {'not ' * 700}1\n"

    assert applied(module(deep), overlay(EnsureImport(FILE, "import z")))[FILE].decode() == deep.replace(
        "import a\n", f"import a\nimport z{M}\n"
    )
