"""The list of what an overlay's code takes from vLLM: written and read, damaged, of a newer format, of other code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vpatch import AddFile
from vpatch.core import calls
from vpatch.core.calls import Call, Calls, Taken
from vpatch.core.catalogue import discover, loadable
from vpatch.core.landing.interfaces import Interface, parse_interface
from vpatch.core.overlay import Edit
from vpatch.testing import digests

from tests.snippets import FILE, InsertBefore, overlay

OURS = [item for item in discover() if item.origin.startswith("vpatch ")]
ENTRY = {"digest": "d", "calls": {"vllm/a.py f": {"given": ["(x=_)"], "interfaces": {"function (x) -> value": ["b"]}}}}
LIST = {"format": 1, "releases": ["0.20.2"], "through": {}, "known": {}, "code": {"part 0.20": ENTRY}}

names = st.sampled_from(["a", "b_c", "é"])
ways = st.dictionaries(names, st.tuples(names))
interfaces = st.builds(
    Interface,
    st.sampled_from(["function", "coroutine method", "class", "static method", "kernel"]),
    st.sampled_from(["", "self", "self, x, *, y=...", "*args, **options", "a, /, b=..."]),
    st.frozensets(st.sampled_from(["value", "nothing", "2 values"])),
    st.frozensets(names),
)
taken = st.builds(
    Taken,
    names,
    st.dictionaries(
        names.map("vllm/{}.py f".format),
        st.builds(
            Call,
            st.sampled_from([("()",), ("(*_, **_)", "(self, x=_)")]),
            st.dictionaries(interfaces.map(str), st.tuples(names), max_size=2),
            st.tuples(names),
            st.booleans(),
        ),
        max_size=2,
    ),
    st.just({}),
    st.dictionaries(names, st.tuples(names), max_size=2),
    st.tuples(names),
)


@given(
    st.builds(
        Calls,
        st.tuples(names),
        ways,
        st.dictionaries(st.tuples(names, names), st.tuples(names)),
        st.dictionaries(names, taken, max_size=2),
    )
)
def test_what_is_written_is_read(written: Calls) -> None:
    data = calls.write(written)

    assert calls.parse(data) == written
    assert calls.write(calls.parse(data)) == data


@given(interfaces)
def test_an_interface_is_written_and_parsed(interface: Interface) -> None:
    assert parse_interface(str(interface)) == interface


def changed(**changes: object) -> bytes:
    return json.dumps({**LIST, **changes}).encode()


DAMAGED = {
    "not JSON": (b"{", "Expecting property name"),
    "no object": (b"[]", "it is damaged (TypeError"),
    "newer": (changed(format=2), "it has the format 2, and this vpatch reads 1"),
    "a field is gone": (json.dumps({"format": 1}).encode(), "it is damaged (KeyError: 'code'): delete it"),
    "code as a list": (changed(code=[1]), "it is damaged (AttributeError"),
}


@pytest.mark.parametrize(("data", "says"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_list(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        calls.parse(data)


@pytest.mark.parametrize("text", ["function x", "function (x=)", "(x)", "function (x) -> value @"])
def test_an_interface_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_interface(text)


def test_an_overlay_with_a_damaged_list_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (damaged := tmp_path / "x.json").write_bytes(b"{")

    def elsewhere(module: str) -> str:
        return str(damaged) if "turboquant_mtp" in module else str(tmp_path / "none")

    monkeypatch.setattr(calls, "file_of", elsewhere)

    found, problems = loadable()

    assert [problem.where for problem in problems] == ["vpatch_overlays.turboquant_mtp"]
    assert "Expecting property name" in problems[0].cause
    assert len(found) == len(OURS) - 1


def digest(*edits: Edit) -> dict[str, str]:
    return digests(overlay(*edits).overlay)


def test_other_code_has_another_digest() -> None:
    insert = InsertBefore(FILE, "f", "x", "y()")
    one = digest(AddFile("vllm/_vpatch/a.py", "x = 1\n"), insert)

    assert one == digest(AddFile("vllm/_vpatch/a.py", "x = 1\n"), insert)
    assert one != digest(AddFile("vllm/_vpatch/a.py", "x = 2\n"), insert)
    assert one != digest(AddFile("vllm/_vpatch/a.py", "x = 1\n"), InsertBefore(FILE, "f", "x", "z()"))
    assert set(one) == {"vllm/_vpatch/a.py", "part 1.0"}


@pytest.mark.parametrize("item", OURS, ids=lambda item: item.id)
def test_our_lists_are_those_of_our_code(item: object) -> None:
    assert item.calls is not None  # type: ignore[attr-defined]
    of_code = digests(item.overlay)  # type: ignore[attr-defined]
    assert {key: taken.digest for key, taken in item.calls.code.items()} == of_code  # type: ignore[attr-defined]


POSITIONAL = {
    "maybe_prefix": "vLLM's own call, to which a keyword is added",
    "GPUModelRunner._allow_microbatching": "vLLM's own call, within one to which a keyword is added",
    "ParallelLMHead": "vLLM's own call, to which a keyword is added",
    "TurboQuantConfig.get_boundary_skip_layers": "a function that the overlay itself replaces",
    "CudaPlatformBase.is_device_capability": "vLLM's own call, which stands beside a new one",
    "CudaPlatformBase.is_device_capability_family": "as the call beside it",
    "_VllmLogger.warning_once": "takes any number of arguments",
    "ReasoningParser.is_reasoning_end_streaming": "users' parsers may name its parameters as they like",
    "StreamingParserEngine._emit_for_state": "called by what overrides it, with what that was called with",
    "StreamingParserEngine._on_terminal": "as the one above",
    "StructuredOutputManager.should_advance": "vLLM's own call, to which a keyword is added",
    "WorkspaceManager.get_simultaneous": "takes any number of shapes",
    "current_workspace_manager.get_simultaneous": "takes any number of shapes",
}
"""Functions of vLLM's that our code may call with arguments by position."""


@pytest.mark.parametrize("item", OURS, ids=lambda item: item.id)
def test_our_code_names_its_arguments(item: object) -> None:
    by_position = {
        place.partition(" ")[2]
        for taken in item.calls.code.values()  # type: ignore[attr-defined]
        for place, call in taken.calls.items()
        for given in call.given
        if re.search(r"[(, ]\*?_(?=[,)])", given)
    }

    assert by_position <= POSITIONAL.keys()
