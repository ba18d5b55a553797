"""Hunks: what they make of a piece of code, in which states, and what they say where they do not fit.

In the tables, `|` stands between the lines, and `#` at the end of a line for the mark.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vpatch import File
from vpatch.core.verdict import State

from tests.core.edits.hunks import HEADERS, STATEMENTS, VARIABLES, WITHIN
from tests.snippets import FILE, M, applied, module, overlay, unmarked, verdict
from tests.tiers import sampled


def lines(text: str) -> str:
    """Return a table's code."""
    ended = (f"{line[:-1].rstrip()}{M}" if line.endswith("#") else line for line in text.split("|"))
    return "".join(f"{line}\n" for line in ended)


def patch(hunk: str, **options: object) -> tuple:  # type: ignore[type-arg]
    return File(FILE).patch(hunk.replace("|", "\n"), **options)  # type: ignore[arg-type]


ALL = {
    f"{kind}: {name}": case
    for kind, table in (("statements", STATEMENTS), ("header", HEADERS), ("within", WITHIN), ("variable", VARIABLES))
    for name, case in table.items()
}


@pytest.mark.parametrize(("before", "hunk", "after"), ALL.values(), ids=ALL)
def test_a_hunk_is_applied(before: str, hunk: str, after: str) -> None:
    """Once, with marks; a second run changes nothing."""
    item = overlay(*patch(hunk))

    assert verdict(module(lines(before)), item).state is State.PENDING
    assert applied(module(lines(before)), item)[FILE].decode() == lines(after)


UNTOLD = {
    "within: list entry that goes",
    "within: the last keyword, a line each",
    "within: the last keyword, no comma behind it",
}
"""What only loses entries looks like many a list."""


@pytest.mark.parametrize("name", ALL)
def test_the_result_without_marks_is_upstreams(name: str) -> None:
    _, hunk, after = ALL[name]
    found = verdict(unmarked(module(lines(after).replace("\n# vpatch: demo\n", "\n"))), overlay(*patch(hunk)))

    assert found.state is (State.DRIFTED if name in UNTOLD else State.MERGED), found.because


