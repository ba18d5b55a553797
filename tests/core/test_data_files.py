"""Data files in a patch file: their text comes verbatim, and hashes and companions decide their state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vpatch.core.edits.data import read_data, written_data
from vpatch.core.engine import Engine
from vpatch.core.marks import overlays_of
from vpatch.core.verdict import State
from vpatch.manifest import sha256

from tests.core.test_patch_file import catalogued

OLD, TABLE, TEMPLATE = b'{"a": 1}', "vllm/configs/E=8,device_name=(A),shape=[1,2].json", "vllm/a.jinja"
DATA_PATCH = f"""\
Format: 1
Subject: Tune a table
Base: 0.31.0

+++ {TABLE}
+{{"b": 2}}
\\ No newline at end of file

--- {TEMPLATE}
@@ sha256 {sha256(OLD)}
+{{% if a %}}
+
+  b\t
"""


def test_data_files_come_verbatim_and_their_companions_have_the_marks() -> None:
    item = catalogued(DATA_PATCH)
    made = Engine([item]).plan({TEMPLATE: OLD}.get).files

    assert made[TABLE] == b'{"b": 2}'
    assert made[TEMPLATE] == b"{% if a %}\n\n  b\t\n"
    companions = {file: data.decode() for file, data in made.items() if file not in (TABLE, TEMPLATE)}
    assert sorted(companions.values()) == sorted(
        f"# vpatch: demo\n# {file} has no mark in it; its sha256 is {sha256(made[file])}\n"
        for file in (TABLE, TEMPLATE)
    )
    assert overlays_of(made) == {file: {"demo"} for file in made}


THERE = {TABLE: b'{"b": 2}', TEMPLATE: b"{% if a %}\n\n  b\t\n"}
STATES: dict[str, tuple[dict[str, bytes], bool, State, str]] = {
    "old": ({TEMPLATE: OLD}, False, State.PENDING, "4 changes to make"),
    "ours": (THERE, True, State.APPLIED, "every change is in place, with its mark"),
    "upstream's": (THERE, False, State.MERGED, "the code equals the overlay's result, without its marks"),
    "half": ({**THERE, TEMPLATE: OLD}, True, State.PENDING, "1 of 4 changes to make"),
    "half upstream's": ({**THERE, TEMPLATE: OLD}, False, State.PENDING, "3 of 4 changes to make"),
    "gone": (
        {TABLE: THERE[TABLE]},
        True,
        State.DRIFTED,
        f"{TEMPLATE}: no such file; expected is the one of sha256 f9d8",
    ),
    "another": (
        {TEMPLATE: b"[]"},
        False,
        State.DRIFTED,
        f"{TEMPLATE}: its sha256 is 4f53cda18c2b, neither f9d86028c6e0, which the patch replaces, nor 087bd4b6da79",
    ),
    "edited": (
        {**THERE, TEMPLATE: b"[]"},
        True,
        State.DRIFTED,
        f"{TEMPLATE}: its sha256 is 4f53cda18c2b, neither f9d8",
    ),
    "in the way": (
        {TEMPLATE: OLD, TABLE: b"[]"},
        False,
        State.DRIFTED,
        f"{TABLE}: exists already, and is another file",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_the_hashes_of_data_files_decide(name: str) -> None:
    """One engine judges all: equal bytes of a file are another state where its companion is there."""
    engine = Engine([catalogued(DATA_PATCH)])
    made = engine.plan({TEMPLATE: OLD}.get).files
    files, companions, state, because = STATES[name]
    tree = files | {file: data for file, data in made.items() if companions and file not in THERE}

    for _ in range(2):
        (found,) = engine.status(tree.get)
        assert (found.state, because in found.because) == (state, True), found.because
        engine.status({**THERE}.get)


def test_two_patches_of_one_data_file_are_in_conflict() -> None:
    one, other = catalogued(DATA_PATCH), replace(catalogued(DATA_PATCH), id="other")

    assert {found.state for found in Engine([one, other]).status({TEMPLATE: OLD}.get)} == {State.CONFLICT}


@given(st.none() | st.text(), st.text(st.characters(codec="utf-8", exclude_characters="\r\x85\u2028")))
def test_any_text_of_a_data_file_is_read_as_it_was_written(before: str | None, after: str) -> None:
    rows = written_data(before, after).split("\n")[:-1]

    found = read_data(TABLE, [*rows, ""], new=before is None)
    assert (found.text, found.old) == (after, "" if before is None else sha256(before.encode()))
