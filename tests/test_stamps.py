"""Stamps differ once anything has changed that Python opened, listed or imported in a block, and not before."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover
from vpatch.stamps import opened, unchanged

from tests.paths import ROOT


class Package:
    """An installed package with overlays, which imports a helper of another package, and reads a file when it loads."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.put("odd-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
        points = "odd.overlays\nsingle = odd_single"
        self.put("odd-1.dist-info/entry_points.txt", f"[vpatch.overlays]\nodd = {points}\n")
        self.put("odd/__init__.py", "")
        self.put("odd/data/note.txt", "a note")
        reads = "from pathlib import Path\nnote = (Path(__file__).parents[1] / 'data/note.txt').read_text()\n"
        self.put("odd/overlays/__init__.py", "")
        self.put("odd/overlays/odd_one.py", f"from odd_help.words import word\n{reads}{ODD}")
        self.put("odd/overlays/_shared.py", "")
        self.put("odd_help/words.py", "word = 'x'\n")
        self.put("odd_single.py", ODD)

    def put(self, file: str, text: str) -> None:
        place = self.top / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)  # as an editor may: the folder's times stay


ODD = """
from vpatch import File, Overlay, Part
change = File("vllm/no_such.py").function("f").insert_after("a = 1", "b = 1")
overlay = Overlay(opt_in=True, summary="s", symptoms=("s",), releases={}, parts=(Part("p", shapes={"1": [change]}),))
"""
CHANGES = {
    "a new module": ("odd/overlays/odd_two.py", ODD),
    "a changed module": ("odd/overlays/odd_one.py", ODD),
    "a changed helper package": ("odd_help/words.py", "word = 'y'\n"),
    "a helper that becomes a package": ("odd_help/words/__init__.py", "word = 'y'\n"),
    "a changed single module": ("odd_single.py", f"{ODD}\n"),
    "a changed data file": ("odd/data/note.txt", "another note"),
    "an edited entry_points.txt": ("odd-1.dist-info/entry_points.txt", "[vpatch.overlays]\nsingle = odd_single\n"),
    "a new entry_points.txt": ("other-1.dist-info/entry_points.txt", "[vpatch.overlays]\nsingle = odd_single\n"),
    "a new package": ("new-1.dist-info/entry_points.txt", ""),
    "a module that comes before another": ("../before/odd_help/words.py", "word = 'y'\n"),
}
SAME = {
    "nothing": ("odd/data/note.txt", "a note"),
    "a module's bytecode": ("odd/overlays/__pycache__/odd_one.cpython-399.pyc", ""),
    "a file that nothing reads": ("odd/data/.other.txt", ""),
    "coverage data": (".coverage.host.1", ""),
}


@pytest.mark.parametrize("what", [*CHANGES, *SAME])
def test_what_was_opened_for_overlays_is_compared(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever an overlay's package is made of, and reads; other tests write to the folder of the repository."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in {"", str(ROOT)}])
    for place in ("path", "before"):
        (tmp_path / place).mkdir()
        monkeypatch.syspath_prepend(tmp_path / place)
    package = Package(tmp_path / "path")
    (tmp_path / "path/other-1.dist-info").mkdir()
    before = {*sys.modules}
    try:
        with opened() as found:
            assert "odd-one" in {item.id for item in discover()}
        assert "odd_single" in sys.modules
    finally:
        for name in {*sys.modules} - before:
            if name.startswith("odd"):
                del sys.modules[name]
    file, text = {**CHANGES, **SAME}[what]
    if what != "nothing":
        package.put(file, text)

    assert unchanged(found) == (what in SAME)


# --- one file or folder ---------------------------------------------------------------------------------------------


def exchange(path: Path) -> None:
    """Another file of the same size and time."""
    about = path.stat()
    path.with_suffix(".new").write_text("x" * about.st_size)
    os.utime(path.with_suffix(".new"), ns=(about.st_atime_ns, about.st_mtime_ns))
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (Path.read_bytes, lambda path: path.write_text("else")),
        (Path.read_bytes, lambda path: path.write_text("text and more")),
        (Path.read_bytes, exchange),
        (Path.read_bytes, Path.unlink),
        (Path.read_bytes, lambda path: path.unlink() or path.mkdir()),
        (lambda path: os.close(os.open(path, os.O_RDONLY)), lambda path: path.write_text("else")),
        (lambda path: os.listdir(path.parent), lambda path: path.with_name("new").touch()),  # noqa: PTH208
        (lambda path: [*os.scandir(path.parent)], lambda path: path.with_name("new").touch()),
        (lambda path: suppressed(path.with_name("missing")), lambda path: path.with_name("missing").touch()),
    ],
    ids=["rewrite", "grow", "exchange", "unlink", "folder", "descriptor", "listdir", "scandir", "missing"],
)
def test_what_was_read(read: Callable[[Path], object], change: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with opened() as found:
        read(tmp_path / "a.txt")

    assert unchanged(found)
    change(tmp_path / "a.txt")
    assert not unchanged(found)


def suppressed(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.read_text()


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
