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
    Path(name).write_text(f"{first}\n{second}\n")
    Path(name).chmod(0o755)
    return name


@pytest.mark.parametrize(
    ("words", "first", "flags"),
    [
        ("-m vllm.entrypoints.cli.main serve", ".", ""),
        ("-c pass", ".", ""),
        ("-cpass", ".", ""),
        ("-", ".", ""),
        ("", ".", ""),
        ("scripts/serve.py -I -m vllm", "scripts", ""),
        ("-u -X dev -W ignore scripts/serve.py", "scripts", ""),
        ("scripts", "scripts", ""),
        ("-Xdev -Wignore scripts/serve.py", "scripts", ""),
        ("-Bum vllm -I", ".", ""),
        ("--check-hash-based-pycs never scripts/serve.py", "scripts", ""),
        ("-W s -B scripts/serve.py", "scripts", ""),
        ("-s scripts/serve.py", "scripts", "-s"),
        ("-Ss scripts/serve.py", "scripts", "-s -S"),
        ("-Bus -X dev scripts/serve.py", "scripts", "-s"),
        ("-P -m vllm", None, "-P"),
        ("-BP scripts/serve.py", None, "-P"),
    ],
)
def test_python_itself(words: str, first: str | None, flags: str, here: Path) -> None:
    """Python searches other folders with some flags, with which the interpreter is asked."""
    found = understood([sys.executable, *words.split()])

    assert (found.python, found.program) == (PYTHON, PYTHON)
    assert found.first == (here / first if first else None)
    assert found.flags == tuple(flags.split())


@pytest.mark.parametrize(
    ("line", "second"),
    [
        (f"#!{PYTHON}", ""),
        (f"#!{PYTHON} -u", ""),
        (f"#!{PYTHON} -s", ""),
        (f"#!{PYTHON} -Ss", ""),
        (f"#!{PYTHON} -P", ""),
        (f"#!/usr/bin/env {PYTHON.name}", ""),
        (f"#!/usr/bin/env -S{PYTHON.name} -u", ""),
        (f"#!/usr/bin/env -S -u A --unset=B -uC {PYTHON.name}", ""),
        (f"#!/usr/bin/env -S A=b {PYTHON.name} -P", ""),
        ("#!/bin/sh", f"'''exec' {PYTHON} \"$0\" \"$@\""),
        ("#!/bin/sh", f'\'\'\'exec\' "{PYTHON}" "$0" "$@"'),
        ("#!/bin/sh", f"'''exec' '{PYTHON}' \"$0\" \"$@\""),
    ],
)
def test_a_script_of_python(line: str, second: str, here: Path) -> None:
    found = understood([script(line, second=second), "--port", "1"])

    assert (found.program, found.python) == (here / "serve", PYTHON)
    assert found.first == (None if "P" in line.rpartition(" ")[2] else here)
    assert found.flags == {"-s": ("-s",), "-Ss": ("-s", "-S"), "-P": ("-P",)}.get(line.rpartition(" ")[2], ())


@pytest.mark.parametrize("way", ["python", "itself"])
def test_an_archive_is_searched_first(way: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As zipapp makes it, with modules of its own; a safe path leaves out only the folder of a script."""
    (here / "app").mkdir()
    (here / "app/__main__.py").touch()
    zipapp.create_archive(here / "app", here / "app.pyz", interpreter=str(PYTHON))
    words = [sys.executable, "app.pyz"] if way == "python" else ["./app.pyz"]

    assert understood(words).first == here / "app.pyz"
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert understood(words).first == here / "app.pyz"
    assert understood([sys.executable, "-m", "vllm"]).first is None
    assert understood([script(f"#!{PYTHON}")]).first is None


def test_where_a_program_is(here: Path) -> None:
    """The folder of a linked script is that of its target; a program is searched on PATH."""
    script(f"#!{PYTHON}", "scripts/run")
    (here / "run").symlink_to("scripts/run")
    shutil.copy(script(f"#!{PYTHON}"), here / "scripts/vllm")

    assert understood(["run"]).first == here / "scripts"
    assert understood(["scripts/vllm"]).program == here / "scripts/vllm"
    assert understood(["serve"]).program == here / "serve"


@pytest.mark.parametrize("line", ["#!/bin/sh", "#!", "\x7fELF", "", "#!/bin/sh -e", "#!/usr/bin/awk -f 'x"])
def test_what_is_no_python_has_no_interpreter(line: str) -> None:
    found = understood([script(line, second="exec something")])

    assert (found.python, found.first) == (None, None)


ISOLATED = "ignores PYTHONPATH; run it without"
CHANGES = r"its first line (sets|unsets|runs env with) "


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("PYTHON -I -m vllm", f"PYTHON: it runs Python with -I, which {ISOLATED}"),
        ("PYTHON -E scripts/serve.py", f"PYTHON: it runs Python with -E, which {ISOLATED}"),
        ("PYTHON -BI -m vllm", f"PYTHON: it runs Python with -BI, which {ISOLATED}"),
        ("PYTHON -sEc pass", f"PYTHON: it runs Python with -sEc, which {ISOLATED}"),
        ("#!PYTHON -I", f"HERE/serve: it runs Python with -I, which {ISOLATED}"),
        ("#!/gone/python3", "HERE/serve: its first line names /gone/python3, which does"),
        ("#!/usr/bin/env -S -u PYTHONPATH python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S -uPYTHONPATH python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S --unset=PYTHONPATH python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S --unset PYTHONPATH python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S -i python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S - python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S -iu A python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S --ignore-environment python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S -u A -i python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S A=b -i python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S --chdir=/ python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S PYTHONPATH=1 python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S PYTHONHOME=1 python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S PYTHONNOUSERSITE=1 python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S PYTHONUSERBASE=1 python3", f"HERE/serve: {CHANGES}"),
        ("#!/usr/bin/env -S VLLM_PLUGINS=1 python3", f"HERE/serve: {CHANGES}"),
    ],
)
def test_what_takes_the_farm_away_is_refused(words: str, message: str, here: Path) -> None:
    words = words.replace("PYTHON ", f"{PYTHON} ", 1) if "env" not in words else words
    with pytest.raises(Failure, match=message.replace("HERE", str(here)).replace("PYTHON:", f"{PYTHON}:")):
        understood([script(words)] if words.startswith("#!") else words.split())


@pytest.mark.parametrize("name", ["nowhere", "./scripts", "scripts/serve.py"])
def test_a_command_that_does_not_exist(name: str) -> None:
    with pytest.raises(Missing, match=f"no such command: {name}: neither a program on PATH nor an executable file"):
        understood([name])
