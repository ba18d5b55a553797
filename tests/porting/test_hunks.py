"""Hunks that are written from two versions of a module, and what they leave as it was."""

from __future__ import annotations

import random
from difflib import unified_diff
from itertools import pairwise

import pytest
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import overlay_of, parse
from vpatch.core.verdict import State
from vpatch.porting.hunks import Unsayable, hunks_between
from vpatch.porting.program import difference
from vpatch.porting.proof import ModuleVersions, Unproven, patch_file

from tests.releases import RELEASES, tree_of
from tests.tiers import deep

FILE = "vllm/m.py"
HEAD = {"Subject": "A change", "Base": "0.20.2"}

# The module before and after, and the hunks. `|` stands between the lines.
CASES = {
    "replaced": (
        "x = f(a, b, c, d)|y = x",
        "x = f(a, b, c, d + 1)|y = x",
        "@@|-x = f(a, b, c, d)|+x = f(a, b, c, d + 1)",
    ),
    "replaced, and little of it": ("x = a|y = x", "x = b|y = x", "@@| ^|-x = a|+x = b| y = x"),
    "comes between neighbors": ("x = a|y = x", "x = a|log(x)|y = x", "@@| x = a|+log(x)| y = x"),
    "goes from between": ("x = a|log(x)|y = x", "x = a|y = x", "@@| x = a|-log(x)| y = x"),
    "at the edges": ("x = a", "log(a)|x = a|log(x)", "@@| ^|+log(a)| x = a|+log(x)| ^"),
    "the comment above": ("x = a|y = x", "x = a|# why|log(x)|y = x", "@@| x = a|+# why|+log(x)| y = x"),
    "a comment that was there": ("# why|x = a|y = x", "# why|x = b|y = x", "@@| ^|-x = a|+x = b| y = x"),
    "beside a block": ("if a:|    b(1)|y = x", "if a:|    b(1)|log(x)|y = x", "@@| if a:|     ...|+log(x)| y = x"),
    "beside a function": (
        "def f():|    b(1)|y = x",
        "def f():|    b(1)|log(x)|y = x",
        "@@| def f():|     ...|+log(x)| y = x",
    ),
    "twice the same neighbors": (
        "x = a|y = x|z = 1|x = a|y = x",
        "x = a|y = x|z = 1|x = a|log(x)|y = x",
        "@@| z = 1| x = a|+log(x)| y = x| ^",
    ),
    "in a function": (
        "def f(a):|    x = a|    return x",
        "def f(a):|    x = a|    log(x)|    return x",
        "@@ f| x = a|+log(x)| return x",
    ),
    "in blocks of a method": (
        "class C:|  def f(self, a):|    for b in a:|     try:|      p()|     except E as e:|      raise",
        "class C:|  def f(self, a):|    for b in a:|     try:|      p()|     except E as e:|      log(e)|      raise",
        "@@ C.f / for b in a / try / except E as e| ^|+log(e)| raise",
    ),
    "in an elif": (
        "if a:|    p(1)|elif b:|    q(1)|else:|    r(1)",
        "if a:|    p(1)|elif b:|    q(1)|    s(1)|else:|    r(1)",
        "@@ / if a / elif b| q(1)|+s(1)| ^",
    ),
    "a header": ("if a:|    p(1)|    q(1)", "if b:|    p(1)|    q(1)", "@@|-if a:|+if b:|     ..."),
    "a header and its block": (
        "if a:|    p(1)|    q(1)|    r(1)|    s(1)",
        "if b:|    p(1)|    q(1)|    t(1)|    r(1)|    s(1)",
        "@@|-if a:|+if b:|     ...|     q(1)|+    t(1)|     r(1)|     ...",
    ),
    "a branch that comes": (
        "if a:|    p(1)|    q(1)",
        "if a:|    p(1)|    q(1)|else:|    r(1)",
        "@@|-if a:|-    p(1)|-    q(1)|+if a:|+    p(1)|+    q(1)|+else:|+    r(1)",
    ),
    "a signature": (
        "def f(a, b=1):|    return a",
        "def f(a, b=2, *, c):|    return a",
        "@@|-def f(a, b=1):|+def f(a, b=2, *, c):|     ...",
    ),
    "a signature and the body": (
        "def f(a):|    x = g(a, a)|    return x",
        "def f(a, b):|    x = g(a, b)|    return x",
        "@@|-def f(a):|+def f(a, b):|     ...|@@ f| ^|-x = g(a, a)|+x = g(a, b)| return x",
    ),
    "a function that comes": (
        "def f(a):|    return a",
        "def f(a):|    return a|def g(a):|    return f(a)",
        "@@|+def g(a):|+    return f(a)",
    ),
    "a function that the module needs early": (
        "x = 1|y = x",
        "x = 1|def g(a):|    return a|y = g(x)",
        "@@| x = 1|-y = x|+def g(a):|+    return a|+y = g(x)| ^",
    ),
    "a method that comes": (
        "class C:|    def f(self):|        return 1",
        "class C:|    def e(self):|        return 2|    def f(self):|        return 1",
        "@@ C|+def e(self):|+    return 2",
    ),
    "an entry": (
        "L = [|    1,|    2,|    3,|    4,|    5,|    6,|]",
        "L = [|    1,|    2,|    3,|    7,|    4,|    5,|    6,|]",
        "@@| L = [|     ...,|     3,|+    7,|     4,|     ...,| ]",
    ),
    "a keyword": (
        "x = f(|    a,|    b,|    k=1,|    m=2,|)",
        "x = f(|    a,|    b,|    k=1,|    l=3,|    m=2,|)",
        "@@| x = f(|     ...,|     k=1,|+    l=3,|     m=2,| )",
    ),
    "imports": (
        "import os|from a import b|x = b",
        "import os|import re|from a import b, c|x = b",
        "@@ import|+import re|+from a import c",
    ),
    "an import from elsewhere": (
        "from a import b|x = b",
        "from c import b|x = b",
        "@@|-from a import b|+from c import b",
    ),
    "an import for types": (
        "from typing import TYPE_CHECKING|if TYPE_CHECKING:|    from a import b|x = 1",
        "from typing import TYPE_CHECKING|if TYPE_CHECKING:|    from a import b, c|x = 1",
        "@@ import / if TYPE_CHECKING|+from a import c",
    ),
    "a text over lines": (
        'def f():|    x = """a|  b|"""|    return x',
        'def f():|    x = """a|  c|"""|    return x',
        '@@ f| x = """a|-  b|+  c| """',
    ),
    "a property": (
        "class C:|  @property|  def f(self):|    return 1|  @f.setter|  def f(self, a):|    self.a = a",
        "class C:|  @property|  def f(self):|    return 1|  @f.setter|  def f(self, a):|    self.a = a + 1",
        "@@ C.f.setter| ^|-self.a = a|+self.a = a + 1| ^",
    ),
    "nothing but comments and docstrings": ('"""a"""|x = 1 # b', '"""c"""|x = 1 # d', ""),
}


