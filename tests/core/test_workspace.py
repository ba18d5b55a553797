"""Files as bytes and as syntax trees: reading, parsing, changing."""

from __future__ import annotations

import difflib

import pytest
from vpatch import AddFunction, EnsureImport
from vpatch.core.changes import Splice
from vpatch.core.parse import Lost
from vpatch.core.parsed import ParsedModules
from vpatch.core.syntax import Spot
from vpatch.core.workspace import Workspace
from vpatch.errors import Failure

from tests.snippets import FILE, InsertAfter, ReplaceExpr, applied, make, names_of_fragments, overlay

__all__ = ["names_of_fragments"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "no such file"),
        (b"x = (\n", "not valid Python"),
        (b"def f():\n\tx\n        y\n", "not valid Python"),
        (b"\x00", "not valid Python"),
        (b"x = '\xff'\n", "not readable as text"),
        (b"# -*- coding: klingon -*-\n", "not readable as text"),
        (b"\xef\xbb\xbf# -*- coding: latin-1 -*-\n", "not readable as text"),
        (b"x\n\x0cy\n", "has whitespace, such as a form feed"),
        (b"x\r\ny\r", "has a carriage return without a line feed"),
        (b"\\\nx\n", "has whitespace"),
    ],
)
def test_a_file_that_cannot_be_used(data: bytes | None, message: str) -> None:
    files = Workspace({FILE: data}.get)

    for _ in range(2):
        with pytest.raises(Lost, match=message):
            files.source(FILE)


def test_equal_bytes_are_parsed_and_read_once() -> None:
    asked: list[str] = []
    cache = ParsedModules()

    def read(file: str) -> bytes:
        asked.append(file)
        return b"x = (" if file == "bad.py" else b"x\n"

    one, two = Workspace(read, cache), Workspace(read, cache)

    assert one.source(FILE) is one.source(FILE) is two.source(FILE)
    for _ in range(2):
        with pytest.raises(Lost):
            one.source("bad.py")
    assert asked == [FILE, FILE, "bad.py"]
    assert one.analyzed(FILE) is two.analyzed(FILE)


def test_what_a_block_reads_is_noted() -> None:
    """Also what was read before, what has changed, and what is not there."""
    files = Workspace({"a": b"1", "b": b"2", "c": b"3"}.get)
    files.put("b", b"4")
    files.read("a")
    with files.noting() as outer:
        files.read("a")
        with files.noting() as inner:
            files.read("b")
            files.digest("d")
        files.read("c")

    assert (outer, inner) == ({"a", "b", "c", "d"}, {"b", "d"})


def test_changes_are_the_files_that_differ() -> None:
    files = Workspace({FILE: b"x\n", "same.py": b"y\n"}.get)
    files.read("same.py")

    files.change(FILE, lambda source: [Splice(Spot((), source.tree), 0, 1, "z", "demo")])
    files.put("same.py", b"y\n")
    files.put("new.py", b"")

    new = b"z  # vpatch: demo\n"
    assert files.read(FILE) == new
    assert files.source(FILE).text == new.decode()
    assert files.changes() == {FILE: new, "new.py": b""}


BODY = """# Licence: \xe9

import a

class A:
    # one
    x = {'k':  "v" 'w',}   # two

    def f( self,a = 1 ) :
        if  a :
            budget = self.total-a ; other( )
        return [ budget,

                 a]

    # trailing

# end
"""
ENCODED = {
    "utf-8": BODY.encode(),
    "byte order mark": b"\xef\xbb\xbf" + BODY.encode(),
    "latin-1": b"# -*- coding: latin-1 -*-\n" + BODY.encode("latin-1"),
    "CRLF": BODY.replace("\n", "\r\n").encode(),
    "mixed newlines": BODY.replace("import a\n", "import a\r\n").replace("# two\n", "# two\r\n").encode(),
    "tabs": BODY.replace("    ", "\t").encode(),
    "no newline at the end": BODY.rstrip("\n").encode(),
    "form feeds between": BODY.replace("\n\n", "\n\x0c\n").encode(),
    "trailing whitespace": BODY.replace("\n\n", "\n  \n").encode(),
}


@pytest.mark.parametrize("data", ENCODED.values(), ids=ENCODED)
def test_every_byte_outside_the_edited_code_survives(data: bytes) -> None:
    item = overlay(
        EnsureImport(FILE, "import z"),
        ReplaceExpr(FILE, "A.f", old="self.total - a", new="clamp(self.total - a)"),
        InsertAfter(FILE, "A.f", "budget = $B; other()", "if budget:\n    log(\n        budget)", within=("if a",)),
        AddFunction(FILE, "A", "def g(self): return 1"),
    )

    new = applied({FILE: data}, item)[FILE]

    old, now = (text.decode("latin-1").splitlines(keepends=True) for text in (data, new))
    delta = [line for line in difflib.unified_diff(old, now, n=0) if not line.startswith(("---", "+++", "@@"))]
    removed = [line for line in delta if line.startswith("-")]
    added = [line[1:].strip() for line in delta if line.startswith("+") and line[1:].strip()]
    assert len(removed) == 1
    assert "self.total-a" in removed[0]
    assert added == [
        "import z  # vpatch: demo",
        "budget = clamp(self.total - a) ; other( )  # vpatch: demo",
        "if budget:  # vpatch: demo",
        "log(",
        "budget)",
        "def g(self): return 1  # vpatch: demo",
    ]
    newline = b"\r\n" if b"# end\r\n" in data else b"\n"
    assert new.count(newline) - data.count(newline) == 6
    assert new.endswith(b"\n") is data.endswith(b"\n")


def test_a_character_that_the_encoding_lacks() -> None:
    item = overlay(ReplaceExpr(FILE, "", old="a", new="'\u0394'"))

    with pytest.raises(Failure, match="cannot encode"):
        make({FILE: b"# -*- coding: latin-1 -*-\na\n"}, item)
