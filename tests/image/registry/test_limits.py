"""Limits on untrusted images: each is named when it is exceeded, and in docs/images.md."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
import time
import tracemalloc
from typing import IO, Any
from unittest.mock import Mock

import pytest
from vpatch.image.filesystem import Limits
from vpatch.image.registry import tar as tars
from vpatch.image.registry.layers import LayeredFiles, destinations
from vpatch.image.registry.tar import BadLayerError, Copy, Spent, read_layer
from vpatch.net import session as of_servers
from vpatch.net import size

from tests.conftest import Program
from tests.drip import DRIPS, dripping
from tests.failures import problem_of
from tests.image.registry.conftest import Put, Refused
from tests.image.registry.images import PACKS, TYPES, digest, hard, opened, put_blob, put_image, refused_layer, tar
from tests.image.registry.proxy import Proxy
from tests.image.standin import SITE
from tests.paths import ROOT
from tests.tiers import deep

LIMITS = ("LAYERS", "ENTRIES", "GLOBALS", "PATH", "DEPTH", "COPIES", "VLLMS", "RECORDS")
SIZES = ("IMAGE", "NAMES", "HEADER", "FILE", "SOURCE", "MEMORY")


def header(kind: bytes, body: bytes, size: int | None = None) -> bytes:
    """Return an extended header, which may state a size larger than its own."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, len(body) if size is None else size
    return info.tobuf() + body + bytes(-len(body) % 512)


def pax(number: int) -> bytes:
    record = f" comment{number:04}=x\n"
    return f"{len(record) + 2}{record}".encode()


def copies(monkeypatch: pytest.MonkeyPatch) -> list[IO[bytes]]:
    """Return a list that collects all temporary files made from now on."""
    made: list[IO[bytes]] = []

    def make() -> IO[bytes]:
        made.append(tempfile.TemporaryFile())  # noqa: SIM115 - a `Copy` closes it
        return made[-1]

    monkeypatch.setattr(tars, "TemporaryFile", make)
    return made


@pytest.mark.parametrize(
    ("kind", "size"),
    [(tarfile.XHDTYPE, 2 << 30), deep(tarfile.XGLTYPE, 64 << 20), deep(tarfile.GNUTYPE_LONGNAME, 2 << 30)],
)
def test_a_header_of_gigabytes(kind: bytes, size: int) -> None:
    layer = PACKS["gzip"](header(kind, bytes(64 << 20), size))
    tracemalloc.start()
    try:
        assert refused_layer(layer) == "has an entry with a header of more than 1 MiB"
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def said(**headers: str) -> bytes:
    """Return a tar of an entry without bytes but with extended headers; `_` is a dot."""
    info = tarfile.TarInfo("a.py")
    info.pax_headers = {name.replace("_", "."): value for name, value in headers.items()}
    return tar(info)


def stamped(header: bytearray) -> bytes:
    header[148:156] = b"        "
    header[148:156] = f"{sum(header[:512]):06o}\0 ".encode()
    return bytes(header)


def old() -> bytes:
    """Return a sparse file in GNU tar's first format: no bytes, and a separate size of the expanded file."""
    header = bytearray(tar(("a.py", b""))[:512])
    header[156:157], header[257:265] = tarfile.GNUTYPE_SPARSE, b"ustar  \0"
    header[483:495] = f"{HUGE:011o}\0".encode()
    return stamped(header) + bytes(1024)


def negative() -> bytes:
    """Return an extended header of a negative size."""
    data = bytearray(header(tarfile.XHDTYPE, b""))
    data[124:136] = b"\xff" * 10 + b"\xfc\x00"
    return stamped(data)


HUGE = 200 << 20
ONE = tar(("a", b""))
SPARSE = "has a sparse file, which no layer has: a.py"
LONG = "has an entry with a path of more than 4,096 characters"


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (said(GNU_sparse_size=str(HUGE), GNU_sparse_map=f"{HUGE},0"), SPARSE),
        (said(GNU_sparse_size=str(HUGE), GNU_sparse_offset=str(HUGE), GNU_sparse_numbytes="0"), SPARSE),
        (said(GNU_sparse_realsize=str(-(10**15)), GNU_sparse_major="1", GNU_sparse_minor="7"), SPARSE),
        (said(GNU_sparse_name="a.py"), SPARSE),
        (old(), SPARSE),
        (said(size="-5"), "has an entry of a negative size: a.py"),
        (negative() + ONE, "is no tar: a header is of a negative size"),
        # Headers of headers.
        (header(tarfile.XHDTYPE, pax(0)) * 2000 + ONE, "is no tar: "),
        (header(tarfile.XHDTYPE, bytes(300 << 10)) * 4 + ONE, "has an entry with a header of more than 1 MiB"),
        (
            b"".join(header(tarfile.XGLTYPE, pax(number)) for number in range(101)) + ONE,
            "says more than 100 things of all its entries",
        ),
        (tar(("a/" * 3000, None)), LONG),
        (tar(("a", "b" * 5000)), LONG),
        *((tar(("a/" * 257 + name, b"")), "has an entry in more than 256 folders") for name in ("a", ".wh.a")),
    ],
)
def test_headers_that_are_not_believed(monkeypatch: pytest.MonkeyPatch, layer: bytes, why: str) -> None:
    made = copies(monkeypatch)

    assert refused_layer(layer).startswith(why)
    assert made == []


