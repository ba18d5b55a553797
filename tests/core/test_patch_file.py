"""Patch files: what one means, that to read and write it again changes no byte, and what is none."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vpatch.core.overlay import Catalogued, declared
from vpatch.core.patch_file import explanation, overlay_of, parse
from vpatch.core.verdict import State

from tests.snippets import applied, module, names_of_fragments, unmarked, verdict

__all__ = ["names_of_fragments"]

PATCH = """\
Format: 1
Subject: Optional telemetry must not fail a transfer
Description: The thread that sends it may be gone.
 .
   It then raises `queue.Full`.
Upstream: vllm-project/vllm#58038, vllm-project/vllm#58039
Base: 0.31.0
Drop-When: #58038 is in the base image
Releases: 0.30.0-0.31.0 pending, 0.33.0 drifted

--- vllm/m.py
@@ import
+from vllm._vpatch.counts import count
@@ f / if a
-log(a)
+log(count(a))
@@
+class Sent:
+    at = 0

+
+# Sends it.
+def sends(a): return a

+++ vllm/_vpatch/counts.py
+def count(a):
+
+    return a
"""
BEFORE = """\
import os

def f(a, b):
    if a:
        log(a)
    return b
"""


def catalogued(text: str) -> Catalogued:
    patch = parse(text.encode())
    return Catalogued("demo", overlay_of(patch), explanation(patch))


def test_a_patch_file_is_an_overlay() -> None:
    item = catalogued(PATCH)
    overlay = item.overlay

    assert overlay.summary == "Optional telemetry must not fail a transfer"
    assert overlay.upstream == ("vllm-project/vllm#58038", "vllm-project/vllm#58039")
    assert item.why == (
        "The thread that sends it may be gone.\n\n  It then raises `queue.Full`.\n\n"
        "Drop it when: #58038 is in the base image"
    )
    declares = [declared(tuple(overlay.releases.items()), release)[0] for release in ("0.29.0", "0.30.1", "0.33.0")]
    assert declares == [None, State.PENDING, State.DRIFTED]

    new = applied(module(BEFORE), item)
    assert {file: data.decode() for file, data in new.items()} == {
        "vllm/m.py": "import os\nfrom vllm._vpatch.counts import count  # vpatch: demo\n\ndef f(a, b):\n    if a:\n"
        "        log(count(a))  # vpatch: demo\n    return b\n\n\nclass Sent:  # vpatch: demo\n    at = 0\n\n\n"
        "# Sends it.\ndef sends(a): return a  # vpatch: demo\n",
        "vllm/_vpatch/counts.py": "# vpatch: demo\ndef count(a):\n\n    return a\n",
    }


@pytest.mark.parametrize(
    ("source", "state"),
    [
        (
            "from n import count\nclass Sent: at = 0\ndef sends(a): return a\ndef f(a, b):\n  if a: log(count(a))\n",
            State.MERGED,
        ),
        ("class Sent: at = 0\ndef sends(a): return a\ndef f(a, b):\n  if a:\n    log(count(a))\n", State.MERGED),
        ("class Sent: at = 0\ndef f(a, b):\n  if a:\n    log(count(a))\n", State.PENDING),
        ("def f(a, b):\n  while a:\n    log(a)\n", State.DRIFTED),
    ],
)
def test_upstreams_imports_and_files_may_be_others(source: str, state: State) -> None:
    """The code decides whether a patch is merged: neither the companion nor its import is upstream's."""
    found = verdict(module(source), catalogued(PATCH))
    assert found.state is state, found.because


def test_an_import_from_elsewhere_is_no_evidence() -> None:
    item = catalogued(PATCH.replace("@@ import\n", "@@\n-from x import y\n+from z import y\n@@ import\n"))
    source = "from z import q, y\nfrom n import count\nclass Sent: at = 0\ndef sends(a): return a\n"

    assert verdict(module(f"{source}def f(a, b):\n  if a: log(count(a))\n"), item).state is State.MERGED


