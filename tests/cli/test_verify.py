"""`verify` finds every way in which an applied overlay is incomplete, and names the file."""

from __future__ import annotations

import compileall
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch import api
from vpatch.core import nesting

from tests.conftest import Process, Program, Trees
from tests.hybrid import ARG_UTILS, ATTENTION, COMPANION, CONFIG, HYBRID, INFO, INTERFACE
from tests.paths import CACHE


@pytest.fixture(scope="module")
def once(slim: Trees, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = shutil.copytree(slim("0.20.2"), tmp_path_factory.mktemp("once") / "tree")
    assert api.apply(tree, [HYBRID]).changed
    return tree


@pytest.fixture
def applied(once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(once, tmp_path / "site-packages")


def add(file: str, data: bytes) -> Callable[[Path], None]:
    def harm(tree: Path) -> None:
        with (tree / file).open("ab") as open_file:
            open_file.write(data)

    return harm


def replace(file: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def harm(tree: Path) -> None:
        data = (tree / file).read_bytes()
        assert data.count(old) == 1
        (tree / file).write_bytes(data.replace(old, new))

    return harm


def remove(file: str) -> Callable[[Path], None]:
    return lambda tree: (tree / file).unlink()


def untrue_record(tree: Path) -> None:
    record = tree / INFO / "RECORD"
    rows = record.read_text().splitlines(keepends=True)
    record.write_text("".join(f"{COMPANION},sha256=xyz,1\n" if row.startswith(COMPANION) else row for row in rows))


def forgotten_row(tree: Path) -> None:
    record = tree / INFO / "RECORD"
    rows = record.read_text().splitlines(keepends=True)
    record.write_text("".join(row for row in rows if not row.startswith(COMPANION)))


def stale_bytecode(tree: Path) -> None:
    """Compile another source of the same size and time, as happens in a layer with fixed times."""
    source = tree / CONFIG
    data, twin = source.read_bytes(), Path(importlib.util.cache_from_source(str(source)))
    times = (1_700_000_000, 1_700_000_000)
    source.write_bytes(data.replace(b"n: int = 2", b"n: int = 9"))
    os.utime(source, times)
    compileall.compile_file(source, quiet=2)
    assert twin.is_file()
    os.utime(twin, times)
    source.write_bytes(data)
    os.utime(source, times)


def half_reverted(tree: Path) -> None:
    shutil.copyfile(tree / INFO / "vpatch/originals" / CONFIG, tree / CONFIG)


HARM: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "edited": (add(INTERFACE, b"# edited by hand\n"), [f"RECORD is not true: {INTERFACE}: "]),
    "untrue RECORD": (untrue_record, [f"RECORD is not true: {COMPANION}: "]),
    "forgotten row": (forgotten_row, [f"not in RECORD: {COMPANION}: "]),
    "no RECORD": (remove(f"{INFO}/RECORD"), ["no RECORD: "]),
    "stale bytecode": (stale_bytecode, [f"stale bytecode: {Path(CONFIG).parent}/__pycache__/config."]),
    "missing companion": (remove(COMPANION), ["not applied: ", f"missing file: {COMPANION}: "]),
    "half reverted": (half_reverted, ["not applied: ", f"RECORD is not true: {CONFIG}: "]),
    "broken syntax": (add(COMPANION, b"def broken(:\n"), [f"does not compile: {COMPANION}: "]),
    "deep": (add(COMPANION, b"x = " + b"not " * 5000 + b"1\n"), [f"does not compile: {COMPANION}: nested too deeply"]),
    "huge": (
        add(COMPANION, b"a;" * nesting.TOKENS + b"\n"),
        [f"does not compile: {COMPANION}: too large: more than {nesting.TOKENS:,} tokens"],
    ),
    "changed again": (
        replace(INTERFACE, b"attention_page_size_of_one_token(vllm_config)", b"attention_page_size_of_one_token(None)"),
        [f"drifted: {INTERFACE}"],
    ),
    "torn provenance": (
        lambda tree: os.truncate(tree / INFO / "vpatch/provenance.json", 1),
        [f"cannot read provenance: {INFO}/vpatch: "],
    ),
}


@pytest.mark.parametrize("ids", [(), ("--overlay", HYBRID)])
def test_a_whole_tree_passes(vpatch: Program, applied: Path, ids: tuple[str, ...]) -> None:
    ran = vpatch("verify", applied, *ids)

    assert (ran.code, ran.err) == (0, "")
    told = [line for line in ran.out.splitlines() if ids or line.startswith(f"{HYBRID}: ")]
    assert told == [f"{HYBRID}: applied: every change of the overlay is there, with its marks"]


@pytest.mark.parametrize("harm", HARM)
def test_a_harmed_tree_fails(vpatch: Program, applied: Path, harm: str) -> None:
    spoil, begins = HARM[harm]
    spoil(applied)

    ran = vpatch("verify", applied)

    assert ran.code == 1
    for begin in begins:
        assert any(line.startswith(begin) for line in ran.err.splitlines()), ran.err


@pytest.mark.parametrize("ids", [(), ("--overlay", HYBRID)])
def test_an_unpatched_tree_fails(vpatch: Program, slim: Trees, ids: tuple[str, ...]) -> None:
    ran = vpatch("verify", slim("0.20.2"), *ids)

    assert ran.code == 1
    told = "not applied: " if ids else "nothing to verify: "
    assert ran.err.startswith(told + str(slim("0.20.2").resolve()))


def test_a_merged_overlay_passes(vpatch: Program, slim: Trees) -> None:
    assert vpatch("verify", slim("0.21.0"), "--overlay", HYBRID).code == 0


def test_a_checkout_has_no_record(vpatch: Program, applied: Path) -> None:
    shutil.rmtree(applied / INFO)
    assert vpatch("verify", applied).code == 1
    subprocess.run(["git", "init", "-q", applied], check=True)

    assert vpatch("verify", applied).code == 0


class TestPython:
    """Which files the interpreter would import."""

    @pytest.fixture
    def python(self, applied: Path, tmp_path: Path) -> Path:
        """An interpreter that imports the tree, and `first` before it."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
        (packages,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
        (tmp_path / "first").mkdir()
        (packages / "paths.pth").write_text(f"{tmp_path / 'first'}\n{applied}\n")
        return tmp_path / "venv/bin/python"

    def test_the_interpreter_imports_exactly_these_files(self, vpatch: Program, applied: Path, python: Path) -> None:
        for tree in ((applied,), ()):
            assert vpatch("verify", *tree, "--python", python).code == 0

    @pytest.mark.deep
    def test_functions_are_compared_where_they_can_be_imported(self, process: Process, tmp_path: Path) -> None:
        """The interpreter imports the real vLLM here, except `arg_utils`, whose dependencies its environment lacks."""
        from tests.validation.cpu.environment import interpreter

        python = interpreter("0.20.2")
        complete = shutil.copytree(CACHE / "trees/0.20.2", tmp_path / "complete")
        assert process("apply", complete, "--overlay", HYBRID).code == 0
        environment = {"PYTHONPATH": f"{complete}:{tmp_path / 'first'}", "CUDA_VISIBLE_DEVICES": ""}

        ran = process("verify", complete, "--python", python, env=environment)

        assert ran.code == 0, ran.err
        notes = [line for line in ran.out.splitlines() if line.startswith("note: functions not compared: ")]
        assert [note.split(": ")[2] for note in notes] == [ARG_UTILS, ATTENTION]
        assert all(f"{python} cannot import it: " in note for note in notes)

        (tmp_path / "first").mkdir()
        (tmp_path / "first/sitecustomize.py").write_text(
            "import sys\n"
            "if sys.argv[1:] and '[[' in sys.argv[1]:\n"
            "    from vllm.platforms.interface import Platform\n"
            "    Platform._align_hybrid_block_size = classmethod(lambda cls, *args: None)\n"
        )
        ran = process("verify", complete, "--python", python, env=environment)

        assert ran.code == 1
        there = f"{tmp_path}/first/sitecustomize.py:4 instead of the function in this file"
        place = f"{INTERFACE} (Platform._align_hybrid_block_size)"
        assert f"not what runs: {place}: {python} has {there}" in ran.err

    def test_another_vllm_comes_first(self, vpatch: Program, applied: Path, python: Path, tmp_path: Path) -> None:
        (tmp_path / "first/vllm").mkdir()
        (tmp_path / "first/vllm/__init__.py").touch()

        ran = vpatch("verify", applied, "--python", python)

        assert ran.code == 1
        told = f"not what is imported: {INTERFACE}: {python} would import no such module"
        assert told in ran.err.splitlines()

    def test_another_whole_vllm_comes_first(
        self, vpatch: Program, applied: Path, python: Path, tmp_path: Path, patched: Trees
    ) -> None:
        (tmp_path / "first/vllm").symlink_to(patched("0.20.2", HYBRID) / "vllm")

        ran = vpatch("verify", applied, "--python", python)

        assert ran.code == 1
        told = f"not what is imported: {INTERFACE}: {python} would import {tmp_path}/first/{INTERFACE}"
        assert told in ran.err.splitlines()

    def test_an_extension_module_comes_first(self, vpatch: Program, applied: Path, python: Path) -> None:
        shadow = (applied / INTERFACE).with_suffix(".abi3.so")
        shadow.touch()

        ran = vpatch("verify", applied, "--python", python)

        assert ran.code == 1
        assert f"{python} would import {shadow}" in ran.err

    def test_a_companion_that_the_interpreter_cannot_compile(
        self, vpatch: Program, applied: Path, python: Path
    ) -> None:
        """A companion may need a newer Python than the interpreter; this one needs one that does not exist."""
        (applied / COMPANION).write_bytes((applied / COMPANION).read_bytes() + b"\nreturn\n")

        ran = vpatch("verify", applied, "--python", python)

        assert ran.code == 1
        assert f"does not compile: {COMPANION}: {python}: " in ran.err

    def test_no_interpreter(self, vpatch: Program, applied: Path, tmp_path: Path) -> None:
        ran = vpatch("verify", applied, "--python", tmp_path / "none")

        assert ran.code == 1
        assert ran.err == f"cannot ask the interpreter: {tmp_path / 'none'}: no such file or directory\n"