def test_what_is_just_within_the_limits() -> None:
    """Folders in folders; extended headers, long names and padding: read forward only, and hashed as a whole."""
    for name in ("a", ".wh.a", ".wh..wh..opq"):
        read_layer(iter([tar(("a/" * 256 + name, b""))]), lambda _: True, Spent())
    body: Any = tar(("a" * 300, b"x" * 70_000), ("b", "c" * 300), ("d", None)) + bytes(1 << 17)
    view, diff_id = read_layer(iter([body[:700], body[700:]]), lambda _: True, Spent())

    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert sorted(view.entries) == sorted(archive.getnames())
    assert view.contents == {"a" * 300: b"x" * 70_000}
    assert view.entries["b"].target == "c" * 300
    assert diff_id == digest(body)


@pytest.mark.parametrize(
    ("name", "limit", "why"),
    [
        ("ENTRIES", 3, "has, with those above it, more than 3 entries"),
        ("NAMES", 1 << 10, "has, with those above it, names of more than 1 KiB"),
        ("MEMORY", 1 << 10, "has, with those above it, small files of more than 1 KiB that would be read"),
        ("IMAGE", 10 << 10, "unpacks, with those above it, to more than 10 KiB"),
        ("FILE", 512, "has a file of 1,000 bytes, and it may have 512 bytes: a/b/c1.py"),
    ],
)
def test_limits_hold_for_all_layers_together(
    monkeypatch: pytest.MonkeyPatch, put: Put, name: str, limit: int, why: str
) -> None:
    folder = "a/b" if name != "NAMES" else "a" * 300
    both = [tar((f"{folder}/c{number}.py", bytes(1000)), (f"{folder}/d{number}", b"")) for number in range(2)]
    image = put(*both)
    files = LayeredFiles(image, lambda entry: entry.path.endswith(".py"))
    monkeypatch.setattr(Limits, name, limit)

    number = 1 if name == "FILE" else 0  # the upper layer alone, or the lower one, with which it is too much
    line = f"cannot read: {image.ref}: the layer {image.layers[number].digest} {why}"
    assert str(problem_of(files.locate, "nowhere")) == line


def test_folders_without_an_entry_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "NAMES", 1 << 20)
    folders = tar(*((f"{number}/" + f"{'a' * 19}/" * 200, None) for number in range(9)))

    assert refused_layer(folders).endswith("names of more than 1 MiB")


