"""`vpatch run` starts nothing, and says why in one line, where the command would not run the overlays."""

from __future__ import annotations

import os
import re
import sys
import zipapp
from pathlib import Path

import pytest

from tests.cli.conftest import rewrite
from tests.conftest import Process, Program
from tests.farm.conftest import Installed
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


def refused(program: Program, cache: Path, *words: str | Path) -> str:
    """Run a command that must not start; return what is said."""
    ran = program("run", "--cache", cache, *words)
    assert (ran.code, ran.out) == (1, "")
    *said, end = ran.err.splitlines()
    assert end == "Nothing was started."
    return " ".join(said)


def test_another_digest_than_expected_is_refused(installed: Installed, vpatch: Program) -> None:
    said = refused(vpatch, installed.cache, "--expect", "0123", "--", installed.python, "-c", "")

    assert re.search(f"unexpected overlays: {installed.root}: they have the digest [0-9a-f]{{64}}, not 0123", said)


def test_an_isolated_python_is_refused(installed: Installed, vpatch: Program) -> None:
    assert "ignores PYTHONPATH" in refused(vpatch, installed.cache, "--", installed.python, "-I", "-c", "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm.py", ("app",)),
        *(deep("vllm/__init__.py", words) for words in (("-c", ""), ("-m", "vllm"), ("serve.py",), ("/elsewhere.py",))),
    ],
)
def test_a_vllm_before_the_farm_is_refused(
    name: str, words: tuple[str, ...], installed: Installed, vpatch: Program
) -> None:
    """In the folder of the script, or in the current one, where processes that vLLM starts look first."""
    place = Path("app" if words == ("app",) else ".").absolute()
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).touch()
    said = refused(vpatch, installed.cache, "--", installed.python, *words)

    assert f"out of reach: {place}: Python would import {place / name}, which stands before PYTHONPATH" in said


@pytest.mark.deep
def test_an_archive_with_a_vllm_of_its_own_is_refused(installed: Installed, vpatch: Program, tmp_path: Path) -> None:
    (tmp_path / "app/vllm").mkdir(parents=True)
    for file in ("__main__.py", "vllm/__init__.py"):
        (tmp_path / "app" / file).touch()
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz", interpreter=str(installed.python))

    for words in ((installed.python, tmp_path / "app.pyz"), (tmp_path / "app.pyz",)):
        said = refused(vpatch, installed.cache, "--", *words)
        assert f"Python would import {tmp_path}/app.pyz/vllm/__init__.py, which stands before PYTHONPATH" in said


