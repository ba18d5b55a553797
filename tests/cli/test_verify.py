"""`verify` finds every way in which an applied overlay is incomplete, and names the file."""

from __future__ import annotations

import compileall
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch import api
from vpatch.core import nesting
from vpatch.guest.record import entry, parse, revise

from tests.conftest import Process, Program, Trees, environment
from tests.hybrid import ARG_UTILS, ATTENTION, COMPANION, CONFIG, HYBRID, INFO, INTERFACE
from tests.paths import CACHE
from tests.tiers import deep


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


def companions_row(new: str) -> Callable[[Path], None]:
    def harm(tree: Path) -> None:
        record = tree / INFO / "RECORD"
        rows = record.read_text().splitlines(keepends=True)
        record.write_text("".join(new if row.startswith(COMPANION) else row for row in rows))

    return harm


def blessed(tree: Path) -> None:
    """Edit a file, and have RECORD list it so, as `apply` of earlier versions did."""
    add(INTERFACE, b"# edited by hand\n")(tree)
    record = tree / INFO / "RECORD"
    row = entry(INTERFACE, (tree / INTERFACE).read_bytes())
    record.write_bytes(revise(parse(record.read_bytes()), {INTERFACE: row}).serialize())


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


BROKEN = f"edited after vpatch: {COMPANION}: it does not compile: "
HARM: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "edited": (add(INTERFACE, b"# edited by hand\n"), [f"edited after vpatch: {INTERFACE}: line "]),
    "edited, as RECORD says": (blessed, [f"edited after vpatch: {INTERFACE}: line "]),
    "untrue RECORD": (companions_row(f"{COMPANION},sha256=xyz,1\n"), [f"RECORD is not true: {COMPANION}: "]),
    "forgotten row": (companions_row(""), [f"not in RECORD: {COMPANION}: "]),
    "no RECORD": (remove(f"{INFO}/RECORD"), ["no RECORD: "]),
    "stale bytecode": (stale_bytecode, [f"stale bytecode: {Path(CONFIG).parent}/__pycache__/config."]),
    "missing companion": (remove(COMPANION), ["not applied: ", f"missing file: {COMPANION}: "]),
    "half reverted": (half_reverted, ["not applied: ", f"RECORD is not true: {CONFIG}: "]),
    "broken syntax": (add(COMPANION, b"def broken(:\n"), [BROKEN]),
    "deep": (
        add(COMPANION, b"x = " + b"not " * 5000 + b"1\n"),
        [f"{BROKEN}nested too deeply"],
    ),
    "huge": (
        add(COMPANION, b"a;" * nesting.TOKENS + b"\n"),
        [f"{BROKEN}too large: more than {nesting.TOKENS:,} tokens"],
    ),
    "changed again": (
        replace(INTERFACE, b"attention_page_size_of_one_token(vllm_config)", b"attention_page_size_of_one_token(None)"),
        [f"edited after vpatch: {INTERFACE}: line "],
    ),
    "torn provenance": (
        lambda tree: os.truncate(tree / INFO / "vpatch/provenance.json", 1),
        [f"cannot read provenance: {INFO}/vpatch: "],
    ),
}


@pytest.mark.parametrize("ids", [(), ("--overlay", HYBRID)])
def test_a_whole_tree_passes(vpatch: Program, applied: Path, ids: tuple[str, ...]) -> None:
    ran = vpatch("verify", "-q", applied, *ids)

    assert (ran.code, ran.err) == (0, "")
    told = [line.split() for line in ran.out.splitlines() if ids or line.startswith(f"  {HYBRID} ")]
    assert told == [[HYBRID, "applied"]]


def test_a_merged_overlay_passes(vpatch: Program, slim: Trees) -> None:
    assert vpatch("verify", slim("0.33.0"), "--overlay", HYBRID).code == 0


PARSED = {"edited", "edited, as RECORD says", "broken syntax", "deep", "huge", "changed again"}