def test_a_large_file_is_closed_with_the_last_path_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or cannot be opened."""
    monkeypatch.setattr(tars, "LARGE", 10)
    made = copies(monkeypatch)
    layer = tar(("a", b"1" * 11), hard("b", "a"), ("a", b"2" * 11), ("c", b"3" * 11), ("c", b"4"))
    view, _ = read_layer(iter([layer]), lambda _: True, Spent())

    first, second = (view.contents[path] for path in "ab")
    assert isinstance(first, Copy)
    assert isinstance(second, Copy)
    with first.open() as a, second.open() as b:
        assert (a.read(), b.read()) == (b"2" * 11, b"1" * 11)
    assert [file.closed for file in made] == [False, False, True]
    view.entries.clear()
    del view, first, second
    assert [file.closed for file in made] == [True] * 3

    monkeypatch.setattr(tars, "TemporaryFile", Mock(side_effect=OSError(24, os.strerror(24))))
    problem = problem_of(read_layer, iter([layer]), lambda _: True, Spent())
    assert str(problem) == "cannot write: temporary file: too many open files"


def test_too_many_large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "LARGE", 10)
    spent = Spent()
    layers = [tar(*((f"{layer}/{number}", bytes(11)) for number in range(Limits.COPIES // 2))) for layer in range(2)]
    views = [read_layer(iter([layer]), lambda _: True, spent)[0] for layer in layers]
    assert sum(len(view.contents) for view in views) == Limits.COPIES

    with pytest.raises(BadLayerError) as caught:
        read_layer(iter([tar(("a.so", bytes(11)))]), lambda _: True, spent)
    assert str(caught.value) == "has, with those above it, more than 100 large files that would be read"


def test_a_file_too_large_to_be_read_whole(monkeypatch: pytest.MonkeyPatch, put: Put) -> None:
    monkeypatch.setattr(tars, "LARGE", 10)
    monkeypatch.setattr(Limits, "SOURCE", 1 << 10)
    layer = tar(("a.py", bytes(1 << 10)), ("b.py", bytes(1025)), ("cache", b"1" * 11), hard("c.py", "cache"))
    files = LayeredFiles(put(layer), lambda entry: entry.path.endswith(".py"))
    assert files.descend()
    assert files.read("c.py") == b"1" * 11, "a hard link to one that was not kept"

    assert files.read("a.py") == bytes(1 << 10)
    assert str(problem_of(files.read, "b.py")).endswith(": b.py has 1,025 bytes, and may have 1 KiB")
    opened = files.open("b.py")
    assert opened
    with opened:
        assert opened.read() == bytes(1025)


@pytest.mark.parametrize(
    ("layers", "size", "why"),
    [
        (10_000, 100, "it has 10,000 layers, and may have 512"),
        (2, 40 << 30, "its layers have 85,899,345,920 bytes, and may have 64 GiB"),
    ],
)
def test_too_many_layers(refused_on: Refused, proxy: Proxy, layers: int, size: int, why: str) -> None:
    built = put_image(proxy.behind, "limits/many", "x", [tar(("a", b""))])
    many = [{**built.manifest["layers"][0], "size": size}] * layers
    proxy.fail("GET", "/manifests/", status=200, body=json.dumps({**built.manifest, "layers": many}).encode())
    name = f"{proxy.host}/limits/many:x"
    began = time.monotonic()

    assert refused_on(name).err == f"cannot read: {name}: {why}\n"
    assert time.monotonic() - began < 10
    assert len(proxy.asked) == 1


HIDDEN = [(f"x/{'d/' * 200}{number}/vllm-1.dist-info/RECORD", b"") for number in range(300)]
SEEN = [(f"{SITE}/{number}/vllm-1.dist-info/RECORD", b"") for number in range(17)]


@pytest.mark.parametrize(
    ("tars", "why"),
    [
        ([tar(*SEEN)], "more than 16 places in it look like a vLLM"),
        ([tar(("a", b"")), tar(*HIDDEN), tar((".wh.x", b""))], "more than 100 places in its layers look like a vLLM"),
    ],
    ids=["seen", "hidden"],
)
def test_too_many_vllms(refused_on: Refused, put: Put, tars: list[bytes], why: str) -> None:
    name = str(put(*tars).ref)

    assert refused_on(name).err == f"cannot read: {name}: {why}\n"


def test_a_repeated_layer_is_read_once(registry: str, proxy: Proxy) -> None:
    layer = tar(("a.py", b"1"))
    put_blob(registry, "limits/same", PACKS["gzip"](layer))
    one = {"mediaType": TYPES["docker"][2], "size": len(PACKS["gzip"](layer)), "digest": digest(PACKS["gzip"](layer))}
    settings = {"rootfs": {"diff_ids": [digest(layer)] * 500}}
    put_image(registry, "limits/same", "x", [], settings=settings, manifest={"layers": [one] * 500})
    files = LayeredFiles(opened(f"{proxy.host}/limits/same:x"), lambda _: True)

    while files.descend():
        continue

    assert files.read("a.py") == b"1"
    assert proxy.count("GET", "/blobs/") == 2


def test_a_history_made_for_slow_patterns() -> None:
    slow = {"history": [{"created_by": "#(nop) COPY " * 20_000}]}
    began = time.monotonic()

    assert destinations(slow, 1) == (None,)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("kind", [kind if kind == "body" else deep(kind) for kind in DRIPS])
def test_a_registry_that_drips(vpatch: Program, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nothing")
    monkeypatch.setattr(of_servers.LIMITS, "grace", 0.2)
    began = time.monotonic()
    with dripping(kind) as host:
        ran = vpatch("inspect", "--quiet", f"{host}/limits/drip:x")

    assert (ran.code, ran.out) == (1, "")
    assert "too slow: " in ran.err
    assert ran.err.endswith("and 16 KiB a second are the least, after 0.2 s\n")
    assert time.monotonic() - began < 10


def test_the_documents_name_every_limit() -> None:
    text = (ROOT / "docs/images.md").read_text()

    assert [name for name in SIZES if size(getattr(Limits, name)) not in text] == []
    assert [name for name in LIMITS if f"{getattr(Limits, name):,}" not in text] == []
