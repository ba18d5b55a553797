"""What is opened in a block has a stamp from before; what is written, or opened elsewhere, has none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.run.memo import opened, unchanged


def rewrite(path: Path) -> None:
    path.write_text("else")


def grow(path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


def exchange(path: Path) -> None:
    """Another file of the same size and time."""
    about = path.stat()
    path.with_suffix(".new").write_text("x" * about.st_size)
    os.utime(path.with_suffix(".new"), ns=(about.st_atime_ns, about.st_mtime_ns))
    path.with_suffix(".new").replace(path)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [rewrite, grow, exchange, Path.unlink, become_a_folder])
@pytest.mark.parametrize(
    "read", [Path.read_bytes, lambda path: os.close(os.open(path, os.O_RDONLY))], ids=["file", "descriptor"]
)
def test_a_file_that_was_opened(read: Callable[[Path], object], change: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with opened() as found:
        read(tmp_path / "a.txt")

    assert unchanged(found)
    change(tmp_path / "a.txt")
    assert not unchanged(found)


@pytest.mark.parametrize("listed", [os.listdir, lambda path: [*os.scandir(path)]], ids=["listdir", "scandir"])
def test_a_folder_that_was_listed(listed: Callable[[Path], object], tmp_path: Path) -> None:
    with opened() as found:
        listed(tmp_path)

    assert unchanged(found)
    (tmp_path / "new").touch()
    assert not unchanged(found)


def test_a_file_that_was_missing(tmp_path: Path) -> None:
    with opened() as found, pytest.raises(FileNotFoundError):
        (tmp_path / "a.txt").read_text()

    assert unchanged(found)
    (tmp_path / "a.txt").touch()
    assert not unchanged(found)


def test_what_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written, descriptors, files of the system, and what is opened outside the block."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "before").touch()
    (tmp_path / "before").read_bytes()
    with opened() as found:
        (tmp_path / "written").write_text("x")
        Path("/proc/self/stat").read_bytes()
        with open(os.open(os.devnull, os.O_RDONLY), "rb") as file:  # noqa: PTH123 - a descriptor
            file.read()
        Path("relative").touch()
        (tmp_path / "read").touch()
        Path("read").read_bytes()
    (tmp_path / "after").touch()
    (tmp_path / "after").read_bytes()

    below = {Path(path).name for path in found if Path(path).is_relative_to(tmp_path)}
    assert below == {"read"}
    assert not [path for path in found if path.startswith(("/proc/", "/dev/"))]


def test_modules_count_by_their_source_and_their_packages_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python reads the bytecode, and asks for no more of the source than its time."""
    (tmp_path / "stamped_package").mkdir()
    (tmp_path / "stamped_package/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stamped_package", raising=False)
    for _ in range(2):
        with opened() as found:
            __import__("stamped_package")
        sys.modules.pop("stamped_package")

    below = {str(Path(path).relative_to(tmp_path)) for path in found if Path(path).is_relative_to(tmp_path)}
    assert below == {".", "stamped_package", "stamped_package/__init__.py"}
