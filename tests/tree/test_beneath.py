"""An edit on top of an overlay is made on the original, or refused where it changes what the overlay inserted."""

from __future__ import annotations

import pytest
from vpatch.tree.beneath import Touched, beneath

ORIGINAL = "import os\na\nb\nc\nd\n"
MADE = "import os\nimport re  # vpatch: one\na\nif x:  # vpatch: two\n    y\nb\nC  # vpatch: one\nd\n"

ON_THE_ORIGINAL = {
    "a change": ("b\nC", "B\nC", "import os\na\nB\nc\nd\n"),
    "lines that come": ("    y\nb\n", "    y\nb\nnew\n", "import os\na\nb\nnew\nc\nd\n"),
    "above inserted code": ("a\nif", "a\nnew\nif", "import os\na\nnew\nb\nc\nd\n"),
    "below inserted code": ("    y\nb", "    y\nnew\nb", "import os\na\nnew\nb\nc\nd\n"),
    "below replaced code": ("d\n", "new\nd\n", "import os\na\nb\nc\nnew\nd\n"),
    "a line that goes": ("a\nif", "if", "import os\nb\nc\nd\n"),
    "at the beginning": ("import os", "new\nimport os", "new\nimport os\na\nb\nc\nd\n"),
    "at the end": ("d\n", "d\nnew\n", "import os\na\nb\nc\nd\nnew\n"),
    "all of a part": ("d\n", "", "import os\na\nb\nc\n"),
    "beside an import": ("import os\n", "import os\nimport new\n", "import os\nimport new\na\nb\nc\nd\n"),
    "an import that stands elsewhere": (
        "import re  # vpatch: one\na\n",
        "a\nimport re  # vpatch: one\n",
        "import os\na\nb\nc\nd\n",
    ),
}
OF_THE_OVERLAY = {
    "a header": ("if x", "if z", (4, "two")),
    "its block": ("    y", "    z", (5, "two")),
    "within it": ("    y", "    new\n    y", (5, "two")),
    "with lines around": ("a\nif x", "A\nif z", (3, "two")),
    "code that goes": ("if x:  # vpatch: two\n    y\n", "", (4, "two")),
    "what replaced a line": ("C  #", "D  #", (7, "one")),
    "an import": ("import re ", "import regex as re ", (2, "one")),
    "code of two": ("    y\nb\nC  # vpatch: one\n", "z\n", (5, "one")),
}


@pytest.mark.parametrize(("old", "new", "expected"), ON_THE_ORIGINAL.values(), ids=ON_THE_ORIGINAL)
def test_it_is_made_on_the_original(old: str, new: str, expected: str) -> None:
    now = MADE.replace(old, new, 1)
    assert now != MADE
    assert beneath(ORIGINAL.encode(), MADE.encode(), now.encode()) == (expected.encode(), [])


@pytest.mark.parametrize(("old", "new", "expected"), OF_THE_OVERLAY.values(), ids=OF_THE_OVERLAY)
def test_it_is_refused(old: str, new: str, expected: tuple[int, str]) -> None:
    """The message names the line and the overlay; other edits are made."""
    line, name = expected
    now = MADE.replace(old, new, 1).replace("d\n", "d\nmore\n")
    found, touched = beneath(ORIGINAL.encode(), MADE.encode(), now.encode())
    assert touched == [Touched(line, (name,))]
    assert found == f"{ORIGINAL}more\n".encode()


def test_code_that_an_overlay_removed() -> None:
    """Nothing marks the place."""
    assert beneath(b"a\nb\nc\n", b"a\nc\n", b"a\nnew\nc\n") == (b"a\nb\nc\n", [Touched(2, ())])


def test_a_piece_of_a_statement_is_of_the_overlay_whose_mark_the_statement_has() -> None:
    original, made = b"f(\n    1,\n)\ng\n", b"f(\n    1,\n    x=2,\n)  # vpatch: one\ng  # vpatch: two\n"
    assert beneath(original, made, made.replace(b"x=2", b"x=3")) == (original, [Touched(3, ("one",))])


def test_a_data_file_is_no_module() -> None:
    assert beneath(b'{"a": 1}\n', b'{"a": 2}\n', b'{"a": 3}\n') == (b'{"a": 1}\n', [Touched(1, ())])