def lines(text: str) -> str:
    return text.replace("|", "\n") + "\n"


@pytest.mark.parametrize("name", CASES)
def test_hunks_are_between_their_neighbors(name: str) -> None:
    before, after, hunks = CASES[name]

    assert hunks_between(FILE, lines(before), lines(after))[0] == (lines(hunks) if hunks else "")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2]])
def test_they_are_proven_to_be_the_change(name: str) -> None:
    before, after, _ = (lines(text) for text in CASES[name])

    patch, _ = patch_file("fix", HEAD, (ModuleVersions(FILE, before, after),), {FILE: before.encode()}.get)

    assert str(parse(str(patch).encode())) == str(patch)


def test_an_import_that_goes_stays() -> None:
    before, after = "import os\nimport re\nx = re\n", "import re\nx = re.a\n"

    hunks, notes = hunks_between(FILE, before, after)

    assert hunks == "@@\n ^\n-x = re\n+x = re.a\n ^\n"
    assert notes == ("keeps the import of `os`, which the change drops",)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("x = 1; y = 2\n", "x = 1; y = 3\n", "line 1: no hunk makes this change: line 1 has `x = 1`"),
        ("x = 1\n", "x = 1  # why\n", "nothing changes but comments"),
        ("x = 1\n", None, "it is deleted"),
        ("x = 1\n", "x = (\n", "vllm/m.py: line 1: not valid Python: '(' was never closed"),
        (None, "x = (\n", "vllm/m.py: line 1: not valid Python: '(' was never closed"),
        (None, "x = 1\n\f\n", "line 7: it has the control character '\\x0c'"),
        (None, "# coding: latin-1\nx = 1\n", "its encoding is iso-8859-1, and a patch file is UTF-8"),
        (
            "def f(a):\n  try:\n    g(a)\n  finally:\n    pass\n",
            "def f(a):\n  g(a)\n",
            "line 2: no hunk makes this change: `try: ...`",
        ),
    ],
)
def test_what_no_patch_file_makes(before: str | None, after: str | None, says: str) -> None:
    files = {} if before is None else {FILE: before.encode()}
    with pytest.raises(Unproven) as refused:
        patch_file("fix", HEAD, (ModuleVersions(FILE, before, after),), files.get)

    assert says in str(refused.value)


