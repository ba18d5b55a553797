"""`vpatch --help` is in the user's order."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from vpatch.cli.main import program

from tests.conftest import Program
from tests.terminals import on_terminal

TITLES = ["Options", "Your first day", "Look closer", "Serve", "Upgrade vLLM", "Build images", "Write overlays"]


def test_the_first_day_comes_first_then_groups(vpatch: Program) -> None:
    ran = vpatch("--help")
    sections = dict(re.findall(r"^(\w[^\n:]*):\n((?:  .*\n)+)", ran.out, re.MULTILINE))

    assert (ran.code, ran.err, list(sections)) == (0, "", TITLES)
    assert max(map(len, ran.out.splitlines())) <= 80
    rows = {title: re.findall(r"^  (\w+) ", text, re.MULTILINE) for title, text in sections.items()}
    assert rows["Your first day"] == ["status", "apply", "revert", "doctor"]
    every = [name for title in TITLES[1:] for name in rows[title]]
    assert len(every) == len(set(every)) == 23


@pytest.mark.parametrize("columns", [80, 60])
def test_each_command_has_one_line(columns: int) -> None:
    """At 80 columns nothing is cut; on a narrower terminal lines go on, and are not lost."""
    shown = on_terminal("--help", columns=columns, env={"COLUMNS": str(columns)})
    (begin,) = (k for k, line in enumerate(shown.screen) if line == "Your first day:")
    (end,) = (k for k, line in enumerate(shown.screen) if line == "  Examples:")
    rows = [line for line in shown.screen[begin:end] if line.startswith("  ")]

    assert "..." not in "".join(rows)
    assert (len(rows) == 23) is (columns == 80)


def test_each_example_runs(vpatch: Program) -> None:
    _, _, examples = vpatch("--help").out.partition("Examples:\n")
    commands = [shlex.split(line, comments=True) for line in examples.splitlines() if line.strip()]

    assert [words[1] for words in commands] == ["status", "apply", "revert", "doctor", "find", "apply"]
    for words in commands:
        assert vpatch(words[1], "--help").code == 0
    assert vpatch(*commands[-1][1:]).out.startswith("Usage: vpatch apply ")


def needed(name: str) -> set[str]:
    """Return a distribution and those that it needs without any extra."""
    wanted = [Requirement(line) for line in distribution(name).requires or ()]
    found = (one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""}))
    return {canonicalize_name(name)}.union(*map(needed, found))


BARE = """
import json, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
missing, lines = map(json.loads, sys.argv[1:])
sys.meta_path.insert(0, Missing())
import click
from vpatch.cli.main import program
for words in lines:
    try:
        program.main(words, prog_name="vpatch", standalone_mode=False)
    except click.UsageError as error:
        print(type(error).__name__)
"""


def test_help_needs_no_extra() -> None:
    """As `uv tool install` without extras leaves it, for the program and each command."""
    installed, own = packages_distributions(), needed("vpatch")
    missing = [name for name, of in installed.items() if own.isdisjoint(map(canonicalize_name, of))]
    lines = [["--help"], [], *([name, "--help"] for name in program.list_commands(None))]  # type: ignore[arg-type]
    command = [sys.executable, "-c", BARE, json.dumps(missing), json.dumps(lines)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "requests" in missing
    assert (ran.returncode, ran.stderr, ran.stdout.count("Usage: vpatch")) == (0, "", len(lines) - 1)
    assert ran.stdout.count("NoArgsIsHelpError\n") == 1


def test_without_a_command_it_is_the_help(vpatch: Program) -> None:
    assert (vpatch().code, vpatch().err, vpatch().out) == (2, vpatch("--help").out, "")
