"""Files that a command writes beside its output: nothing is overwritten that the user did not ask to replace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Program, Trees
from tests.tiers import deep

COMPOSE = ("plan", "--preset", "qwen3.6-35b-5090-32k", "--compose")


@pytest.fixture(params=["compose", deep("html")])
def command(request: pytest.FixtureRequest, slim: Trees) -> tuple[str, ...]:
    """A command that lacks the name of its file."""
    matrix = ("matrix", "--no-cache", "--tree", str(slim("0.20.2")), "--overlay", "turboquant-skip-list")
    return COMPOSE if request.param == "compose" else (*matrix, "--html")


def test_it_is_not_overwritten(vpatch: Program, tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "mine"
    file.write_text("precious")

    ran = vpatch(*command, file)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"exists already: {file}: it is not overwritten; --force replaces it\n"
    assert file.read_text() == "precious"

    assert vpatch(*command, file, "--force").code == 0
    assert len(file.read_text()) > 100
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_file_and_a_link(vpatch: Program, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")

    assert vpatch(*command, tmp_path / "new").code == 0
    assert vpatch(*command, tmp_path / "link", "--force").code == 0

    assert (tmp_path / "link").is_symlink()
    assert len((tmp_path / "real").read_text()) > 100
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o644


def test_a_device_may_exist(vpatch: Program, command: tuple[str, ...]) -> None:
    assert vpatch(*command, "/dev/null").code == 0


@pytest.mark.parametrize(("where", "cause"), [("no/folder", "no such file or directory"), (".", "is a directory")])
def test_it_cannot_be_written(
    vpatch: Program, tmp_path: Path, command: tuple[str, ...], where: str, cause: str
) -> None:
    ran = vpatch(*command, tmp_path / where)

    assert (ran.code, ran.err) == (1, f"cannot write: {tmp_path / where}: {cause}\n")