def test_what_was_accepted_on_the_base_is_no_problem_elsewhere() -> None:
    text = PATCH.replace("+log(count(a))", "+log(unknown(a))")
    remark = "vllm/m.py (f): `log(unknown(a))` reads `unknown`, which nothing binds there"
    accepted = text.replace("Base: 0.31.0\n", f"Base: 0.31.0\nAccepted: of another line\n {remark}\n")

    assert verdict(module(BEFORE), catalogued(text)).problems[0].remark == remark
    assert verdict(module(BEFORE), catalogued(accepted)).state is State.PENDING
    assert "log(unknown(a))  # vpatch: demo" in applied(module(BEFORE), catalogued(accepted))["vllm/m.py"].decode()
    other = accepted.replace("unknown(a)", "other(a)", 1).replace("+log(unknown(a))", "+log(other(a))")
    assert verdict(module(BEFORE), catalogued(other)).state is State.DRIFTED


def test_what_it_makes_is_upstreams_without_the_marks() -> None:
    item = catalogued(PATCH)
    assert verdict(unmarked(applied(module(BEFORE), item)), item).state is State.MERGED


def test_an_import_for_types_and_a_text_with_a_line_separator() -> None:
    text = PATCH.replace("@@ import\n", "@@ import / if TYPE_CHECKING\n").replace(
        "+def count", "+S = 'a\u2028b'\n+def count"
    )
    source = BEFORE.replace("import os\n", "import os\nfrom typing import TYPE_CHECKING\n").replace("log(a)", "log(a)")
    new = applied(module(source), catalogued(text.replace("log(count(a))", "log(a, 1)")))

    assert "if TYPE_CHECKING:  # vpatch: demo\n    from vllm._vpatch.counts import count" in new["vllm/m.py"].decode()
    assert "S = 'a\u2028b'\n" in new["vllm/_vpatch/counts.py"].decode()


@pytest.mark.parametrize("folder", ["vllm", "vllm/v1/core", "vllm/mine-too/deep"])
def test_a_new_module_may_lie_anywhere_below_vllm(folder: str) -> None:
    item = catalogued(PATCH.replace("+++ vllm/_vpatch/", f"+++ {folder}/"))

    assert f"{folder}/counts.py" in applied({**module(BEFORE), "vllm/_vpatch/counts.py": b"count = 1\n"}, item)


DATA_LINES = ["+++ vllm/a/E=8,N=[1].json", "--- vllm/a.jinja", f"@@ sha256 {'0' * 64}", "\\ No newline at end of file"]
LINES = [
    *PATCH.splitlines(),
    *DATA_LINES,
    " .",
    " x",
    "  ",
    "",
    "---",
    "+++ vllm/a/b.py",
    "+",
    "@@ f / while x",
    "\t",
    "Format: 2",
]


@given(st.lists(st.sampled_from(LINES), max_size=8), st.integers(0, 12), st.integers(0, 30))
def test_written_again_it_is_the_same_text(drawn: list[str], at: int, end: int) -> None:
    """Of whatever is a patch file; the lines of one are mixed with others."""
    lines = PATCH.splitlines()
    text = "".join(f"{line}\n" for line in [*lines[:at], *drawn, *lines[min(at, end) :]])
    with suppress(ValueError):
        assert str(parse(text.encode())) == text


@pytest.mark.parametrize(
    "file", sorted(Path(__file__).parents[2].glob("[a-z]*/**/*.vpatch")), ids=lambda file: file.stem
)
def test_each_of_the_project_is_the_same_text(file: Path) -> None:
    assert str(parse(file.read_bytes())) == file.read_text("utf-8")


