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

    assert read_regular(tmp_path / "link") == b"x = 1\n" * 40_000
    assert read_regular(tmp_path / "code.py", 240_000) == b"x = 1\n" * 40_000
    with (tmp_path / "code.py").open("rb") as file:
        file.seek(4)
        assert read_opened(file.fileno()) == b"x = 1\n" * 40_000
        assert file.read(4) == b"1\nx "
    with opened_regular(tmp_path / "code.py") as part:
        assert os.pread(part, 5, 6) == b"x = 1"
    assert read_regular("/proc/self/environ") == b""  # what has no size is not read


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("pipe", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        (".", "Is a directory"),
        ("sparse", "it has 3,221,225,472 bytes, more than 16,777,216"),
        ("none", "No such file or directory"),
        ("a\0b", "no file can have this name"),
        ("\ud800", "no file can have this name"),
    ],
)
def test_what_is_no_file_of_a_bounded_size_is_refused(tmp_path: Path, path: str, cause: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 3 << 30)

    with pytest.raises(OSError, match=re.escape(cause)) as refusal:
        read_regular(tmp_path / path)

    assert refusal.value.filename == str(tmp_path / path)


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
