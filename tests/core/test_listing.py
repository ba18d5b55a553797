"""Listings of folders: bytes that every reader makes alike, and from which the names come back."""

from __future__ import annotations

import pytest
from vpatch.core.listing import among, is_folder, pack, unpack
from vpatch.core.workspace import Workspace

PATHS = ("vllm/a.py", "vllm/d/one", "vllm/d/two", "vllm/d/below/x", "vllm/d/below/y", "vllm/dx/z", "vllm/e/f/g")


@pytest.mark.parametrize("names", [(), ("a",), ("a.cuh", "b\nc", "\udce4", "ä")])
def test_names_come_back(names: tuple[str, ...]) -> None:
    assert unpack(pack(reversed(names))) == tuple(sorted(names))


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("vllm/d/", ("below", "one", "two")),
        ("vllm/d/below/", ("x", "y")),
        ("vllm/e/", ("f",)),
        ("vllm/", ("a.py", "d", "dx", "e")),
        ("vllm/none/", None),
        ("vllm/a.py/", None),
    ],
)
def test_a_folder_of_an_archive(folder: str, names: tuple[str, ...] | None) -> None:
    listed = among(PATHS, folder)

    assert listed == (None if names is None else pack(names))
    assert Workspace({folder: listed}.get).names(folder) == names


def test_an_entry_for_the_folder_itself_is_no_name_in_it() -> None:
    assert among(("d/", "d/x"), "d/") == pack(["x"])
    assert is_folder("d/")
    assert not is_folder("d")
