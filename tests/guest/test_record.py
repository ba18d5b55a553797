from __future__ import annotations

import pytest
from vpatch.guest import record
from vpatch.guest.record import RecordRow

SAME = [
    b"",
    b"\n",
    b"a.py,,\n",
    b"a.py,sha256=x,1\r\nb.py,,\r\n",
    b"a.py,sha256=x,1\nb.py,,",
    b'"a, b.py",sha256=x,1\n"say ""hi"".py",,\n',
    b'"two\nlines.py",,\nb.py,,\n',
    b"a.py\nb.py,sha256=x\nc.py,sha256=x,1,more\n",
    b"caf\xe9.py,,\nna\xc3\xafve.py,,\n",
    b"form\x0cfeed.py,,\nline\xe2\x80\xa8separator.py,,\n",
]
HELLO = "sha256=LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ"  # of b"hello", as wheels write it


@pytest.mark.parametrize("content", SAME)
def test_every_byte_survives(content: bytes) -> None:
    parsed = record.parse(content)

    assert parsed.serialize() == content
    assert record.revise(parsed, {}).serialize() == content


@pytest.mark.parametrize(
    ("content", "paths"),
    [
        (b"a.py,,\r\nb.py,sha256=x,1", ["a.py", "b.py"]),
        (b'"a, b.py",,\nc.py,,\n', ["a, b.py", "c.py"]),
        (b'"two\nlines.py",,\nb.py\n', ["two\nlines.py", "b.py"]),
        (b"a.py\n", ["a.py"]),
    ],
)
def test_paths(content: bytes, paths: list[str]) -> None:
    assert [row.path for row in record.parse(content).rows] == paths


@pytest.mark.parametrize("begin", [b'a.py,"', b"a.py,"])
def test_a_cell_that_never_ends_is_refused(begin: bytes) -> None:
    with pytest.raises(ValueError, match="line 1: field larger than field limit"):
        record.parse(begin + b"x" * 200_000)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_millions_of_rows_are_refused(end: bytes) -> None:
    """Each would take a hundred bytes of memory."""
    with pytest.raises(ValueError, match="line ends, and vpatch reads 200,000 rows"):
        record.parse(end * 5_000_000)


@pytest.mark.parametrize(
    ("line", "true"),
    [
        (f"a.py,{HELLO},5\n", True),
        (f"a.py,{HELLO}=,5\n", True),
        (f"a.py,{HELLO},\n", True),
        ("a.py,md5=XUFAKrxLKna5cZ2REBfFkg,5\n", True),
        (f"a.py,{HELLO},6\n", False),
        (f"a.py,{HELLO[:-1]}R,5\n", False),
        ("a.py,,5\n", False),
        ("a.py\n", False),
        ("a.py,shake_128=x,5\n", False),
        ("a.py,crc=x,5\n", False),
    ],
)
def test_whether_a_row_is_true(line: str, true: bool) -> None:  # noqa: FBT001
    assert RecordRow("a.py", line).is_true_of(b"hello") is true


def test_an_entry_is_as_an_installer_writes_it() -> None:
    assert record.entry("a.py", b"hello").raw == f"a.py,{HELLO},5"
    assert record.entry('a, "b".py', b"hello").raw == f'"a, ""b"".py",{HELLO},5'


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        pytest.param(
            "a.py,x,1\nb.py,x,1\r\nc.py,x,1\n", "b.py", f"a.py,x,1\nb.py,{HELLO},5\r\nc.py,x,1\n", id="where it stands"
        ),
        pytest.param(f'"a.py",{HELLO},"5"\n', "a.py", f'"a.py",{HELLO},"5"\n', id="as it was, if it says the same"),
        pytest.param("a.py,,\n", "b.py", f"a.py,,\nb.py,{HELLO},5\n", id="last"),
        pytest.param("a.py,,\r\n", "b.py", f"a.py,,\r\nb.py,{HELLO},5\r\n", id="last, and ends as the others"),
        pytest.param("a.py,,", "b.py", f"a.py,,\nb.py,{HELLO},5\n", id="last, after a line without an end"),
    ],
)
def test_a_row_is_written(before: str, path: str, after: str) -> None:
    revised = record.revise(record.parse(before.encode()), {path: record.entry(path, b"hello")})

    assert revised.serialize() == after.encode()


def test_rows_are_dropped_and_found() -> None:
    parsed = record.parse(b"a.py,,\nb.py,,\na.py,first,\nc.py,,\n")

    assert record.revise(parsed, {}, {"a.py", "none.py"}).serialize() == b"b.py,,\nc.py,,\n"
    assert parsed.row("a.py") == RecordRow("a.py", "a.py,,\n")
    assert parsed.row("d.py") is None
