"""A wheel is accepted only if its members are plain files of bounded size, each with the hash in RECORD."""

from __future__ import annotations

import io
import random
import stat
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from vpatch.errors import Failure, Problem
from vpatch.net import size as formatted
from vpatch.net.session import LIMITS
from vpatch.release.fetch import fetch
from vpatch.release.index import find_wheel
from vpatch.release.wheel import open_wheel, read_members

from tests.loopback import NAME, RECORD, SOURCES, IndexServer, make_wheel, record_of
from tests.paths import ROOT
from tests.release.conftest import Refusal
from tests.tiers import deep

BOMB = "vllm/bomb.py"
DIFFERS = "its sha256 or size is not the one in RECORD"


def damaged(wheel: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    assert old in wheel
    return wheel.replace(old, new)


def test_only_the_wanted_members_are_read(index: IndexServer) -> None:
    index.files[NAME] = damaged(index.files[NAME], struct.pack("<H", (2026 - 1980) << 9 | 5 << 5 | 4), b"\0\0")
    with open_wheel(find_wheel("1.0")) as file:
        (init,) = read_members(file, lambda name: name == "vllm/__init__.py")

    assert (init.name, init.data) == ("vllm/__init__.py", SOURCES["vllm/__init__.py"])
    assert init.modified == 315532800  # 1980-01-01: the format can express an impossible date
    assert len(index.spans()) == 3  # the directory, the file, RECORD


def moved(wheel: bytes, by: int) -> bytes:
    """Move the directory's recorded start, so that every file seems to begin earlier than it does."""
    at = wheel.rindex(b"PK\5\6") + 16
    (offset,) = struct.unpack_from("<I", wheel, at)
    return wheel[:at] + struct.pack("<I", offset + by) + wheel[at + 4 :]


def flipped(wheel: bytes) -> bytes:
    at = wheel.index(b"vllm/engine/core.py") + len("vllm/engine/core.py") + 4
    return wheel[:at] + bytes([wheel[at] ^ 0xFF]) + wheel[at + 1 :]


def packed(method: int) -> bytes:
    body = io.BytesIO(make_wheel())
    with zipfile.ZipFile(body, "a", method) as archive:
        archive.writestr(BOMB, b"x")
    return body.getvalue()


GOOD = make_wheel()
with zipfile.ZipFile(io.BytesIO(GOOD)) as _archive:
    SUMS = _archive.read(RECORD)
PACKED = f"damaged wheel: {BOMB}: not packed as the files of a wheel are"

REFUSED: dict[str, tuple[bytes, str]] = {
    "unlisted": (make_wheel(record=f"{RECORD},,\n".encode()), "wrong bytes: vllm/__init__.py: RECORD does not list it"),
    **{
        f"{new!r} in RECORD": (make_wheel(record=damaged(SUMS, old, new)), f"wrong bytes: vllm/__init__.py: {DIFFERS}")
        for old, new in ((b"sha256=", b"sha255="), (b",20\n", b",21\n"), (b",20\n", b",  \n"))
    },
    "other bytes": (
        make_wheel({"vllm/engine/core.py": b"evil\n"}, record=SUMS),
        f"wrong bytes: vllm/engine/core.py: {DIFFERS}",
    ),
    "a flipped byte": (flipped(GOOD), "damaged wheel: vllm/engine/core.py: "),
    "no zip file": (b"<html>sign in to the network</html>", "damaged wheel: {url}: file is not a zip file"),
    "RECORD is no text": (make_wheel(record=b"\xff"), "wrong bytes: vllm/__init__.py: RECORD does not list it"),
    "RECORD is one field": (make_wheel(record=b'"' + b"x" * 200_000), f"damaged wheel: {RECORD}: "),
    "two RECORDs": (make_wheel({"o.dist-info/RECORD": b""}), "not a wheel: {url}: 2 RECORD files in it, not one"),
    "before the wheel": (
        moved(GOOD, 1000),
        "damaged wheel: {url}: vllm/__init__.py begins at -1,000, outside of it",
    ),
    "bzip2": (packed(zipfile.ZIP_BZIP2), PACKED),
    "lzma": (packed(zipfile.ZIP_LZMA), PACKED),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_wheel_that_is_damaged_or_differs_from_record(index: IndexServer, refusal: Refusal, kind: str) -> None:
    wheel, line = REFUSED[kind]

    found = refusal(wheel)

    expected = line.format(url=f"{index.url}/files/{NAME}")
    assert found.startswith(expected) if line.endswith(": ") else found == expected
    assert all("--" not in span and "=-" not in span[7:] for span in index.spans())


def test_a_whole_wheel_with_another_hash(index: IndexServer) -> None:
    index.ranges = "ignored"
    wheel = find_wheel("1.0")
    index.files[NAME] = damaged(index.files[NAME], b"vllm/_moe.so", b"vllm/_foe.so")

    with pytest.raises(Failure) as caught, open_wheel(wheel):
        pass

    assert str(caught.value) == f"wrong bytes: {wheel.url}: its sha256 is not the one on the index"


# --- names -----------------------------------------------------------------------------------------------------

SNOWMAN = "\N{SNOWMAN}"
DEEP = "more than 64 folders in each other, or 255 bytes of one"
OUT = ("../evil.py", "/evil.py", "vllm/../../evil.py", "vllm//evil.py", "./evil.py", "vllm\\evil.py", "evil.py\0x.py")


@pytest.mark.parametrize("name", OUT)
def test_a_name_that_leads_out_of_the_tree(refusal: Refusal, name: str) -> None:
    stand_in = "E" * (len(name) - 3) + ".py"
    wheel = damaged(make_wheel({stand_in: b"evil\n"}), stand_in.encode(), name.encode())

    assert refusal(wheel) == f"unsafe name in wheel: {name!r}: it leads out of the tree"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("../" * 9000 + "x.py", f"unsafe name in wheel: {'../' * 32}....: {DEEP}"),
        ("vllm/" + "n" * 300 + ".py", f"unsafe name in wheel: vllm/{'n' * 92}...: {DEEP}"),
        ("vllm/" + SNOWMAN * 100 + ".py", f"unsafe name in wheel: vllm/{92 * SNOWMAN}...: {DEEP}"),
        ("vllm/__init__.py/x.py", "cannot write: {tree}/vllm/__init__.py/x.py: file exists"),
    ],
    ids=["folders", "long", "long in bytes", "file as folder"],
)
def test_a_name_that_no_tree_has(tmp_path: Path, refusal: Refusal, name: str, line: str) -> None:
    assert refusal(make_wheel({name: b"evil\n"})) == line.format(tree=tmp_path / "new/tree")