@pytest.mark.parametrize("flags", [deep(""), "-s", deep("-S")])
def test_the_interpreter_is_asked_with_the_flags_of_the_command(
    flags: str, own: Installed, child: Process, vpatch: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another vLLM was patched than the command imports: here there is one for the user, which -s and -S leave out."""
    config = own.python.parents[1] / "pyvenv.cfg"
    config.write_text(config.read_text().replace("packages = false", "packages = true"))  # else it has no user site
    user = tmp_path / "user/lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    user.parent.mkdir(parents=True)
    own.root.rename(user)
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    script = tmp_path / "serve"
    script.write_text(f"#!{own.python} {flags}\nimport vpatch_receipt\nvpatch_receipt.register()\n")
    script.chmod(0o755)

    commands: list[tuple[str | Path, ...]] = [(own.python, *flags.split(), script), (script,)]
    for words in commands:
        if flags:
            said = refused(vpatch, own.cache, "--", *words)
            assert f"no vllm: {own.python} {flags}: this interpreter has no vllm to import" in said
        else:
            ran = child("run", "--cache", own.cache, "--", *words)
            assert (ran.code, f"vLLM 0.20.2 in {user}\n" in ran.err) == (0, True), ran.err


@pytest.mark.deep
def test_a_folder_vllm_that_is_no_package_hides_nothing(installed: Installed, child: Process) -> None:
    Path("vllm").mkdir()  # the clone of its repository, for example

    assert child("run", "--cache", installed.cache, "--", installed.python, "-c", "").code == 0


def test_a_cache_that_pythonpath_cannot_name_is_refused(installed: Installed, vpatch: Program, tmp_path: Path) -> None:
    said = refused(vpatch, tmp_path / "a:b", "--", installed.python, "-c", "")

    assert f"not a folder for farms: {tmp_path}/a:b: PYTHONPATH ends a name at ':'" in said


@pytest.mark.deep
def test_start_up_code_that_puts_another_vllm_first_is_refused(own: Installed, vpatch: Program, tmp_path: Path) -> None:
    (tmp_path / "fork/vllm").mkdir(parents=True)
    (tmp_path / "fork/vllm/__init__.py").touch()
    (own.root / "fork.pth").write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'fork')!r})\n")
    said = refused(vpatch, own.cache, "--", own.python, "-c", "")

    assert f"out of reach: {own.python}: it imports vllm from {tmp_path}/fork/vllm, before PYTHONPATH" in said


def test_an_interpreter_without_vllm_is_refused(vpatch: Program, tmp_path: Path) -> None:
    said = refused(vpatch, tmp_path / "cache", "--", sys.executable, "-c", "")

    assert f"no vllm: {Path(sys.executable)}: this interpreter has no vllm to import" in said


def test_what_is_no_python_needs_one_by_name(installed: Installed, vpatch: Program, child: Process) -> None:
    said = refused(vpatch, installed.cache, "--", "sh", "-c", "echo $PYTHONPATH")
    assert "which Python?: " in said
    assert "name the interpreter that it starts with --python" in said

    ran = child("run", "--cache", installed.cache, "--python", installed.python, "--", "sh", "-c", "echo $PYTHONPATH")
    assert ran.out.startswith(str(installed.cache))


def test_a_program_that_the_system_cannot_run(installed: Installed, child: Process, tmp_path: Path) -> None:
    (tmp_path / "start").write_text("exec vllm serve\n")  # a shell would run it
    (tmp_path / "start").chmod(0o755)
    ran = child("run", "--cache", installed.cache, "--python", installed.python, "--", tmp_path / "start")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith(f"cannot run: {tmp_path}/start: exec format error\n")


def test_a_command_that_does_not_exist_is_127(installed: Installed, vpatch: Program) -> None:
    ran = vpatch("run", "--cache", installed.cache, "--", "vllm-of-nowhere", "serve")

    assert ran.code == 127
    assert ran.err.startswith("no such command: vllm-of-nowhere: ")


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
    assert child("run", "--cache", own.cache, *program).code == 0


@pytest.mark.deep
def test_a_first_line_that_sets_the_path_is_refused(installed: Installed, vpatch: Program, tmp_path: Path) -> None:
    (tmp_path / "start").write_text(f"#!/usr/bin/env -S PYTHONPATH=/elsewhere {installed.python}\n")
    (tmp_path / "start").chmod(0o755)

    assert "its first line sets PYTHONPATH" in refused(vpatch, installed.cache, "--", tmp_path / "start")


@pytest.mark.deep
def test_a_current_folder_that_was_removed_is_refused(installed: Installed, vpatch: Program, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    said = refused(vpatch, installed.cache, "--", installed.python, "-c", "")
    assert said == "cannot read: the current folder: no such file or directory"


@pytest.mark.deep
def test_entries_of_the_path_that_nobody_can_read_are_left_as_they_are(installed: Installed, child: Process) -> None:
    words = ("--", installed.python, "-c", "import os; print(os.environ['PYTHONPATH'])")
    long = "x" * 5000
    ran = child("run", "-q", "--cache", installed.cache, *words, env={"PYTHONPATH": long})

    assert (ran.code, ran.out.strip().endswith(f":{long}")) == (0, True)
