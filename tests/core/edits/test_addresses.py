"""Messages lead to the address of a block: of code that stands in several, and of a branch of a statement."""

from __future__ import annotations

import re

import pytest
from vpatch.core.edits.address import hunks
from vpatch.core.overlay import Edit
from vpatch.core.verdict import State

from tests.snippets import FILE, drifts, module, overlay, verdict

NESTED = """\
def f(x):
    if x is None:
        a()
    elif x > 2:
        a()
    elif x > 3:
        b()
    else:
        for i in x:
            a()
    try:
        b()
    except (A, B) as e:
        c()
    else:
        c()
    finally:
        d(1)
    match x:
        case 1:
            e()
    if x:
        g()
    if x:
        g()
    h()
    with x:
        h()

class C:
    @property
    def p(self):
        while x:
            a()
    @p.setter
    def p(self):
        a()
"""
CHAIN = "@@ f / if x is None"


def hunk(text: str) -> Edit:
    (edit,) = hunks(FILE, "", (), text.replace("|", "\n"))
    return edit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "@@ f| a()|+b(2)",
            "`a()` is there 3 times, 1 expected (lines 3, 5, 10); to take one, write its address: "
            f"`{CHAIN}` (line 3), `{CHAIN} / elif x > 2` (line 5), `{CHAIN} / else / for i in x` (line 10)",
        ),
        ("@@ f|-a()|+b(2)", f"; to take one, write its address: `{CHAIN}` (line 3), "),
        ("@@ f| c()|+b(2)", "`@@ f / try / except (A, B) as e` (line 14), `@@ f / try / else` (line 16)"),
        ("@@ f| h()|+b(2)", "(lines 26, 28); to take one, write its address: `@@ f / with x` (line 28)"),
        ("@@ f| g()|+b(2)", "(lines 23, 25); write more of the lines around it"),
        ("@@ f / elif x > 3| b()|+b(2)", f"directly in it; there is `{CHAIN} / elif x > 3` (line 7)"),
        ("@@ f / if x > 3| b()|+b(2)", f"directly in it; there is `{CHAIN} / elif x > 3` (line 7)"),
        ("@@ f / else| b()|+b(2)", f"there are `{CHAIN} / else` (line 9), `@@ f / try / else` (line 16)"),
        ("@@ f / finally| d(1)|+b(2)", "there is `@@ f / try / finally` (line 18)"),
        ("@@ f / for i in x| a()|+b(2)", f"there is `{CHAIN} / else / for i in x` (line 10)"),
        ("@@ f / except (A, B) as e| c()|+b(2)", "there is `@@ f / try / except (A, B) as e` (line 14)"),
        ("@@ C.p.setter / while x| a()|+b(2)", "no block `while x:` directly in it"),
        (
            "@@ f| if x is None:|     a()|+    b(2)| elif x > 2:|     a()",
            "the statement in line 4 has a branch `elif x > 3:` (line 6), which the hunk does not have: write it",
        ),
        (
            "@@ f| try:|     b()|+    b(2)| except (A, B) as e:|     c()",
            "the statement in line 11 has a branch `else:` (line 16), which the hunk does not have: write it",
        ),
        (
            "@@ f| with x:|     h()|+    b(2)| if x:|     g()| else:|     b()",
            "`if x: ...` is not there: the block ends",
        ),
        ("@@ f| if x:|     g()|+    b(2)| else:|     i()| h()", "has no branch with `i()`"),
    ],
)
def test_messages_lead_to_the_block(text: str, message: str) -> None:
    drifts(NESTED, hunk(text), message)


def test_the_addresses_of_messages_fit() -> None:
    """Each that a message offers holds the code once."""
    (problem,) = verdict(module(NESTED), overlay(hunk("@@ f| a()|+b(2)"))).problems
    offered = re.findall("`(@@ [^`]*)`", problem.cause)

    assert len(offered) == 3
    for address in offered:
        assert verdict(module(NESTED), overlay(hunk(f"{address}| a()|+b(2)"))).state is State.PENDING


def test_a_branch_alone_leads_to_its_address() -> None:
    with pytest.raises(ValueError, match="or in the address, as `@@ f / if a / elif b`"):
        hunk("@@ f| elif x > 2:|     a()|+    b(2)")