@pytest.mark.parametrize("harm", [deep(harm) if harm in PARSED else harm for harm in HARM])
def test_a_harmed_tree_fails(vpatch: Program, applied: Path, harm: str) -> None:
    spoil, begins = HARM[harm]
    spoil(applied)

    ran = vpatch("verify", applied)

    assert ran.code == 1
    for begin in begins:
        assert any(line.startswith(begin) for line in ran.err.splitlines()), ran.err


def test_a_checkout_has_no_record(vpatch: Program, applied: Path) -> None:
    shutil.rmtree(applied / INFO)
    assert vpatch("verify", applied).code == 1
    subprocess.run(["git", "init", "-q", applied], check=True)

    assert vpatch("verify", applied).code == 0


def test_the_interpreter_imports_exactly_these_files_or_something_else_is_named(
    vpatch: Program, applied: Path, tmp_path: Path
) -> None:
    (environment(tmp_path / "venv") / "paths.pth").write_text(f"{tmp_path}/first\n{applied}\n")
    python = tmp_path / "venv/bin/python"
    for tree in ((applied,), ()):
        assert vpatch("verify", *tree, "--python", python).code == 0

    (applied / INTERFACE).with_suffix(".abi3.so").touch()
    shutil.copytree(applied / "vllm", tmp_path / "whole")
    add(COMPANION, b"\nreturn\n")(applied)  # as what needs a newer Python than the interpreter
    extension = vpatch("verify", applied, "--python", python)
    (tmp_path / "first").mkdir()
    (tmp_path / "first/vllm").symlink_to(tmp_path / "whole")
    other = vpatch("verify", applied, "--python", python)

    imports = f"not what is imported: {INTERFACE}: {python} would import "
    assert (extension.code, other.code) == (1, 1)
    assert f"{imports}{applied}/{INTERFACE.removesuffix('.py')}.abi3.so\n" in extension.err
    assert f"does not compile: {COMPANION}: {python}: " in extension.err
    assert f"{imports}{tmp_path}/first/" in other.err


@pytest.mark.deep
def test_functions_are_compared_where_they_can_be_imported(process: Process, tmp_path: Path) -> None:
    """The interpreter imports the real vLLM here, except `arg_utils`, whose dependencies its environment lacks."""
    from tests.validation.cpu.environment import BYTECODE, interpreter

    python, first = interpreter("0.20.2"), tmp_path / "first"
    first.mkdir()
    complete = shutil.copytree(CACHE / "trees/0.20.2", tmp_path / "complete")
    assert process("apply", complete, "--overlay", HYBRID).code == 0
    compiled = {"PYTHONPYCACHEPREFIX": str(BYTECODE), "PYTHONDONTWRITEBYTECODE": "1"}  # of torch and others
    env = {"PYTHONPATH": f"{complete}:{first}", "CUDA_VISIBLE_DEVICES": "", **compiled}

    ran = process("verify", complete, "--python", python, env=env)

    assert ran.code == 0, ran.err
    notes = [line for line in ran.err.splitlines() if line.startswith("note: functions not compared: ")]
    assert [note.split(": ")[2] for note in notes] in ([ARG_UTILS, ATTENTION], [f"{ARG_UTILS} and 1 more"])
    assert all(f"{python} cannot import " in note for note in notes)

    (first / "sitecustomize.py").write_text(
        "import sys\n"
        "if sys.argv[1:] and '[[' in sys.argv[1]:\n"
        "    from vllm.platforms.interface import Platform\n"
        "    Platform._align_hybrid_block_size = classmethod(lambda cls, *args: None)\n"
    )
    ran = process("verify", complete, "--python", python, env=env)

    assert ran.code == 1
    there = f"{first}/sitecustomize.py:4 instead of the function in this file"
    place = f"{INTERFACE} (Platform._align_hybrid_block_size)"
    assert f"not what runs: {place}: {python} has {there}" in ran.err


def test_no_interpreter(vpatch: Program, applied: Path, tmp_path: Path) -> None:
    ran = vpatch("verify", "-q", applied, "--python", tmp_path / "none")

    assert ran.code == 2
    assert ran.err == f"not an interpreter: {tmp_path / 'none'}: no such file\n"
