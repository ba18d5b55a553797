"""Which interpreter a command runs, and what would stand before a farm."""

from __future__ import annotations

import shutil
import sys
import zipapp
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.run.command import Missing, understood

PYTHON = Path(sys.executable).absolute()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a `vllm` script, as the current one, and first on PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{PYTHON.parent}:/usr/bin:/bin")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/serve.py").touch()
    return tmp_path


def script(first: str, name: str = "serve", second: str = "") -> str:
    """Make a program that starts with a line."""
    Path(name).write_text(f"{first}\n{second}\n")
    Path(name).chmod(0o755)
    return name


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("-m vllm.entrypoints.cli.main serve", "."),
        ("-c pass", "."),
        ("-cpass", "."),
        ("-", "."),
        ("", "."),
        ("scripts/serve.py -I -m vllm", "scripts"),
        ("-u -X dev -W ignore scripts/serve.py", "scripts"),
        ("scripts", "scripts"),
        ("-Xdev -Wignore scripts/serve.py", "scripts"),
        ("-Bum vllm -I", "."),
        ("--check-hash-based-pycs never scripts/serve.py", "scripts"),
        ("-P -m vllm", None),
        ("-BP scripts/serve.py", None),
    ],
)
def test_python_itself(words: str, first: str | None, here: Path) -> None:
    found = understood([sys.executable, *words.split()])

    assert (found.python, found.program) == (PYTHON, PYTHON)
    assert found.first == (here / first if first else None)


def test_no_folder_is_first_with_a_safe_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")

    assert understood([sys.executable, "-m", "vllm"]).first is None
    assert understood([script(f"#!{PYTHON}")]).first is None


@pytest.mark.parametrize("words", ["-I -m vllm", "-E scripts/serve.py", "-BI -m vllm", "-sEc pass"])
def test_an_isolated_python_is_refused(words: str) -> None:
    with pytest.raises(
        Failure, match=rf"out of reach: {PYTHON}: it runs Python with {words.split(maxsplit=1)[0]}, which ignores"
    ):
        understood([sys.executable, *words.split()])


@pytest.mark.parametrize(
    ("line", "second"),
    [
        (f"#!{PYTHON}", ""),
        (f"#!{PYTHON} -sP", ""),
        (f"#!/usr/bin/env {PYTHON.name}", ""),
        (f"#!/usr/bin/env -S {PYTHON.name} -u", ""),
        (f"#!/usr/bin/env -S A=b {PYTHON.name}", ""),
        (f"#!/usr/bin/env -S{PYTHON.name} -u", ""),
        (f"#!/usr/bin/env -S -u A --unset=B -uC {PYTHON.name}", ""),
        ("#!/bin/sh", f"'''exec' {PYTHON} \"$0\" \"$@\""),
        ("#!/bin/sh", f'\'\'\'exec\' "{PYTHON}" "$0" "$@"'),
        ("#!/bin/sh", f"'''exec' '{PYTHON}' \"$0\" \"$@\""),
    ],
)
def test_a_script_of_python(line: str, second: str, here: Path) -> None:
    found = understood([script(line, second=second), "--port", "1"])

    assert (found.program, found.python) == (here / "serve", PYTHON)
    assert found.first == (None if "P" in line.partition(" ")[2] else here)


@pytest.mark.parametrize(
    "words",
    [
        "-u PYTHONPATH",
        "-uPYTHONPATH",
        "--unset=PYTHONPATH",
        "--unset PYTHONPATH",
        "-i",
        "-",
        "-iu A",
        "--ignore-environment",
        "-u A -i",
        "A=b -i",
        "--chdir=/",
        *(f"{name}=1" for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONUSERBASE", "VLLM_PLUGINS")),
    ],
)
def test_a_first_line_that_changes_what_decides_is_refused(words: str, here: Path) -> None:
    """Of what python is started with, it can take the farm away."""
    with pytest.raises(Failure, match=rf"out of reach: {here}/serve: its first line (sets|unsets|runs env with) "):
        understood([script(f"#!/usr/bin/env -S {words} {PYTHON.name}")])


@pytest.mark.parametrize(
    ("options", "flags"),
    [("-s", "-s"), ("-Ss", "-s -S"), ("-Bus -X dev", "-s"), ("-W s -B", ""), ("-P", "-P"), ("-", "")],
)
def test_flags_with_which_other_folders_are_searched(options: str, flags: str) -> None:
    """The interpreter is asked with them."""
    line = options.replace(" ", "") if options != "-" else ""

    assert understood([sys.executable, *options.split(), "scripts/serve.py"]).flags == tuple(flags.split())
    if line and "-X" not in line and "-W" not in line:
        assert understood([script(f"#!{PYTHON} {line}")]).flags == tuple(flags.split())


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("way", ["python", "itself"])
def test_an_archive_is_searched_first(way: str, *, safe: bool, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As zipapp makes it, with modules of its own."""
    if safe:
        monkeypatch.setenv("PYTHONSAFEPATH", "1")
    (here / "app").mkdir()
    (here / "app/__main__.py").touch()
    zipapp.create_archive(here / "app", here / "app.pyz", interpreter=str(PYTHON))
    words = [sys.executable, "app.pyz"] if way == "python" else ["./app.pyz"]

    assert understood(words).first == here / "app.pyz"


def test_the_folder_of_a_linked_script_is_that_of_its_target(here: Path) -> None:
    script(f"#!{PYTHON}", "scripts/run")
    (here / "run").symlink_to("scripts/run")

    assert understood(["run"]).first == here / "scripts"


def test_an_isolated_script_is_refused(here: Path) -> None:
    with pytest.raises(
        Failure, match=f"{here}/serve: it runs Python with -I, which ignores PYTHONPATH; run it without"
    ):
        understood([script(f"#!{PYTHON} -I")])


@pytest.mark.parametrize("line", ["#!/bin/sh", "#!", "\x7fELF", "", "#!/bin/sh -e", "#!/usr/bin/awk -f 'x"])
def test_what_is_no_python_has_no_interpreter(line: str) -> None:
    found = understood([script(line, second="exec something")])

    assert (found.python, found.first) == (None, None)


def test_a_shell_is_no_python() -> None:
    assert understood(["sh", "-c", "python"]).python is None


@pytest.mark.parametrize("name", ["nowhere", "./scripts", "scripts/serve.py"])
def test_a_command_that_does_not_exist(name: str) -> None:
    with pytest.raises(Missing, match=f"no such command: {name}: neither a program on PATH nor an executable file"):
        understood([name])


def test_a_script_of_an_interpreter_that_is_gone(here: Path) -> None:
    with pytest.raises(Failure, match=f"no interpreter: {here}/serve: its first line names /gone/python3, which does"):
        understood([script("#!/gone/python3")])


def test_the_program_is_searched_on_path(here: Path) -> None:
    shutil.copy(script(f"#!{PYTHON}"), here / "scripts/vllm")

    assert understood(["scripts/vllm"]).program == here / "scripts/vllm"
    assert understood(["serve"]).program == here / "serve"