LOST = {
    # The seven failures of the study: what looked done and was not.
    "a branch of what went": (
        "p(1)|if a:|    r(1)|else:|    q(1, 2)",
        "-p(1)|-if b:|-    r(1)|-else:|-    q(1, 2)|+q(1, 2)",
        "`if b: ...` is not there; line 2 has `if a: ...`",
    ),
    "a call without the entry": ("g(a)", " g(|     ...,|-    k=2,| )", "`g(..., k=2)` is not there"),
    "half there": (
        "b(a, 1)|g(a)|h(a)",
        " g(a)|+b(a, 1)| h(a)",
        "`b(a, 1)` is there already, line 1; the rest of the change is not",
    ),
    # What stands there.
    "another line between": ("g(a)|x(1)|h(a)", " g(a)|+k(a)| h(a)", "line 2 has `x(1)`, which the hunk does not have"),
    "another line in a block": (
        "if a:|    g(a)|    x(1)",
        " if a:|     g(a)|+    h(a)",
        "line 3 has `x(1)`, which the hunk does not have",
    ),
    "another statement": ("g(a)|h(b)", " g(a)|-h(a)|+h(c)", "`h(a)` is not there; line 2 has `h(b)`"),
    "the end of a block": ("g(a)", " g(a)|-h(a)|+h(c)", "`h(a)` is not there: the block ends in line 1"),
    "a long call": (
        f"x = f({'a, ' * 40}k=1)",
        f"-x = f({'a, ' * 40}k=2)|+x = 1",
        "`k=2` is not there; line 1 has `k=1`",
    ),
    "a long call without the keyword": (
        f"x = f({'a, ' * 40}k=1)",
        f"-x = f({'a, ' * 40}k=1, m=2)|+x = 1",
        "`m=2` is not in the call of `f` in line 1",
    ),
    "a long call with a keyword": (
        f"x = f({'a, ' * 40}k=1, m=2)",
        f"-x = f({'a, ' * 40}k=1)|+x = 1",
        "line 1 has `m=2` in the call of `f`, which the hunk does not have",
    ),
    "a long call, other in two places": (
        f"x = f({'a, ' * 40}b, c)",
        f"-x = f({'a, ' * 40}d, e)|+x = 1",
        "`d` is not there; line 1 has `b`",
    ),
    "a long list with an entry": (
        f"x = [{'a, ' * 40}b]",
        f"-x = [{'a, ' * 40}]|+x = 1",
        "line 1 has `b`, which the hunk does not have",
    ),
    "a long list without an entry": (f"x = [{'a, ' * 40}]", f"-x = [{'a, ' * 40}b]|+x = 1", "`b` is not in line 1"),
    "not in the block": (
        "if a:|    x(1)",
        " if a:|     ...|     g(b)|+    h(a)",
        "`g(b)` is not in the block of line 2",
    ),
    "another value of a variable": (
        "f(a)|g(b)|f(c)|h(d)",
        " f($X)|-h($X)|+k(1)",
        "`h($X)` is not there; nearest, line 4: `h(d)`",
    ),
    "two places": ("g(a)|if a:|    g(a)", "-g(a)|+h(a)", "`g(a)` is there 2 times, 1 expected (lines 1, 3)"),
    "a keyword twice": ("g(a, k=5)", " g(|     ...,|+    k=3,| )", "`g(...)` already has `k=5`, line 1"),
    "a one-line suite": ("if a: g(a)", " if a:|-    g(a)|+    h(a)", "`g(a)` is not there"),
    "a semicolon": ("g(a); h(a)", " g(a)|-h(a)|+k(a)", "`h(a)` is not there"),
    "not the whole block": ("if a:|    g(a)|    h(a)", " if a:|-    g(a)|+    k(a)", "line 3 has `h(a)`"),
    "another else": ("if a:|    g(a)|else:|    h(a)", "-if a:|-    g(a)|+k(a)", "line 1 has a branch `else:` (line 4)"),
    "no parameter to come behind": (
        "def f(b): a",
        "-def f(a):|+def f(a, n=1):|     ...",
        "no parameter 'a' to put 'n' behind",
    ),
    "a parameter without default to come behind": (
        "def f(a, b): a",
        "-def f(a):|+def f(a, n=1):|     ...",
        "parameter 'b', which has no default, would stand behind 'n', which has one",
    ),
    "a parameter with default to come behind": (
        "def f(a, b=1): a",
        "-def f(b):|+def f(b, n):|     ...",
        "parameter 'n', which has no default, would stand behind 'b', which has one",
    ),
    "a parameter of another kind": (
        "def f(a, *, n): a",
        "-def f(a):|+def f(a, n=1):|     ...",
        "has a parameter 'n' already, of another kind",
    ),
    "parameters change places": (
        "def f(a, b): a",
        "-def f(a, b):|+def f(b, a=1):|     ...",
        "a hunk cannot change the order of parameters",
    ),
}


@pytest.mark.parametrize(("source", "hunk", "message"), LOST.values(), ids=LOST)
def test_it_drifts(source: str, hunk: str, message: str) -> None:
    found = verdict(module(lines(source)), overlay(*patch(hunk)))

    assert found.state is State.DRIFTED
    assert message in found.because


def is_header(parameters: str) -> bool:
    try:
        compile(f"def f({parameters}): a", FILE, "exec")
    except SyntaxError:
        return False
    return True


PARAMETERS = st.lists(st.sampled_from(["a", "b", "n", "a=1", "b=1", "n=1", "/", "*", "*c", "**d"]), max_size=5)


CHANGES = """a -> a, n | a -> a, n=1 | a=1 -> n=1, a=1 | a, b -> a | a, b -> a, b, n=1 | a, b=1 -> a, n, b=1 | a -> a=1
*, a -> *, a, n | a, /, b -> a, n, /, b | a, /, b -> a, /, n, b | a, *c -> a, n, *c | a, *, b -> a | **d -> n=1, **d"""


@pytest.mark.parametrize("change", sampled(CHANGES.replace("\n", " | ").split(" | "), 5))
@given(there=PARAMETERS.map(", ".join).filter(is_header))
def test_a_header_that_changes_compiles(change: str, there: str) -> None:
    old, new = change.split(" -> ")
    item, tree = overlay(*patch(f"-def f({old}):|+def f({new}):|     ...")), module(f"def f({there}): a\n")

    if verdict(tree, item).state is State.PENDING:
        assert is_header(applied(tree, item)[FILE].decode().partition("(")[2].partition(")")[0])