def test_every_unsafe_member_is_named_at_once(index: IndexServer, refusal: Refusal) -> None:
    body = io.BytesIO(index.files[NAME])
    with zipfile.ZipFile(body, "a") as archive:
        link = zipfile.ZipInfo("vllm/link.py")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("vllm/__init__.py", "evil")

    assert refusal(body.getvalue()).splitlines() == [
        "unsafe file in wheel: vllm/link.py: a link or a special file",
        "unsafe name in wheel: vllm/__init__.py: it is there twice",
    ]


PARTS = (
    *("a", "..", ".", "", "x.py", "vllm", "\n", "\x1b[2J", "\\", ":", "n" * 300, "\u202e", "con", " ", "~"),
    "vllm-1.0.dist-info",
)


@pytest.mark.parametrize("seed", [*range(3), *map(deep, range(3, 50))])
def test_names_at_random(index: IndexServer, tmp_path: Path, seed: int) -> None:
    """Each wheel is fetched as RECORD has it, or refused in short lines, and nothing is written beside its tree."""
    draw = random.Random(seed)  # noqa: S311 - for a test
    names = ["/".join(draw.choices(PARTS, k=draw.choice((1, 2, 5, 70)))) + ".py" for _ in range(draw.randrange(1, 4))]
    index.publish(NAME, make_wheel(dict.fromkeys(names, b"x = 1\n")))
    problems: tuple[Problem, ...] = ()
    try:
        fetch("1.0", tmp_path / "tree")
    except Failure as failure:
        problems = failure.problems

    assert all(len(str(problem)) < 1000 for problem in problems)
    assert problems or all((tmp_path / "tree" / name).read_bytes() == b"x = 1\n" for name in names)
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "tree"}


# --- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value", "wheel", "line"),
    [
        ("directory", 512, GOOD, "damaged wheel: {url}: its directory has 673 bytes, and may have 512 bytes"),
        ("members", 3, GOOD, "damaged wheel: {url}: it has 10 files, and may have 3"),
        ("wheel", 1 << 20, GOOD, f"cannot read: {{url}}: it has {len(GOOD):,} bytes, and may have 1 MiB"),
        ("wheel", 1 << 19, GOOD, "cannot read: {url}: it has more than 512 KiB"),
        ("file", 1023, make_wheel({BOMB: bytes(1024)}), f"too large: {BOMB}: 1,024 bytes unpacked, and a file may"),
        ("files", 1 << 20, make_wheel({BOMB: bytes(1 << 20)}), "too large: 9 files: 1,04"),
    ],
)
def test_a_wheel_that_is_too_large(
    index: IndexServer,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Refusal,
    limit: str,
    value: int,
    wheel: bytes,
    line: str,
) -> None:
    index.ranges = "ignored" if value == 1 << 19 else "yes"
    monkeypatch.setattr(LIMITS, limit, value)

    assert refusal(wheel).startswith(line.format(url=f"{index.url}/files/{NAME}"))


def test_a_file_that_unpacks_to_more_than_it_claims(refusal: Refusal) -> None:
    size = 32 << 20
    wheel = make_wheel({BOMB: bytes(size)}, record=record_of({**SOURCES, "vllm/_C.abi3.so": b"", BOMB: bytes(5)}))
    tracemalloc.start()
    try:
        line = refusal(wheel.replace(struct.pack("<I", size), struct.pack("<I", 5)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert line == f"damaged wheel: {BOMB}: bad CRC-32 for file '{BOMB}'"
    assert peak < 28 << 20


def test_the_documents_name_every_limit() -> None:
    text = (ROOT / "docs/matrix.md").read_text()

    for limit in (LIMITS.wheel, LIMITS.directory, LIMITS.file, LIMITS.files, LIMITS.answer, LIMITS.rate):
        assert formatted(limit) in text
    assert f"64 MiB, and {LIMITS.listed:,} files" in text
    assert f"{LIMITS.members:,} files, each in at most {LIMITS.folders} folders" in text
    assert f"{LIMITS.grace:g} s" in text
