"""Python runs the old source's bytecode if the new source has the same size and the same whole second."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import time
from pathlib import Path
from py_compile import PycInvalidationMode as Mode

import pytest
from vpatch.core import nesting
from vpatch.errors import Failure
from vpatch.tree import bytecode

from tests.tree.conftest import Sandbox

OLD, NEW = b"value = 'old'\n", b"value = 'new'\n"


def compiled(source: Path, mode: Mode = Mode.TIMESTAMP, *, optimize: int = -1) -> Path:
    return Path(str(py_compile.compile(str(source), doraise=True, invalidation_mode=mode, optimize=optimize)))


def later() -> None:
    """Wait until the clock of the file system ticks, as it does every few milliseconds."""
    coarse = 5  # CLOCK_REALTIME_COARSE, which Python does not name: a file's times come from it
    now = time.clock_gettime_ns(coarse)
    while time.clock_gettime_ns(coarse) == now:
        pass


def written(source: Path, content: bytes, *, second: int = 1_600_000_000) -> Path:
    """Write a source later than whatever was compiled before."""
    later()
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(content)
    os.utime(source, (second, second))
    return source


def what_runs(folder: Path, *options: str) -> str:
    """Return the `value` that a new interpreter finds in the module `m`."""
    command = [sys.executable, "-B", *options, "-c", "import m; print(m.value)"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(tmp_path / "m.py", OLD)


@pytest.mark.parametrize("mode", [Mode.TIMESTAMP, Mode.UNCHECKED_HASH])
@pytest.mark.parametrize("optimize", [0, 1, 2])
def test_old_code_that_would_run_is_stale(source: Path, mode: Mode, optimize: int) -> None:
    old = compiled(source, mode, optimize=optimize)
    written(source, NEW)

    assert what_runs(source.parent, *["-O"] * optimize) == "old"
    assert bytecode.stale(source) == (old,)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("optimize", [0, 1, 2])
def test_true_code_is_not_stale(source: Path, mode: Mode, optimize: int) -> None:
    source.write_bytes(b'"""About it."""\nassert True\nvalue = "old"\n')
    compiled(source, mode, optimize=optimize)
    later()
    source.chmod(0o600)  # a newer ctime, as unpacking an image gives it

    assert bytecode.stale(source) == ()


def test_code_that_python_refuses_is_not_stale(source: Path) -> None:
    compiled(source)
    written(source, NEW, second=1_600_000_001)
    assert what_runs(source.parent) == "new"
    assert bytecode.stale(source) == ()

    compiled(written(source, OLD), Mode.CHECKED_HASH)
    written(source, NEW)
    assert what_runs(source.parent) == "new"
    assert bytecode.stale(source) == ()


@pytest.mark.parametrize("keep", [0, 10, 16, 25])
def test_torn_bytecode(source: Path, keep: int) -> None:
    old = compiled(source)
    old.write_bytes(old.read_bytes()[:keep])
    written(source, NEW)

    assert bytecode.stale(source) == ((old,) if keep >= 16 else ())


def test_another_interpreters_code_is_stale_when_in_doubt(source: Path) -> None:
    other = compiled(source).rename(source.parent / "__pycache__/m.cpython-399.pyc")
    other.write_bytes(b"\0\0\r\n" + other.read_bytes()[4:])
    assert bytecode.stale(source) == ()
    written(source, NEW)

    assert bytecode.stale(source) == (other,)


@pytest.mark.parametrize(
    "code",
    ["not " * 5000 + "1\n", "a;" * nesting.TOKENS, "# coding: utf-7\n", "value = 'new\n\n"],
    ids=["deep", "much", "encoding", "not Python"],
)
def test_a_source_that_is_not_compiled_may_have_other_code(source: Path, code: str) -> None:
    old = compiled(written(source, b"#" * (len(code) - len(OLD)) + b"\n" + OLD[:-1]))
    written(source, code.encode())

    assert bytecode.stale(source) == (old,)


def test_twins(source: Path) -> None:
    cache = source.parent / "__pycache__"
    cache.mkdir()
    mine = ["m.cpython-311.opt-1.pyc", "m.cpython-311.pyc", "m.pypy39.pyc"]
    for name in [*mine, "mm.cpython-311.pyc", "m.cpython-311.pyc.140", "m.txt", "n.m.cpython-311.pyc"]:
        (cache / name).touch()
    legacy = source.with_suffix(".pyc")
    legacy.touch()

    assert bytecode.twins(source) == (*(cache / name for name in mine), legacy)
    assert bytecode.twins(source.with_name("data.json")) == ()
    assert bytecode.twins(source.with_name("n.py")) == ()


def test_the_legacy_twin_runs_only_without_its_source(source: Path) -> None:
    legacy = compiled(source).rename(source.with_suffix(".pyc"))
    written(source, NEW)
    assert what_runs(source.parent) == "new"
    assert bytecode.stale(source) == ()

    source.unlink()
    assert what_runs(source.parent) == "old"
    assert bytecode.stale(source) == (legacy,)


def test_what_cannot_be_read_is_named(source: Path) -> None:
    cache = source.parent / "__pycache__"
    cache.symlink_to(cache)
    with pytest.raises(Failure, match=r"cannot read: .*__pycache__: too many levels of symbolic links"):
        bytecode.twins(source)

    cache.unlink()
    (cache / "m.cpython-311.pyc").mkdir(parents=True)
    with pytest.raises(Failure, match=r"cannot read: .*m\.cpython-311\.pyc: is a directory"):
        bytecode.stale(source)


def test_stale_code_of_files_that_stay_goes(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    source = sandbox.root / "vllm/engine/m0.py"
    content = source.read_bytes()
    old = compiled(written(source, content.replace(b"one = 1", b"one = 0")))
    written(source, content)

    assert bytecode.stale(source) == (old,)
    assert not sandbox.settled(sandbox.first)
    assert sandbox.settle(sandbox.first) == ()
    assert not old.exists()
    assert sandbox.settled(sandbox.first)


def test_a_changed_file_never_keeps_second_and_size(sandbox: Sandbox) -> None:
    """A process that imports the old source meanwhile may write its bytecode after vpatch removed it."""
    path = "vllm/engine/m0.py"
    source, content = sandbox.root / path, sandbox.modules[path]
    for other in (content.replace(b"0", b"1"), content.replace(b"0", b"2")):
        now = int(time.time())
        for second in (now, now + 1, now + 2):  # whichever it is when the new file is made
            os.utime(source, (second, second))
            sandbox.settle({path: other})
            assert int(source.stat().st_mtime) != second
            sandbox.settle({})