@pytest.mark.parametrize("after", ["", "x = 1", "x = 1\n\n\n", "x = 1\r\ny = 2\r\n", "x = '''\n--- a\n@@\n'''\n"])
def test_a_new_module(after: str) -> None:
    files: dict[str, bytes] = {}

    patch, notes = patch_file("fix", HEAD, (ModuleVersions(FILE, None, after),), files.get)

    (change,) = patch.changes
    text = "".join(f"{line[1:]}\n" for line in change.text.splitlines())
    assert (change.new, notes, text.rstrip("\n")) == (True, (), after.replace("\r", "").rstrip("\n"))


def test_what_the_check_of_inserted_code_says_of_the_base_is_accepted() -> None:
    before, after = "def f(a):\n    return a\n", "def f(a):\n    left = a\n    return a\n"

    patch, _ = patch_file("fix", HEAD, (ModuleVersions(FILE, before, after),), {FILE: before.encode()}.get)

    assert patch.head["Accepted"] == f"{FILE} (f): `left = a` sets `left`, which nothing in `f` reads"
    item = Catalogued("fix", overlay_of(patch), "")
    (verdict,) = Engine([item]).status({FILE: before.replace("return a", "return a + 1").encode()}.get)
    assert verdict.state is State.DRIFTED  # the neighbor is another one


def test_definitions_in_another_order_are_one_program() -> None:
    one = "import a\nfrom b import c, d\ndef f(): pass\nclass C:\n    x = 1\n    def g(self): 'text'\n"
    other = "from b import d, c\nimport a\n'''doc'''\nclass C:\n    def g(self): ...\n    x = 1\ndef f(): pass\n"

    assert difference(one, other.replace("...", "pass")) == ""
    assert difference(one, other) == "C.g"
    assert difference(one, other.replace("x = 1", "x = 2").replace("...", "pass")) == "C."
    assert difference(one, other.replace("import a", "import e")) == "the import of e"
    assert difference("x = f(a=1, b=2)\n", "x = f(b=2, a=1)\n") == ""
    assert difference("def f(*, a, b=1): pass\n", "def f(*, b=1, a): pass\n") == ""
    assert difference("x = 1\nx = 2\n", "x = 2\nx = 1\n") == "the module's statements"


@pytest.mark.parametrize(("seed", "count", "least"), [(1, 6, 5), deep(2, 100, 95)])
def test_changes_between_releases(seed: int, count: int, least: int) -> None:
    """Of modules drawn from neighboring releases: what is written is right, which `patch_file` proves; few are not."""
    chance = random.Random(seed)  # noqa: S311 - the same on every run
    made, refused = 0, list[str]()
    while made + len(refused) < count:
        one, other = chance.choice([*pairwise(RELEASES)] if seed > 1 else [("0.20.2", "0.33.0")])
        file = chance.choice(sorted((tree_of(one) / "vllm").rglob("*.py"))).relative_to(tree_of(one))
        if not (tree_of(other) / file).is_file():
            continue
        before, after = ((tree_of(release) / file).read_text() for release in (one, other))
        if before == after or sum(row[0] in "+-" for row in unified_diff(before.split("\n"), after.split("\n"))) > 62:
            continue
        try:
            patch_file("fix", HEAD, (ModuleVersions(str(file), before, after),), lambda path, one=one: read(one, path))  # type: ignore[misc]
            made += 1
        except Unproven as error:
            if "nothing changes but" not in str(error):
                refused.append(f"{file}, {one} -> {other}: {error}")

    assert made >= least, refused


def read(release: str, path: str) -> bytes | None:
    file = tree_of(release) / path
    return file.read_bytes() if file.is_file() else None


def test_a_hunk_is_found_in_one_place_or_refused() -> None:
    before = "def f(a):\n" + "    g(a)\n    h(a)\n" * 3
    with pytest.raises(Unsayable, match="line 3: no hunk makes this change: "):
        hunks_between(FILE, before, before.replace("    g(a)\n    h(a)\n" * 2, "    g(a)\n    h(a)\n    h(a)\n", 1))
