"""Standard output that is full, closed, or no longer read is no bug in vpatch."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.forks import CLOSED, ended, start
from tests.hybrid import COMPANION, ONLY


def told(*arguments: str | Path, stdout: int) -> tuple[int, str]:
    """Run the program with this standard output; return its exit code and what it wrote to standard error."""
    with Path(os.devnull).open("rb") as nothing, tempfile.TemporaryFile() as err:
        code = ended(start(*arguments, streams=(nothing.fileno(), stdout, err.fileno())))
        err.seek(0)
        return code, err.read().decode()


def test_a_full_standard_output(tree: Path) -> None:
    """The work is done; a full standard output is not a bug in vpatch."""
    with Path("/dev/full").open("wb") as full:
        ran = told("apply", "-q", tree, *ONLY, stdout=full.fileno())

    assert ran[0] == 1
    assert ran[1].startswith("cannot write: standard output: no space left on device\n")
    assert (tree / COMPANION).exists()


@pytest.mark.parametrize("arguments", [("list",), ("plan", "--list"), ("plan", "--preset", "qwen3.6-35b-5090-32k")])
def test_a_closed_standard_output(arguments: tuple[str, ...]) -> None:
    assert told(*arguments, stdout=CLOSED) == (1, "cannot write: standard output: bad file descriptor\n")


def test_a_reader_that_stops_reading(tree: Path) -> None:
    read, write = os.pipe()
    os.close(read)

    assert told("diff", "-q", tree, stdout=write) == (1, "")
    os.close(write)