HEAD, CHANGES = PATCH.split("\n\n", 1)
HUNKS = CHANGES.split("\n", 1)[1].split("+++")[0]
NEW = "line 25: vllm/_vpatch/counts.py"
IN_F = "line 14: vllm/m.py (f): "
BAD = {
    "newer": ("Format: 1", "Format: 2", "line 1: this vpatch reads format 1, not `Format: 2`"),
    "no format": ("Format: 1\n", "", "line 1: `Format: 1` comes first"),
    "unknown field": ("Base", "Onto", "line 7: no field is called Onto; there are Format, "),
    "a field twice": ("Base: 0.31.0", "Subject: x", "line 7: Subject is there twice"),
    "a long subject": ("Description: ", " ", "line 2: Subject: only Description, Drop-When and Accepted may"),
    "no field": ("Base: 0", "Base:0", "line 7: the head has lines `Field: value`, and ends"),
    "no empty line": ("\n\n", "\n", "line 10: the head has lines `Field: value`, and ends"),
    "lacking": ("Base: 0.31.0\n", "", "line 8: the head lacks Base"),
    "no version": ("Base: 0.31.0", "Base: newest", "line 7: Base: 'newest' is no version"),
    "a link": (", vllm-project/vllm", ", ", "line 6: Upstream: '#58039' is not written owner/repository#number"),
    "releases": (" drifted", ": drifted", "line 9: Releases: '0.33.0:' is no version"),
    "a state": (" drifted", " broken", "line 9: Releases: '0.33.0 broken' is not written `0.30.0-0.31.0 pending`"),
    "nothing": (CHANGES, "", "line 11: below the head, `--- PATH` or `+++ PATH` begins what changes"),
    "no files": ("--- vllm/m.py\n", "", "line 11: below the head, `--- PATH` or `+++ PATH` begins what changes"),
    "a line diff": ("--- vllm", "--- a/vllm", "line 11: 'a/vllm/m.py' is no Python module or data file below vllm/"),
    "outside": ("vllm/m.py", "vllm/../m.py", "line 11: 'vllm/../m.py' is no Python module or data file below vllm/"),
    "absolute": ("vllm/m.py", "/vllm/m.py", "line 11: '/vllm/m.py' is no Python module or data file below vllm/"),
    "no data": (
        "vllm/m.py",
        "vllm/m.json",
        "line 11: vllm/m.json: a data file is replaced as a whole: `@@ sha256 HASH`",
    ),
    "bytecode": ("vllm/m.py", "vllm/m.pyc", "line 11: 'vllm/m.pyc' is no Python module or data file below vllm/"),
    "hidden": ("vllm/m.py", "vllm/.m.json", "line 11: 'vllm/.m.json' is no Python module or data file below vllm/"),
    "data as a companion": ("counts.py", "a.json", "line 25: 'vllm/_vpatch/a.json' is no Python module or data file"),
    "data with a mark": (
        "+++ vllm/_vpatch/counts.py\n",
        "+++ vllm/m.sh\n+# vpatch: demo\n",
        "line 25: vllm/m.sh: `# vpatch: demo` in it would be taken for a mark",
    ),
    "data that leaves": ("+++ vllm/_vpatch/counts.py", "+++ vllm/a/../../m.json", "vllm/a/../../m.json' is no Python"),
    "data: no sign": (
        "_vpatch/counts.py\n+",
        "m.json\n",
        "line 25: vllm/m.json: each line of a data file begins with +",
    ),
    "no path": ("--- vllm/m.py", "---", "line 11: '' is no Python module or data file below vllm/"),
    "a file twice": (
        "+++ vllm/_vpatch/counts",
        "--- vllm/m",
        "line 25: vllm/m.py is there twice; put all its hunks",
    ),
    "no address": ("@@ import\n", "", "line 12: a hunk begins with a line `@@ ADDRESS`"),
    "no hunks": (HUNKS, "", "line 12: a hunk begins with a line `@@ ADDRESS`"),
    "line numbers": (
        "@@ f / if a",
        "@@ -1,2 +1,2 @@ f",
        "line 14: vllm/m.py (-1,2 +1,2 @@ f): `-1,2 +1,2 @@ f` is no qu",
    ),
    "no header": ("/ if a", "/ if a b", f"{IN_F}`if a b` is no header of a statement"),
    "no sign": ("-log(a)", "log(a)", f"{IN_F}a line of a hunk begins with a space, - or +, not as `log(a)`"),
    "nothing changes": ("+log(count(a))", "+log(a)", f"{IN_F}nothing changes"),
    "a free name": ("count(a))", "$X)", f"{IN_F}nothing binds `$X`"),
    "no Python": ("-log(a)", "-log(a", f"{IN_F}not valid Python once the signs are taken off: "),
    "no import": (
        "+from vllm._vpatch.counts import count",
        "+x = 1",
        "line 12: vllm/m.py (import): `x = 1` is no import",
    ),
    "no definition": ("    at = 0", "x = 1", "line 17: vllm/m.py: not valid Python: expected an indented block"),
    "code beside one": ("+def sends(a): ", "+", "line 17: vllm/m.py: `return a` comes beside a definition"),
    "new: no sign": ("+    return a\n", "    return a\n", "line 28: each line of a new module begins with +, not as `"),
    "new: no Python": ("+def count(a)", "+def count(a", f"{NEW}: '(' was never closed"),
    "new: elsewhere": (
        "+++ vllm/_vpatch/",
        "+++ vllm/../",
        "line 25: 'vllm/../counts.py' is no Python module or data file below",
    ),
    "two imports a line": (
        "import count\n",
        "import count; import re\n",
        "(import): `from vllm._vpatch.counts import count; i",
    ),
    "an import goes": (
        "+from vllm",
        "-from vllm",
        "line 12: vllm/m.py (import): below `@@ import`, lines begin with +",
    ),
    "a comment as import": (
        "+from vllm._vpatch.counts import count",
        "+# count",
        "a comment alone cannot come: `# count`",
    ),
    "a comment on an import": ("+from vllm", "+# why\n+from vllm", "a comment cannot come with an import: `# why`"),
    "an import in a block": (
        "@@ import",
        "@@ import / if a",
        "imports go to the top of the module, or below `if TYPE_CH",
    ),
    "a definition in a block": (
        "@@\n+class",
        "@@ f / if a\n+class",
        "a definition goes to the end of a class, a function",
    ),
    "one name twice": ("+def sends(a): return a", "+class Sent: at = 1", "line 17: vllm/m.py: 'Sent' is defined twice"),
    "a comment at the end": ("return a\n\n+++", "return a\n+# end\n\n+++", "a comment alone cannot come: `# end`"),
    "a free name in a definition": ("+def sends(a): return a", "+def sends(a): return $N", "nothing binds `$N`"),
    "a name as address": ("@@ f /", "@@ $F /", "`$F` is no qualified name of a function or class"),
    "no lines": ("-log(a)\n+log(count(a))\n", "", f"{IN_F}nothing changes"),
    "a deep header": ("/ if a", f"/ if {'-' * 9000}a", "is no header of a statement"),
    "new: Latin-1": ("+def count", "+# coding: latin-1\n+def count", f"{NEW}: its encoding is iso-8859-1"),
    "many hunks": ("@@ f / if a", "@@ f / if a\n" * 501, "it has 503 hunks, more than 500"),
    "deep": ("+log(count(a))", f"+{'(' * 500}a{')' * 500}", f"{IN_F}not valid Python: too many nested parentheses"),
    "chained": ("+log(count(a))", f"+a{'.b' * 1500}", f"{IN_F}not valid Python: nested too deeply"),
    "CR": ("@@\n", "@@\r\n", "line 17: it has the control character '\\r'; lines end with a line feed alone"),
    "NUL": ("-log", "-\0", "line 15: it has the control character '\\x00'"),
    "cut": ("    return a\n", "    return a", "no newline at its end: it may be truncated"),
    "empty": (PATCH, "", "no newline at its end: it may be truncated"),
    "large": ("+\n", "+\n" * (1 << 20), "bytes, more than 1,048,576"),
    "10,000 lines": ("-log(a)\n+log(count(a))\n", " log(a)\n" * 10_000, f"{IN_F}nothing changes"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_patch_file(name: str) -> None:
    old, new, message = BAD[name]
    assert old in PATCH
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        catalogued(PATCH.replace(old, new, 1) if name != "cut" else PATCH[:-1])
    assert "\n" not in str(refused.value)


def test_a_patch_file_is_text_in_utf_8() -> None:
    with pytest.raises(ValueError, match="line 2: it is not UTF-8"):
        parse("Format: 1\nSubject: für\n".encode("latin-1"))
