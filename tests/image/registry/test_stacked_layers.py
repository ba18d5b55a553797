"""Layers read from the top give the same tree as layers applied from the bottom."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from vpatch.image.filesystem import Kind
from vpatch.image.registry.layers import entry_in, names_in
from vpatch.image.registry.tar import LayerView, Spent, read_layer

from tests.image.registry.images import PACKS, digest, tar
from tests.tiers import WHOLE

WHAT = {Kind.FILE: b"x", Kind.FOLDER: None, Kind.LINK: "x"}
ALL = ["/".join(parts) for size in (1, 2, 3) for parts in product("ab", repeat=size)]
PATHS = st.sampled_from(ALL)
ENTRIES = st.dictionaries(PATHS, st.sampled_from([Kind.FOLDER, *WHAT]), max_size=6)
GONE = st.sets(PATHS, max_size=3)
Layer = tuple[dict[str, Kind], set[str], set[str]]
LAYERS = st.lists(st.tuples(ENTRIES, GONE, st.sets(PATHS)), max_size=4)


def valid(layer: Layer) -> Layer:
    """Drop entries below anything but a folder, and opaque marks without a folder in the layer."""
    entries, removed, opaque = layer
    kept: dict[str, Kind] = {}
    for path in sorted(entries):
        if all(kept.get(folder, Kind.FOLDER) is Kind.FOLDER for folder in folders(path)):
            kept[path] = entries[path]
    return kept, removed, {path for path in opaque if kept.get(path) is Kind.FOLDER}


def folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def tar_of(layer: Layer) -> bytes:
    entries, removed, opaque = layer
    marks = [f"{path}/.wh..wh..opq" for path in opaque]
    marks += [f"{folder}{slash}.wh.{name}" for folder, slash, name in (path.rpartition("/") for path in removed)]
    return tar(*((path, WHAT[kind]) for path, kind in entries.items()), *((mark, b"") for mark in marks))


def apply(state: dict[str, Kind], layer: Layer) -> None:
    """Apply a layer in place, as an engine does."""
    entries, removed, opaque = layer

    def drop_below(top: str) -> None:
        for path in [path for path in state if path.startswith(f"{top}/")]:
            del state[path]

    for path in opaque:
        drop_below(path)
    for path in removed:
        drop_below(path)
        state.pop(path, None)
    for path, kind in entries.items():
        state.update(dict.fromkeys(folders(path), Kind.FOLDER))
        state[path] = kind
        if kind is not Kind.FOLDER:
            drop_below(path)


def reached(views: list[LayerView], folder: str = "") -> dict[str, Kind]:
    there = {}
    for name in names_in(views, folder):
        path = f"{folder}/{name}".lstrip("/")
        entry = entry_in(views, path)
        assert entry
        there[path] = entry.kind
        there |= reached(views, path)
    return there


@settings(deadline=None, derandomize=True, database=None, max_examples=1000 if WHOLE else 40)
@given(LAYERS, st.sampled_from(list(PACKS)))
def test_upper_layers_decide(layers: list[Layer], pack: str) -> None:
    state: dict[str, Kind] = {}
    views: list[LayerView] = []
    for layer in map(valid, layers):
        apply(state, layer)
        data = tar_of(layer)
        view, diff_id = read_layer(iter([PACKS[pack](data)]), lambda _: False, Spent())
        assert diff_id == digest(data)
        views.insert(0, view)

    assert reached(views) == state
    assert {path for path in ALL if entry_in(views, path)} == set(state)
