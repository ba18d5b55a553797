"""Output for people: plain text in a pipe, tables and color on a terminal only; completion; lazy imports."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Process, Program, Trees

HYBRID = "turboquant-hybrid"
ONLY = ("--overlay", HYBRID)
ESCAPE = "\x1b["
BASH = r"""
eval "$(_VPATCH_COMPLETE=bash_source vpatch)"
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_vpatch_completion vpatch
printf '%s\n' "${COMPREPLY[@]}"
"""


def on_terminal(*arguments: str | Path, env: dict[str, str] | None = None, stdout: int | None = None) -> str:
    """Run the program on a pseudo-terminal and return what appears there. `stdout` may go elsewhere."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", **(env or {})}
    run = subprocess.Popen(
        [sys.executable, "-m", "vpatch", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the terminal closes with its last process
            break
        if not data:
            break
        seen += data
    os.close(ours)
    run.wait(timeout=60)
    return seen.decode()


def test_a_pipe_gets_plain_lines(process: Process, pristine: Trees) -> None:
    ran = process("status", pristine("0.20.2"), *ONLY, env={"FORCE_COLOR": "1", "TERM": "xterm-256color"})

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{HYBRID}: pending: boundary-layers: upstream's code is as in 0.20; ")
    assert ran.out.count("\n") == 1
    assert ESCAPE not in ran.out


def test_a_terminal_gets_a_colored_table(pristine: Trees) -> None:
    seen = on_terminal("status", pristine("0.20.2"), *ONLY)

    assert ESCAPE in seen
    head, *rows = seen.splitlines()
    assert [word for word in ("overlay", "part", "state", "because") if word in head] == [
        "overlay",
        "part",
        "state",
        "because",
    ]
    assert [name for name in ("boundary-layers", "page-size") for row in rows if name in row] == [
        "boundary-layers",
        "page-size",
    ]
    assert "\x1b[33mpending" in seen


@pytest.mark.parametrize(("value", "color"), [("1", False), ("", True)])
def test_no_color(pristine: Trees, tmp_path: Path, value: str, *, color: bool) -> None:
    """By no-color.org: NO_COLOR counts if it is set and not empty."""
    env = {"NO_COLOR": value}

    assert (ESCAPE in on_terminal("status", pristine("0.20.2"), env=env)) is color
    assert (ESCAPE in on_terminal("status", tmp_path, env=env)) is color


def test_a_terminal_with_json_gets_json_only(pristine: Trees) -> None:
    seen = on_terminal("status", pristine("0.20.2"), "--json")

    assert seen.startswith('{"schema": 1, ')
    assert seen.count("\n") == 1


def test_problems_on_a_terminal_and_results_in_a_pipe(tmp_path: Path) -> None:
    read, write = os.pipe()
    seen = on_terminal("status", tmp_path, stdout=write)
    os.close(write)

    assert seen.startswith("\x1b[31mno vllm: ")
    assert os.read(read, 100) == b""
    os.close(read)


def test_fetch_shows_a_bar_on_a_terminal(tmp_path: Path) -> None:
    assert "vllm 0.20.2" in on_terminal("fetch", "0.20.2", tmp_path / "tree", stdout=subprocess.DEVNULL)
    assert (tmp_path / "tree/vllm").is_dir()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["vpatch", ""],
            [
                *("fetch", "status", "diff", "apply", "revert", "verify", "list", "show", "new", "matrix", "cache"),
                *("plan", "build", "test", "inspect", "tag"),
            ],
        ),
        (["vpatch", "re"], ["revert"]),
        (["vpatch", "show", "turboquant-h"], [HYBRID]),
        (["vpatch", "apply", "--overlay", "turboquant-h"], [HYBRID]),
        (["vpatch", "apply", "--overlay", "nonsense"], [""]),
        (["vpatch", "apply", "--ch"], ["--check"]),
    ],
)
def test_bash_completes(words: list[str], expected: list[str]) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "--norc", "-euc", BASH, "bash", *words],
        capture_output=True,
        text=True,
        env={"PATH": path},
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == expected


@pytest.mark.parametrize("overlays", ["", "turboquant"])
def test_completion_of_a_broken_catalogue_is_quiet(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlays: str
) -> None:
    (tmp_path / "broken-1.dist-info").mkdir()
    (tmp_path / "broken-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (tmp_path / "broken-1.dist-info/entry_points.txt").write_text("[vpatch.overlays]\nbroken = not_there\n")
    env = {
        "PYTHONPATH": str(tmp_path),
        "_VPATCH_COMPLETE": "bash_complete",
        "COMP_WORDS": f"vpatch show {overlays}",
        "COMP_CWORD": "2",
    }

    ran = process(env=env)

    assert (ran.code, ran.out.strip(), ran.err) == (0, "", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("show", HYBRID),
        ("--help",),
        ("--version",),
        ("fetch", "--help"),
        ("apply", "-h"),
        ("revert", "TREE"),
    ],
)
def test_libcst_is_imported_only_to_parse(patched: Trees, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    if "TREE" in arguments:  # hard links suffice, since vpatch replaces files instead of writing into them
        subprocess.run(["cp", "-al", patched("0.20.2"), tmp_path / "tree"], check=True)
        arguments = ("revert", str(tmp_path / "tree"))
    code = "import sys\nfrom vpatch.cli import main\ntry: main()\n"
    code += "except SystemExit as end: print(end.code, 'libcst' in sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)

    assert ran.stderr == "0 False\n"
    assert ran.stdout


def test_libcst_is_imported_by_commands_that_parse(pristine: Trees) -> None:
    """The counterpart of the test above: commands that parse do import libcst."""
    code = "import sys\nfrom vpatch.cli import main\ntry: main()\n"
    code += "except SystemExit as end: print(end.code, 'libcst' in sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code, "status", str(pristine("0.20.2"))]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    assert ran.stderr == "0 True\n"


def test_list_says_what_is_opt_in(vpatch: Program) -> None:
    listed = {item["id"]: item["opt_in"] for item in vpatch("list", "--json").json["overlays"]}
    lines = vpatch("list").out.splitlines()

    assert [line.partition(":")[0] for line in lines] == [f"{k}{' (opt-in)' * v}" for k, v in listed.items()]