def test_upstream_made_the_change_among_other_neighbours() -> None:
    found = verdict(module(lines("g(a)|if a:|    begin(a, 1)|k(a)")), overlay(*patch("-g(a, 1)|+begin(a, 1)| h(a)")))

    assert found.state is State.MERGED


def test_a_deletion_without_neighbours_is_never_upstreams() -> None:
    item = overlay(*patch("-log(a)"))

    assert verdict(module(lines("x = a")), item).state is State.DRIFTED
    assert verdict(module(lines("x = a|log(a)")), item).state is State.PENDING


BOTH = " g(a)|+x(a, 1)| h(a)|@@| g(a)|+y(a, 1)| h(a)"


def test_hunks_of_one_patch_are_matched_as_one() -> None:
    """Upstream's copy of both, in whichever order, is that of each."""
    item = overlay(*patch(BOTH))

    new = applied(module(lines("g(a)|h(a)")), item)
    assert new[FILE].decode() == lines("g(a)|x(a, 1) #|y(a, 1) #|h(a)")
    assert verdict(unmarked(new), item).state is State.MERGED
    assert verdict(module(lines("g(a)|y(a, 1)|x(a, 1)|h(a)")), item).state is State.MERGED


def test_addresses_imports_and_what_the_author_fills_in() -> None:
    source = "import os|class C:|    def f(self, a):|        if a / 2 > 1:|            g(a)|        g(a)"
    hunk = "@@ import|+import x|@@ C.f / if a / 2 > 1|-g(a)|+g($NEW)|@@ C|+def h(self):|+    return $NEW"
    item = overlay(*patch(hunk, NEW="x.y"))

    assert applied(module(lines(source)), item)[FILE].decode() == lines(
        "import os|import x #|class C:|    def f(self, a):|        if a / 2 > 1:|            g(x.y) #|        g(a)||"
        "    def h(self): #|        return x.y"
    )


@pytest.mark.parametrize(
    ("hunk", "says"),
    [
        ("g(a)|+h(a)", "a line of a hunk begins with a space, - or +, not as `g(a)`"),
        ("\tg(a)|+h(a)", "a line of a hunk begins with a space, - or +"),
        (" g(a", "nothing changes: no line begins with - or +"),
        (" g(a|+h(a)", "not valid Python once the signs are taken off: '(' was never closed: `g(a`"),
        (" if a:|+\tg(a)|+        h(a)", "not valid Python once the signs are taken off: "),
        (" g(a)", "nothing changes"),
        ("-g(a)|+g(a)", "nothing changes"),
        (" x = a|+", "nothing changes"),
        ("-x = 1|+x = 1", "nothing binds"),
        ("+h(a)", "lines that come need a line of context"),
        ("+# why| g(a)", "a comment alone cannot come"),
        ("+# why| x = a", "a comment alone cannot come"),
        (" g(a)| ^|+h(a)", "^ is the first or the last line of a hunk"),
        (" g($A)|+h($B)", "nothing binds `$B`"),
        (
            " if a:|     ...|+elif c:|+    g(3)| else:|     ...",
            "write all lines of `if a:` with - and +: its kind or its branches change",
        ),
        ("-if a:|+while a:|     ...", "write all lines of `if a:` with - and +"),
        ("-with a:|+with a as b:|     ...", "write all lines of `with a:` with - and +"),
        (" if a:|-    ...|+    g(a)", "`...` stands for what stays, so it cannot go"),
        (" x = g(|     ...,|-).p|+)", "write all lines of `g(...)`, without `...`"),
        ("-x = g(|+if a: g(|     ...,|     b,| )", "write all lines of `x = g("),
        ("\n".join(" g(a)" for _ in range(10_000)), "nothing changes"),
    ],
)
def test_what_is_no_hunk(hunk: str, says: str) -> None:
    if says == "nothing binds":  # the same statement may go and come: it moves
        assert patch(hunk)
        return
    with pytest.raises(ValueError, match=r"^vllm/m\.py: ") as refused:
        patch(hunk)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
