"""Files and documents that others made are read within bounds, or refused with a cause."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import pytest
from vpatch.foreign import DEPTH, opened_regular, parse_json, parse_toml, read_opened, read_regular


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_bytes(b"x = 1\n" * 40_000)
    (tmp_path / "link").symlink_to("code.py")
    folder = os.open(tmp_path, os.O_RDONLY)

    assert read_regular(tmp_path / "link") == b"x = 1\n" * 40_000
    assert read_regular("code.py", 240_000, dir_fd=folder) == b"x = 1\n" * 40_000
    os.close(folder)


def test_an_open_file_keeps_its_offset(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_bytes(b"0123456789")
    with (tmp_path / "code.py").open("rb") as file:
        file.seek(4)
        assert read_opened(file.fileno()) == b"0123456789"
        assert file.read() == b"456789"


def test_what_is_no_file_of_a_bounded_size_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 3 << 30)

    for path, cause in (
        (tmp_path / "pipe", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "sparse", "it has 3,221,225,472 bytes, more than 16,777,216"),
        (tmp_path / "none", "No such file or directory"),
    ):
        with pytest.raises(OSError, match=re.escape(cause)):
            read_regular(path)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="no file can have this name"):
        read_regular(tmp_path / name)


def test_an_error_has_the_path(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(OSError, match="not a regular file") as refusal:
        read_regular(tmp_path / "pipe")

    assert refusal.value.filename == str(tmp_path / "pipe")


def test_a_part_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 3 << 30)

    with opened_regular(tmp_path / "sparse") as file:
        assert os.pread(file, 4, 1 << 30) == bytes(4)


def test_a_file_of_proc_is_not_read() -> None:
    assert read_regular("/proc/self/environ") == b""


@pytest.mark.parametrize(
    "document",
    [
        '{"a": ' * 30_000,
        "[" * (DEPTH + 1) + "]" * (DEPTH + 1),
        '"\\ud800"',
        "{",
        "1" * 5_000,
        b"\xff",
        b"[" + b"0," * 9_000_000,
        b"[NaN]",
        b"-Infinity",
    ],
)
def test_json_that_is_refused(document: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(document)


@pytest.mark.parametrize(
    "document", [b"a = " + b"[" * 4_000, b"a = ", b"\xff", b"a = 1\n" * 90_000, b"a" + b".b" * 90 + b" = 1"]
)
def test_toml_that_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_toml(document)


def test_json_is_parsed_as_python_does() -> None:
    drawn = random.Random(11)  # noqa: S311 - a test draws

    def value(depth: int) -> object:
        kind = drawn.randrange(6 if depth else 4)
        if kind == 4:
            return [value(depth - 1) for _ in range(drawn.randrange(4))]
        if kind == 5:
            return {str(drawn.random()): value(depth - 1) for _ in range(drawn.randrange(4))}
        return (None, drawn.random(), "ä\u2028", True)[kind]

    for _ in range(200):
        document = value(6)
        assert parse_json(json.dumps(document)) == document
    assert parse_json("[" * DEPTH + "]" * DEPTH)
