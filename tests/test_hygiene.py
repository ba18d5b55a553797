"""Checks of the repository itself that no tool makes: pins, sizes, README's commands. The tools: tests/__main__.py."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

import tests.__main__
from tests import rooms
from tests.__main__ import WORKFLOWS, failure
from tests.paths import ROOT


def test_a_check_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import os\n")

    assert "F401" in failure(("ruff", "check", "--isolated", str(tmp_path)))
    assert failure(("ruff", "check", "--isolated", "tests/__main__.py")) == ""


@pytest.mark.parametrize(("argument", "code"), [("no-such-command", 1), ("--version", 0)])
def test_a_failing_check_fails_the_run(
    argument: str, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tests.__main__, "CHECKS", {"one": ("ruff", argument)})

    assert tests.__main__.main("--version") == code
    first, *_, last = capfd.readouterr().out.splitlines()
    assert first == "static checks run beside the tests, and are reported last: one"
    assert last == f"static checks: one {'failed' if code else 'ok'}"


def test_every_action_is_pinned_by_commit() -> None:
    # A workflow of this repository that another one calls comes from the same commit.
    uses = [
        use
        for path in (*WORKFLOWS, "action.yml")
        for use in re.findall(r"uses: (?!\./)(\S+)(.*)", (ROOT / path).read_text())
    ]

    assert uses
    for action, comment in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v[\d.]+", comment), f"{action} does not say its version"


@pytest.mark.parametrize(
    ("first", "arguments", "printed", "code"),
    [
        ("echo one", (), "echo one\none\necho two\ntwo\n", 0),
        ("echo one", ("first",), "echo one\none\n", 0),
        ("echo one", ("deep",), "echo two\ntwo\n", 0),
        ("echo one", ("third",), "", 2),
        ("exit 7", (), "exit 7\n", 7),
    ],
)
def test_ci_runs_the_commands_of_the_documents(
    first: str, arguments: tuple[str, ...], printed: str, code: int, tmp_path: Path
) -> None:
    """It stops where the first tier fails."""
    commands = {"README.md": ("tests", first), "tests/README.md": ("deep", "echo two")}
    ran = documented(tmp_path, commands, *arguments)

    assert (ran.returncode, ran.stdout) == (code, printed)


def test_the_documents_have_the_commands() -> None:
    for document, mark, end in (("README.md", "tests", "-m tests"), ("tests/README.md", "deep", "-m deep")):
        assert re.search(rf"\n<!-- {mark} -->\n```sh\n[^`]*{end}\n```", (ROOT / document).read_text())
    jobs = (ROOT / ".github/workflows/ci.yml").read_text()
    assert ".ci/run first\n" in jobs
    assert ".ci/run deep\n" in jobs


def documented(
    folder: Path, commands: Mapping[str, tuple[str, str]], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` in a repository whose documents have these commands, without installing anything."""
    for document, (mark, command) in commands.items():
        (folder / document).parent.mkdir(parents=True, exist_ok=True)
        (folder / document).write_text(f"# One\n\n<!-- {mark} -->\n```sh\n{command}\n```\n\n```sh\nexit 1\n```\n")
    for script, text in ((".ci/run", (ROOT / ".ci/run").read_text()), ("bin/apt-get", "#!/bin/sh\n")):
        (folder / script).parent.mkdir()
        (folder / script).write_text(text)
        (folder / script).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    run = [str(folder / ".ci/run"), *arguments]
    return subprocess.run(run, capture_output=True, text=True, env=environment, check=False)


def test_no_source_file_is_long() -> None:
    lines = {
        path: path.read_text().count("\n")
        for folder in ("builder", "patches", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    }

    assert not {path: count for path, count in lines.items() if count > 350}


def test_the_picture_of_the_rooms_is_drawn_anew() -> None:
    assert rooms.PICTURE.read_text() == rooms.picture(), "run `python -m tests.rooms`"


def test_no_file_that_is_kept_is_a_program_or_an_archive() -> None:
    """Pictures are the only files that are no text: a wheel of 2.9 MB was once committed with a change."""
    asked = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    kept = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    present = [ROOT / name for name in kept if (ROOT / name).is_file()]

    assert present
    assert {path.suffix for path in present if b"\0" in path.read_bytes()} <= {".png", ".webp"}
