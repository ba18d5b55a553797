"""Limits on untrusted images: each is named when it is exceeded, and in docs/images.md."""

from __future__ import annotations

import io
import json
import tarfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from vpatch.image.filesystem import Entry, Limits
from vpatch.image.registry import tar as tars
from vpatch.image.registry.layers import LayeredFiles, destinations
from vpatch.image.registry.tar import Usage, read_layer
from vpatch.net import session as of_servers
from vpatch.net.session import size

from tests.conftest import Program
from tests.drip import DRIPS, dripping
from tests.failures import problem_of
from tests.image.registry.conftest import Put, Refused
from tests.image.registry.images import PACKS, TYPES, digest, opened, put_blob, put_image, refused_layer, tar
from tests.image.registry.proxy import Proxy
from tests.image.standin import SITE
from tests.paths import ROOT

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


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
@pytest.mark.parametrize("size", [2 << 30, 64 << 20])
def test_a_header_of_gigabytes(kind: bytes, size: int) -> None:
    layer = PACKS["gzip"](header(kind, bytes(64 << 20), size))
    tracemalloc.start()
    try:
        assert refused_layer(layer) == "has an entry with a header of more than 1 MiB"
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_nested_headers() -> None:
    small = header(tarfile.XHDTYPE, pax(0))

    assert refused_layer(small * 2000 + tar(("a", b""))).startswith("is no tar: ")
    large = header(tarfile.XHDTYPE, bytes(300 << 10))
    assert refused_layer(large * 4 + tar(("a", b""))) == "has an entry with a header of more than 1 MiB"


def test_too_many_global_headers() -> None:
    say = b"".join(header(tarfile.XGLTYPE, pax(number)) for number in range(101))

    assert refused_layer(say + tar(("a", b""))) == "says more than 100 things of all its entries"


def test_a_header_of_a_negative_size() -> None:
    data = bytearray(header(tarfile.XHDTYPE, b""))
    data[124:136] = b"\xff" * 10 + b"\xfc\x00"
    data[148:156] = b"        "
    data[148:156] = f"{sum(data[:512]):06o}\0 ".encode()

    assert refused_layer(bytes(data) + tar(("a", b""))) == "is no tar: a header is of a negative size"


def test_a_path_that_is_too_long() -> None:
    why = "has an entry with a path of more than 4,096 characters"

    assert refused_layer(tar(("a/" * 3000, None))) == why
    assert refused_layer(tar(("a", "b" * 5000))) == why
    for name in ("a", ".wh.a", ".wh..wh..opq"):
        read_layer(iter([tar(("a/" * 256 + name, b""))]), lambda _: True, Usage())
        assert refused_layer(tar(("a/" * 257 + name, b""))) == "has an entry in more than 256 folders"


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
    assert str(problem_of(files.locate, "nowhere")) == (
        f"cannot read: {image.ref}: the layer {image.layers[number].digest} {why}"
    )


def test_folders_without_an_entry_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "NAMES", 1 << 20)

    assert refused_layer(tar(*((f"{number}/" + f"{'a' * 19}/" * 200, None) for number in range(9)))).endswith(
        "names of more than 1 MiB"
    )


def test_a_file_too_large_to_be_read_whole(monkeypatch: pytest.MonkeyPatch, put: Put) -> None:
    monkeypatch.setattr(tars, "LARGE", 10)
    monkeypatch.setattr(Limits, "SOURCE", 1 << 10)
    files = LayeredFiles(put(tar(("a.py", bytes(1 << 10)), ("b.py", bytes(1025)))), lambda _: True)
    assert files.descend()

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


def test_each_entry_is_examined_once(put: Put) -> None:
    tars = [tar(*((f"{number}/{entry}", b"") for entry in range(20))) for number in range(9)]
    files = LayeredFiles(put(*tars), lambda _: False)
    asked: list[str] = []

    def wanted(path: str) -> bool:
        asked.append(path)
        return path.endswith("/19")

    while files.descend():
        files.matching(wanted)

    assert files.matching(wanted) == sorted(f"{number}/19" for number in range(9))
    assert len(asked) == 9 * 20


def test_each_hidden_entry_is_examined_once(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    tars = [*(tar((f"{number}", b"")) for number in range(9)), tar(("x/RECORD", b"")), tar((".wh.x", b""))]
    files = LayeredFiles(put(*tars), lambda _: False)
    judged: list[str] = []
    judge = LayeredFiles.entry

    def entry(files: LayeredFiles, path: str) -> Entry | None:
        judged.append(path)
        return judge(files, path)

    def is_record(path: str) -> bool:
        return path.endswith("RECORD")

    monkeypatch.setattr(LayeredFiles, "entry", entry)
    while files.descend():
        assert files.matching(is_record) == []
    assert judged == ["x/RECORD"]


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


@pytest.mark.parametrize("kind", DRIPS)
def test_a_registry_that_drips(vpatch: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
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


def test_a_layer_within_the_limits_is_read_as_by_tarfile() -> None:
    """Extended headers, long names and padding: read forward only, and hashed as a whole."""
    body: Any = tar(("a" * 300, b"x" * 70_000), ("b", "c" * 300), ("d", None)) + bytes(1 << 17)
    view, diff_id = read_layer(iter([body[:700], body[700:]]), lambda _: True, Usage())

    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert sorted(view.entries) == sorted(archive.getnames())
    assert view.contents == {"a" * 300: b"x" * 70_000}
    assert view.entries["b"].target == "c" * 300
    assert diff_id.startswith("sha256:")
