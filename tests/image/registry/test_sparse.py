"""Entries whose size is not that of their bytes, and the temporary files of large ones."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Mapping
from typing import IO, Any

import pytest
from vpatch.image.filesystem import Limits
from vpatch.image.registry import tar as tars
from vpatch.image.registry.layers import LayeredFiles
from vpatch.image.registry.tar import BadLayerError, Copy, Usage, read_layer

from tests.failures import problem_of
from tests.image.registry.conftest import Put
from tests.image.registry.images import hard, refused_layer, tar

HUGE = 200 << 20
SPARSE = "has a sparse file, which no layer has: a.py"
NEGATIVE = "has an entry of a negative size: a.py"


def said(path: str, headers: Mapping[str, str]) -> tarfile.TarInfo:
    """Return an entry without bytes but with extended headers."""
    info = tarfile.TarInfo(path)
    info.pax_headers = dict(headers)
    return info


def old() -> bytes:
    """Return a sparse file in GNU tar's first format: no bytes, and a separate size of the expanded file."""
    header = bytearray(tar(("a.py", b""))[:512])
    header[156:157], header[257:265] = tarfile.GNUTYPE_SPARSE, b"ustar  \0"
    header[483:495] = f"{HUGE:011o}\0".encode()
    header[148:156] = b"        "
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + bytes(1024)


def copies(monkeypatch: pytest.MonkeyPatch) -> list[IO[bytes]]:
    """Return a list that collects all temporary files made from now on."""
    made: list[IO[bytes]] = []

    def make() -> IO[bytes]:
        made.append(tempfile.TemporaryFile())  # noqa: SIM115 - a `Copy` closes it
        return made[-1]

    monkeypatch.setattr(tars, "TemporaryFile", make)
    return made


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"GNU.sparse.size": str(HUGE), "GNU.sparse.map": f"{HUGE},0"}, SPARSE),
        ({"GNU.sparse.size": str(HUGE), "GNU.sparse.offset": str(HUGE), "GNU.sparse.numbytes": "0"}, SPARSE),
        ({"GNU.sparse.realsize": str(-(10**15)), "GNU.sparse.major": "1", "GNU.sparse.minor": "7"}, SPARSE),
        ({"GNU.sparse.name": "a.py"}, SPARSE),
        ({"size": "-5"}, NEGATIVE),
    ],
)
def test_false_sizes(monkeypatch: pytest.MonkeyPatch, headers: Mapping[str, str], why: str) -> None:
    made = copies(monkeypatch)

    assert refused_layer(tar(said("a.py", headers))) == why
    assert made == []


def test_a_sparse_file_of_gnu_tar(monkeypatch: pytest.MonkeyPatch) -> None:
    made = copies(monkeypatch)

    assert refused_layer(old()) == SPARSE
    assert made == []


def test_a_large_file_is_closed_with_the_last_path_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "LARGE", 10)
    made = copies(monkeypatch)
    layer = tar(("a", b"1" * 11), hard("b", "a"), ("a", b"2" * 11), ("c", b"3" * 11), ("c", b"4"))
    view, _ = read_layer(iter([layer]), lambda _: True, Usage())

    first, second = (view.contents[path] for path in "ab")
    assert isinstance(first, Copy)
    assert isinstance(second, Copy)
    with first.open() as a, second.open() as b:
        assert (a.read(), b.read()) == (b"2" * 11, b"1" * 11)
    assert [file.closed for file in made] == [False, False, True]
    view.entries.clear()
    del view, first, second
    assert [file.closed for file in made] == [True] * 3


def test_a_hard_link_to_a_large_file_that_was_not_kept(monkeypatch: pytest.MonkeyPatch, put: Put) -> None:
    monkeypatch.setattr(tars, "LARGE", 10)
    image = put(tar(("cache", b"1" * 11), hard("a.py", "cache")))
    files = LayeredFiles(image, lambda entry: entry.path == "a.py")
    assert files.descend()

    assert files.read("a.py") == b"1" * 11


def test_too_many_large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "LARGE", 10)
    spent = Usage()
    layers = [tar(*((f"{layer}/{number}", bytes(11)) for number in range(Limits.COPIES // 2))) for layer in range(2)]
    views = [read_layer(iter([layer]), lambda _: True, spent)[0] for layer in layers]
    assert sum(len(view.contents) for view in views) == Limits.COPIES

    with pytest.raises(BadLayerError) as caught:
        read_layer(iter([tar(("a.so", bytes(11)))]), lambda _: True, spent)
    assert str(caught.value) == "has, with those above it, more than 100 large files that would be read"


def test_a_temporary_file_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> IO[bytes]:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(tars, "LARGE", 10)
    monkeypatch.setattr(tars, "TemporaryFile", full)

    problem = problem_of(read_layer, iter([tar(("a", bytes(11)))]), lambda _: True, Usage())
    assert str(problem) == "cannot write: temporary file: too many open files"
