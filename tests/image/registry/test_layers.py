"""The files of an image are those that a container has, and only the layers that a question needs are read."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vpatch.core.listing import pack
from vpatch.image.filesystem import Entry, Files, Kind, Place, read_from
from vpatch.image.registry.image import RemoteImage
from vpatch.image.registry.layers import LayeredFiles, entry_in, names_in
from vpatch.image.registry.tar import LayerView, Spent, read_layer
from vpatch.wrapping import printable

from tests.failures import problem_of
from tests.image.registry.conftest import Put
from tests.image.registry.images import PACKS, digest, hard, refused_layer, tar
from tests.image.registry.proxy import Proxy
from tests.tiers import WHOLE


def python(entry: Entry) -> bool:
    return entry.path.endswith(".py")


def whole(image: RemoteImage) -> LayeredFiles:
    files = LayeredFiles(image, python)
    while files.descend():
        continue
    return files


def refusal(action: Callable[..., object], *arguments: str) -> str:
    problem = problem_of(action, *arguments)
    assert problem.what == "cannot read"
    return problem.cause


def everything(files: Files, folder: str = "") -> dict[str, str]:
    there = {}
    for name in files.names(folder):
        path = f"{folder}/{name}".lstrip("/")
        entry = files.entry(path)
        assert entry
        there[path] = entry.kind.value
        there |= everything(files, path)
    return there


@pytest.mark.parametrize("pack", PACKS)
def test_reads_a_layer_in_every_format(put: Put, pack: str) -> None:
    body = random.Random(7).randbytes(5000)  # noqa: S311
    heard: list[tuple[int, int]] = []
    image = put(tar(("./a", None), ("a/b.py", body), ("a/c.so", body), ("a/d", "../b")), pack=pack)

    files = LayeredFiles(image, python, progress=lambda done, total: heard.append((done, total)))

    assert (files.names("a"), files.entry("a"), files.read("a/b.py")) == ((), None, None)
    assert files.descend()
    assert files.names("a") == ("b.py", "c.so", "d")
    assert files.read("a/b.py") == body
    assert files.entry("a/b.py") == Entry("a/b.py", Kind.FILE, 0o644, 7, 8, 1_700_000_000, 5000)
    assert files.entry("a") == Entry("a", Kind.FOLDER, 0o750, 7, 8, 1_700_000_000)
    assert files.entry("a/d") == Entry("a/d", Kind.LINK, 0o777, 7, 8, 1_700_000_000, 0, "../b")
    assert files.read("nothing") is None
    assert refusal(files.read, "a/c.so") == "the bytes of a/c.so were not kept"
    assert refusal(files.read, "a/d") == "a/d is a symbolic link"
    assert not files.descend()
    assert files.bytes_read == image.layers[0].size
    assert files.layers_read == list(image.layers)
    assert heard[-1] == (files.bytes_read, files.bytes_read)


def test_upper_layers_decide(put: Put) -> None:
    """Marks of aufs, links, and what is read; `test_drawn_layers_decide` has the rest."""
    bottom = tar(("a", None), ("a/x.py", b"old"), ("a/y.py", b"y"), ("d.py", b"d"), ("e", None), ("e/x.py", b""))
    marks = ((".wh.d.py", b""), (".wh..wh.plnk", None), (".wh..wh.aufs", b""))
    middle = tar(("a/x.py", b"new"), ("e", "g"), ("f/in.py", b""), *marks)
    files = whole(put(bottom, middle, tar(("a/.wh.y.py", b""), ("d.py", b"again"))))

    there = {"a": "folder", "a/x.py": "file", "d.py": "file", "e": "symbolic link", "f": "folder", "f/in.py": "file"}
    assert everything(files) == there
    assert files.matching(lambda path: path.endswith(".py")) == ["a/x.py", "d.py", "f/in.py"]
    assert (files.read("a/x.py"), files.read("d.py")) == (b"new", b"again")
    assert [files.entry(path) for path in ("a/y.py", "e/x.py")] == [None] * 2
    assert refusal(files.read, "a") == "a is a folder"


VLLM = Place("s", "vllm-1.dist-info")


def test_folders(put: Put) -> None:
    image = put(
        tar(("s/vllm/d/a.cuh", b""), ("s/vllm/d/sub/x", b""), ("s/vllm/d/gone.cuh", b""), ("s/vllm/f", b"")),
        tar(("s/vllm/d/.wh.gone.cuh", b""), ("s/vllm/d/b.cuh", b""), ("usr", None), ("usr/lib", "lib64")),
        tar(("./", None), ("./usr/lib/x.py", b"")) + bytes(1 << 20),  # it may have a root, and be padded
    )
    files = whole(image)
    read = partial(read_from, files, VLLM)

    assert read("vllm/d/") == pack(["a.cuh", "b.cuh", "sub"])
    assert [read(f"vllm/{path}/") for path in ("none", "f", "d/a.cuh")] == [None, None, None]
    assert files.entry("usr/lib") == Entry("usr/lib", Kind.FOLDER, 0o755, 0, 0, 0), "without an entry"
    assert files.entry("usr") == Entry("usr", Kind.FOLDER, 0o750, 7, 8, 1_700_000_000)
    assert files.names("usr/lib") == ("x.py",)
    # As of vLLM's files under a layer that has a few of them anew, and RECORD.
    files = LayeredFiles(put(tar(("s/vllm/d/a.cuh", b"")), tar(("s/vllm/x.py", b""))), python)
    assert files.descend()
    assert read_from(files, VLLM, "vllm/d/") is None
    files.listed = frozenset({"s/vllm/d/a.cuh"})
    assert read_from(files, VLLM, "vllm/d/") == pack(["a.cuh"])


def test_reads_no_more_layers_than_needed(put: Put, proxy: Proxy) -> None:
    tars = (tar(("a.py", b"1")), tar(("b.py", b"2")), tar(("c.py", b"3"), (".wh.gone.py", b"")), tar(("d.py", b"4")))
    image = put(*tars, host=proxy.host)
    files = LayeredFiles(image, python)

    while not files.matching(lambda path: path == "c.py"):
        assert files.descend()

    assert files.layers_read == [image.layers[3], image.layers[2]]
    assert files.names("") == ("c.py", "d.py")
    assert files.locate("c.py")
    assert files.locate("gone.py") is None
    assert len(files.layers_read) == 2
    assert files.locate("b.py")
    assert files.layers_read == [image.layers[3], image.layers[2], image.layers[1]]
    assert files.entry("a.py") is None
    assert files.locate("nowhere") is None
    assert files.entry("a.py")
    assert proxy.count("GET", "/blobs/") == 1 + 4
    assert files.bytes_read == sum(layer.size for layer in image.layers)


def test_hard_links_and_repeated_entries(put: Put) -> None:
    image = put(
        tar(
            ("cache", None), ("cache/a1", b"first"), ("cache/b.py", b"second"),
            hard("site/a.py", "cache/a1"), hard("site/b.py", "./cache/b.py"), hard("site/c.py", "site/a.py"),
            hard("site/d", "cache/a1"), ("e.py", b"1"), hard("f.py", "e.py"), ("e.py", b"2"), ("f.py", "e.py"),
        )
    )  # fmt: skip
    files = whole(image)

    assert [files.read(f"site/{name}.py") for name in "abc"] == [b"first", b"second", b"first"]
    assert files.entry("site/d") == Entry("site/d", Kind.FILE, 0o644, 7, 8, 1_700_000_000, 5)
    assert refusal(files.read, "site/d") == "the bytes of site/d were not kept"
    assert files.layers_read == [image.layers[0]] * 2, "cache/a1 was not to be kept"
    assert files.read("e.py") == b"2", "the last of two counts"
    assert files.entry("f.py") == Entry("f.py", Kind.LINK, 0o777, 7, 8, 1_700_000_000, 0, "e.py")


BELOW = "has an entry that would leave the tree: {} is below what is no folder"


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("/etc/passwd", b"")], "has an entry that would leave the tree: /etc/passwd"),
        ([("a/../../b", b"")], "has an entry that would leave the tree: a/../../b"),
        ([("../\x1b[2J\udcff", None)], "has an entry that would leave the tree: ../\\x1b[2J\\udcff"),
        ([("..", None)], "has an entry that would leave the tree: .."),
        ([("a", "/etc"), ("a/passwd", b"")], BELOW.format("a/passwd")),
        ([("a/passwd", b""), ("a", "..")], BELOW.format("a/passwd")),
        ([("a", "/etc"), ("a/b/passwd", b""), ("a", None)], BELOW.format("a/b")),
        ([("a", b""), ("a/b", b"")], BELOW.format("a/b")),
        ([hard("a", "/etc/passwd")], "has an entry that would leave the tree: /etc/passwd"),
        ([hard("a", "../etc/passwd")], "has an entry that would leave the tree: ../etc/passwd"),
        ([hard("a", "b")], "has a hard link to what it does not have: a to b"),
        ([("a/.wh...", b"")], "takes away what is no file: a/.wh..."),
        ([("a/.wh.", b"")], "takes away what is no file: a/.wh."),
    ],
)
def test_entries_that_would_leave_the_tree(members: list[Any], why: str) -> None:
    assert printable(refused_layer(tar(*members))) == why


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is no tar: empty file"),
        (b"\x1f\x8b\x08garbage", "is no tar: "),
        (b"\x28\xb5\x2f\xfdgarbage", "is no tar: "),
        (tar(("a.py", b"x" * 3000))[:2000], "is no tar: unexpected end of data"),
        (b"x" * 4000, "is no tar: "),
        (tar(("a", b"")), "is not what its diffID says"),
    ],
)
def test_a_layer_that_is_damaged(put: Put, data: bytes, why: str) -> None:
    other = {"rootfs": {"diff_ids": ["sha256:" + "0" * 64]}} if "diffID" in why else None
    image = put(data, pack="plain", settings=other)

    assert refusal(LayeredFiles(image, python).descend).startswith(f"the layer {image.layers[0].digest} {why}")


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("spoil", ["corrupt", "longer"])
def test_a_blob_that_is_not_what_its_digest_says(put: Put, proxy: Proxy, pack: str, spoil: str) -> None:
    image = put(tar(("a", b"a" * 3000)), pack=pack, host=proxy.host)
    proxy.fail("GET", "/blobs/", spoil=spoil)

    cause = refusal(LayeredFiles(image, python).descend)

    assert cause == f"the blob {image.layers[0].digest} is not what its digest says"


@pytest.mark.parametrize("spoil", ["cut", "short"])
def test_a_blob_that_was_cut_is_read_again(put: Put, proxy: Proxy, spoil: str) -> None:
    body = random.Random(7).randbytes(300_000)  # noqa: S311
    image = put(tar(("a.py", body)), host=proxy.host)
    files = LayeredFiles(image, python)
    size = image.layers[0].size
    proxy.fail("GET", "/blobs/", spoil=spoil, times=2)

    assert files.descend()

    assert files.read("a.py") == body
    assert size < files.bytes_read <= 2 * size
    assert files.layers_read == list(image.layers)
    proxy.fail("GET", "/blobs/", spoil=spoil, times=3)
    assert refusal(LayeredFiles(image, python).descend).startswith(f"the blob {image.layers[0].digest} is cut: ")


# --- layers read from the top give the same tree as layers applied from the bottom ---------------------------------


WHAT = {Kind.FILE: b"x", Kind.FOLDER: None, Kind.LINK: "x"}
ALL = ["/".join(parts) for size in (1, 2, 3) for parts in product("ab", repeat=size)]
PATHS = st.sampled_from(ALL)
ENTRIES = st.dictionaries(PATHS, st.sampled_from([Kind.FOLDER, *WHAT]), max_size=6)
GONE = st.sets(PATHS, max_size=3)
Drawn = tuple[dict[str, Kind], set[str], set[str]]
LAYERS = st.lists(st.tuples(ENTRIES, GONE, st.sets(PATHS)), max_size=4)


def valid(layer: Drawn) -> Drawn:
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


def tar_of(layer: Drawn) -> bytes:
    entries, removed, opaque = layer
    marks = [f"{path}/.wh..wh..opq" for path in opaque]
    marks += [f"{folder}{slash}.wh.{name}" for folder, slash, name in (path.rpartition("/") for path in removed)]
    return tar(*((path, WHAT[kind]) for path, kind in entries.items()), *((mark, b"") for mark in marks))


def applied(state: dict[str, Kind], layer: Drawn) -> None:
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
def test_drawn_layers_decide(layers: list[Drawn], pack: str) -> None:
    state: dict[str, Kind] = {}
    views: list[LayerView] = []
    for layer in map(valid, layers):
        applied(state, layer)
        data = tar_of(layer)
        view, diff_id = read_layer(iter([PACKS[pack](data)]), lambda _: False, Spent())
        assert diff_id == digest(data)
        views.insert(0, view)

    assert reached(views) == state
    assert {path for path in ALL if entry_in(views, path)} == set(state)
