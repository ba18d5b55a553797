"""A wheel is accepted only if its members are plain files, each with the hash in RECORD."""

from __future__ import annotations

import io
import random
import stat
import zipfile
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.release import wheel as module
from vpatch.release.fetch import fetch
from vpatch.release.index import find_wheel
from vpatch.release.wheel import open_wheel, read_members

from tests.loopback import NAME, RECORD, IndexServer, make_wheel
from tests.release.conftest import DATE, Refusal
from tests.tiers import deep


def damaged(wheel: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    assert old in wheel
    return wheel.replace(old, new)


def test_reads_only_the_members_that_are_wanted(index: IndexServer) -> None:
    wheel = find_wheel("1.0")
    with open_wheel(wheel) as file:
        read = list(read_members(file, lambda name: name == "vllm/__init__.py"))

    assert [(one.name, one.data, one.modified) for one in read] == [
        ("vllm/__init__.py", index.wanted()["vllm/__init__.py"], DATE)
    ]
    assert len(index.spans()) == 3  # the directory, the file, RECORD


def test_gives_a_file_with_an_impossible_date_the_first_of_zip() -> None:
    info = zipfile.ZipInfo("vllm/a.py", (2026, 0, 0, 0, 0, 0))

    assert module._seconds(info) == 315532800  # 1980-01-01


def test_refuses_a_file_that_record_does_not_know(refusal: Refusal) -> None:
    line = refusal(make_wheel(record=b"vllm-1.0.dist-info/RECORD,,\n"))

    assert line == "wrong bytes: vllm/__init__.py: RECORD does not list it"


@pytest.mark.parametrize(("old", "new"), [(b"sha256=", b"sha255="), (b",20\n", b",21\n"), (b",20\n", b",  \n")])
def test_refuses_a_file_that_is_not_what_record_says(
    index: IndexServer, refusal: Refusal, old: bytes, new: bytes
) -> None:
    record = damaged(index.wanted()[RECORD], old, new)

    line = refusal(make_wheel(record=record))

    assert line == "wrong bytes: vllm/__init__.py: its sha256 or size is not the one in RECORD"


def test_refuses_a_file_with_other_bytes(index: IndexServer, refusal: Refusal) -> None:
    line = refusal(make_wheel({"vllm/engine/core.py": b"evil\n"}, record=index.wanted()[RECORD]))

    assert line == "wrong bytes: vllm/engine/core.py: its sha256 or size is not the one in RECORD"


def test_refuses_a_damaged_file(index: IndexServer, refusal: Refusal) -> None:
    wheel = bytearray(index.files[NAME])
    at = wheel.index(b"vllm/engine/core.py") + len("vllm/engine/core.py") + 4
    wheel[at] ^= 0xFF

    assert refusal(bytes(wheel)).startswith("damaged wheel: vllm/engine/core.py: ")


def test_refuses_what_is_no_zip_file(index: IndexServer, refusal: Refusal) -> None:
    line = refusal(b"<html>sign in to the network</html>")

    assert line == f"damaged wheel: {index.url}/files/{NAME}: file is not a zip file"


@pytest.mark.parametrize("record", [b"\xff", b'"' + b"x" * 200_000])
def test_refuses_a_record_that_cannot_be_read(refusal: Refusal, record: bytes) -> None:
    assert refusal(make_wheel(record=record)).startswith("damaged wheel: vllm-1.0.dist-info/RECORD: ")


def test_refuses_a_zip_file_that_is_no_wheel(index: IndexServer, refusal: Refusal) -> None:
    line = refusal(make_wheel({"other.dist-info/RECORD": b""}))

    assert line == f"not a wheel: {index.url}/files/{NAME}: 2 RECORD files in it, not one"


def test_refuses_a_whole_wheel_with_another_hash(index: IndexServer) -> None:
    index.ranges = "ignored"
    wheel = find_wheel("1.0")
    index.files[NAME] = damaged(index.files[NAME], b"vllm/_moe.so", b"vllm/_foe.so")

    with pytest.raises(Failure) as caught, open_wheel(wheel):
        pass

    assert str(caught.value) == f"wrong bytes: {wheel.url}: its sha256 is not the one on the index"


@pytest.mark.parametrize(
    "name",
    ["../evil.py", "/evil.py", "vllm/../../evil.py", "vllm//evil.py", "./evil.py", "vllm\\evil.py", "evil.py\0x.py"],
)
def test_refuses_a_name_that_leads_out_of_the_tree(refusal: Refusal, name: str) -> None:
    stand_in = "E" * (len(name) - 3) + ".py"
    wheel = damaged(make_wheel({stand_in: b"evil\n"}), stand_in.encode(), name.encode())

    assert refusal(wheel) == f"unsafe name in wheel: {name!r}: it leads out of the tree"


SNOWMAN = "\N{SNOWMAN}"
DEEP = "more than 64 folders in each other, or 255 bytes of one"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a/" * 2000 + "x.py", f"unsafe name in wheel: {'a/' * 48}a...: {DEEP}"),
        ("../" * 9000 + "x.py", f"unsafe name in wheel: {'../' * 32}....: {DEEP}"),
        ("vllm/" + "n" * 300 + ".py", f"unsafe name in wheel: vllm/{'n' * 92}...: {DEEP}"),
        ("vllm/" + SNOWMAN * 100 + ".py", f"unsafe name in wheel: vllm/{92 * SNOWMAN}...: {DEEP}"),
        ("vllm/__init__.py/x.py", "cannot write: {tree}/vllm/__init__.py/x.py: file exists"),
    ],
    ids=["folders", "folders above", "long", "long in bytes", "file as folder"],
)
def test_refuses_a_name_that_no_tree_has(tmp_path: Path, refusal: Refusal, name: str, line: str) -> None:
    assert refusal(make_wheel({name: b"evil\n"})) == line.format(tree=tmp_path / "new/tree")


@pytest.mark.parametrize("seed", [*range(5), *(deep(seed) for seed in range(5, 100))])
def test_names_at_random(index: IndexServer, tmp_path: Path, seed: int) -> None:
    """Each wheel is fetched as RECORD has it, or refused in short lines, and nothing is written beside its tree."""
    draw = random.Random(seed)  # noqa: S311 - for a test
    parts = (
        "a",
        "..",
        ".",
        "",
        "x.py",
        "vllm",
        "\n",
        "\x1b[2J",
        "\\",
        ":",
        "n" * 300,
        "\u202e",
        "con",
        " ",
        "~",
        "vllm-1.0.dist-info",
    )
    names = ["/".join(draw.choices(parts, k=draw.choice((1, 2, 5, 70)))) + ".py" for _ in range(draw.randrange(1, 4))]
    index.publish(NAME, make_wheel(dict.fromkeys(names, b"x = 1\n")))
    try:
        fetch("1.0", tmp_path / "tree")
    except Failure as failure:
        shown = list(map(str, failure.problems))
    else:
        shown = []
        assert all((tmp_path / "tree" / name).read_bytes() == b"x = 1\n" for name in names)

    assert all(len(line) < 1000 for line in shown)
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "tree"}


def test_names_every_unsafe_member_at_once(index: IndexServer, refusal: Refusal) -> None:
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
