"""`vpatch run` starts nothing, and says why in one line, where the command would not run the overlays."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import rewrite
from tests.conftest import Process, Program, Trees, environment
from tests.run.conftest import Installed
from tests.tiers import deep

FILE = "vllm/engine/arg_utils.py"
ONE = ("--overlay", "turboquant-skip-list")  # planned quickly


def test_drift_starts_nothing(own: Installed, vpatch: Program, tmp_path: Path) -> None:
    source = (own.root / FILE).read_bytes()
    rewrite(own.root / FILE, source.replace(b"def create_engine_config", b"def create_another_config"))
    ran = vpatch("run", "--cache", own.cache, *ONE, "--python", own.python, "--", "touch", tmp_path / "started")

    assert (ran.code, ran.out) == (1, "")
    assert f"drifted: {FILE} (EngineArgs.create_engine_config)" in ran.err
    assert ran.err.endswith("Nothing was started.\n")
    assert not (tmp_path / "started").exists()
    assert not own.cache.exists()


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        deep(ONE, ""),
        (("--overlay", "turboquant-workspace", *ONE), "--overlay turboquant-workspace"),
        deep(("--with", "turboquant-tiles"), "--with turboquant-tiles --without turboquant-skip-list"),
    ],
)
def test_drift_names_the_command_that_runs_the_others(
    own: Installed, vpatch: Program, child: Process, words: tuple[str, ...], rest: str
) -> None:
    source = (own.root / FILE).read_bytes()
    rewrite(own.root / FILE, source.replace(b"key=lambda x: int(x)", b"key=str"))
    ran = vpatch("run", "--cache", own.cache, *words, "--", own.python, "-c", "print(1)")

    again = f"run {rest} --cache {own.cache} -- {own.python} -c 'print(1)'"
    others = f" To run the others: `vpatch {again}`." if rest else ""
    assert (ran.code, ran.err.splitlines()[-1]) == (1, f"Nothing was started.{others}")
    if rest:
        assert child(*shlex.split(again)).out == "1\n"


def refused(program: Program, cache: Path, *words: str | Path) -> str:
    """Run a command that must not start; return what is said."""
    ran = program("run", "--cache", cache, *ONE, *words)
    assert (ran.code, ran.out) == (1, "")
    *said, end = ran.err.splitlines()
    assert end == "Nothing was started."
    return " ".join(said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--expect 0123 -- PYTHON -c pass",
            "unexpected overlays: ROOT: turboquant-skip-list have the digest [0-9a-f]{64}, not 0123",
        ),
        ("-- PYTHON -I -c pass", "ignores PYTHONPATH"),
        ("-- START", "its first line sets PYTHONPATH"),
        ("--cache HERE/a:b -- PYTHON -c pass", "not a folder for farms: HERE/a:b: PYTHONPATH ends a name at ':'"),
        ("-- STOCK -c pass", "no vllm: STOCK: this interpreter has no vllm to import"),
    ],
)
def test_what_would_not_run_the_overlays(
    words: str, message: str, installed: Installed, vpatch: Program, tmp_path: Path
) -> None:
    (tmp_path / "start").write_text(f"#!/usr/bin/env -S PYTHONPATH=/elsewhere {installed.python}\n")
    (tmp_path / "start").chmod(0o755)
    places = {"PYTHON": installed.python, "ROOT": installed.root, "START": tmp_path / "start", "HERE": tmp_path}
    for name, place in {**places, "STOCK": Path(sys.executable)}.items():
        words, message = re.sub(rf"\b{name}\b", str(place), words), re.sub(rf"\b{name}\b", str(place), message)

    assert re.search(message, refused(vpatch, installed.cache, *words.split()))


@pytest.mark.parametrize("words", [("-m", "vllm"), ("serve.py",), ("app",)])
@pytest.mark.parametrize("name", ["vllm/__init__.py", deep("vllm.py")])
def test_a_vllm_before_the_farm_is_refused(
    name: str, words: tuple[str, ...], installed: Installed, vpatch: Program
) -> None:
    """In the folder of the script, or in the current one, where processes that vLLM starts look first."""
    place = Path("app" if words == ("app",) else ".").absolute()
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).touch()
    said = refused(vpatch, installed.cache, "--", installed.python, *words)

    assert f"out of reach: {place}: Python would import {place / name}, which stands before PYTHONPATH" in said


def test_a_folder_vllm_that_is_no_package_hides_nothing(installed: Installed, child: Process) -> None:
    Path("vllm").mkdir()  # the clone of its repository, for example

    assert child("run", "--cache", installed.cache, *ONE, "--", installed.python, "-c", "").code == 0


def test_start_up_code_that_puts_another_vllm_first_is_refused(own: Installed, vpatch: Program, tmp_path: Path) -> None:
    (tmp_path / "fork/vllm").mkdir(parents=True)
    (tmp_path / "fork/vllm/__init__.py").touch()
    (own.root / "fork.pth").write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'fork')!r})\n")
    said = refused(vpatch, own.cache, "--", own.python, "-c", "")

    assert f"out of reach: {own.python}: it imports vllm from {tmp_path}/fork/vllm, before PYTHONPATH" in said


def test_what_is_no_python_needs_one_by_name(installed: Installed, vpatch: Program, child: Process) -> None:
    said = refused(vpatch, installed.cache, "--", "sh", "-c", "echo $PYTHONPATH")
    assert "which Python?: " in said
    assert "name the interpreter that it starts with --python" in said

    command = ("--python", installed.python, "--", "sh", "-c", "echo $PYTHONPATH")
    ran = child("run", "--cache", installed.cache, *ONE, *command)
    assert ran.out.startswith(str(installed.cache))


def test_a_program_that_the_system_cannot_run(installed: Installed, child: Process, tmp_path: Path) -> None:
    (tmp_path / "start").write_text("exec vllm serve\n")  # a shell would run it
    (tmp_path / "start").chmod(0o755)
    ran = child("run", "--cache", installed.cache, *ONE, "--python", installed.python, "--", tmp_path / "start")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith(f"cannot run: {tmp_path}/start: exec format error\n")


def test_a_command_that_does_not_exist_is_127(installed: Installed, vpatch: Program) -> None:
    ran = vpatch("run", "--cache", installed.cache, "--", "vllm-of-nowhere", "serve")

    assert ran.code == 127
    assert ran.err.startswith("no such command: vllm-of-nowhere: ")
    assert "did you mean" not in ran.err


@pytest.mark.parametrize("folder", [".venv", deep("venv")])
def test_a_command_of_the_projects_environment_is_named(installed: Installed, vpatch: Program, folder: str) -> None:
    """vpatch runs nothing of an environment that merely lies here; the command that it prints names it."""
    program = Path(folder, "bin/vllm")
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{installed.python}\n")
    program.chmod(0o755)
    ran = vpatch("run", "--cache", installed.cache, *ONE, "--", "vllm", "serve", "vllm")

    assert ran.code == 127
    again = f"`vpatch run {' '.join(ONE)} --cache {installed.cache} -- {folder}/bin/vllm serve vllm`"
    assert f"neither a program on PATH nor an executable file; did you mean {again}?\n" in ran.err


def test_an_interpreter_of_the_projects_environment_is_named(slim: Trees, tmp_path: Path, vpatch: Program) -> None:
    """The one on PATH has no vLLM."""
    shutil.copytree(slim("0.20.2"), environment(Path(".venv")), dirs_exist_ok=True)
    ran = vpatch("run", "--cache", tmp_path, *ONE, "--", "python3", "-c", "1")

    again = f"`vpatch run {' '.join(ONE)} --cache {tmp_path} -- .venv/bin/python3 -c 1`"
    assert ran.code == 1
    assert f"this interpreter has no vllm to import; did you mean {again}?\n" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--overlay", "turboquant-hybird", "--", "PYTHON"), "no such overlay: turboquant-hybird: did you mean"),
        (("--overlay", "turboquant-mtp", "--with", "turboquant-tiles", "--", "PYTHON"), "leave out --with"),
        ((), "Missing argument 'COMMAND...'"),
        (("--python", "nowhere", "--", "PYTHON"), "not an interpreter: nowhere: no such file"),
        (("--expect", "", "--", "PYTHON"), "'' is not a digest, or the first digits of one"),
        (("--expect", "DIGEST", "--", "PYTHON"), "'DIGEST' is not a digest, or the first digits of one"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], said: str, installed: Installed, vpatch: Program) -> None:
    named = [str(installed.python) if word == "PYTHON" else word for word in words]
    ran = vpatch("run", "--cache", installed.cache, *named)

    assert ran.code == 2
    assert said in ran.err


def test_the_vllm_of_another_interpreter_than_the_commands_is_refused(
    installed: Installed, own: Installed, vpatch: Program, child: Process
) -> None:
    said = refused(vpatch, own.cache, "--python", installed.python, "--", own.python, "-c", "")
    assert f"two vllms: {own.python}: the command runs it, and it has another vLLM than {installed.python}" in said

    program = ("--python", installed.python, "--", sys.executable, "-c", "")  # it may start the interpreter
    assert child("run", "--cache", own.cache, *ONE, *program).code == 0


def test_a_current_folder_that_was_removed_is_refused(installed: Installed, vpatch: Program, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    said = refused(vpatch, installed.cache, "--", installed.python, "-c", "")
    assert said == "cannot read: the current folder: no such file or directory"
