"""Output for people: plain text in a pipe, tables and color on a terminal only; completion; lazy imports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from vpatch.cli.wording import COLORS, table
from vpatch.core.catalogue import discover, select

from tests.conftest import Process, Trees
from tests.forks import output
from tests.hybrid import HYBRID, ONLY, SUMMARY
from tests.terminals import on_terminal, written

ESCAPE = "\x1b["
BASH = r"""
eval "$(_VPATCH_COMPLETE=bash_source vpatch)"
for line in "$@"; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line != *' ' ]] || COMP_WORDS+=('')
    COMPREPLY=()
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _vpatch_completion vpatch
    echo "${COMPREPLY[*]}"
done
"""


def test_a_terminal_gets_colors_and_a_pipe_plain_lines(child: Process, slim: Trees) -> None:
    tree = slim("0.20.2")
    piped = child("status", tree, *ONLY, env={"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "40"})
    seen = written("status", tree, *ONLY)

    assert (piped.code, piped.out, ESCAPE in piped.err) == (0, f"  {HYBRID}  pending  {SUMMARY}\n", False)
    assert f"  {HYBRID}  {ESCAPE}94mpending{ESCAPE}0m" in seen
    assert seen.splitlines()[-1].startswith(f"{ESCAPE}32m1 overlay ready to apply: ")
    assert ESCAPE not in written("status", tree, *ONLY, "--json")


def test_what_an_overlay_is_stays_in_its_column(slim: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(slim("0.20.2").parent)
    seen = written("status", "0.20.2", *ONLY, env={"COLUMNS": "60", "NO_COLOR": "1"})

    start = f"  {HYBRID}  pending  "
    assert seen.splitlines()[1:3] == [
        f"{start}TurboQuant KV cache on hybrid",
        f"{'':{len(start)}}(attention + Mamba) models",
    ]


def test_nothing_is_cut_at_80_columns(slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an overlay is for goes on in its column, and with -v, reasons in the next line, between words."""
    monkeypatch.chdir(shutil.copytree(slim("0.20.2"), tmp_path / "t").parent)
    env = {"COLUMNS": "80", "NO_COLOR": "1"}

    brief, full = written("status", "t", env=env), written("status", "-v", "t", env=env)

    head, *rows, _outcome = brief.splitlines()
    assert head == "vLLM 0.20.2 in t"
    default = [item.id for item in select(discover())]
    assert [row.split()[0] for row in rows if row[:2] == "  " and row[2:3].isalpha()][: len(default)] == default
    assert "  ct-fp8-lm-head         pending         FP8 output heads (lm_head) of" in rows
    assert "10 parts to apply; 1 upstream (#37291)" in " ".join(" ".join(rows).split())
    for line in full.splitlines():
        assert len(line) <= 80 or "`" in line or "/" in line, line
    assert {"(vllm-project/vllm#37291):", "boundary-layers"} <= set(full.split())


@pytest.mark.parametrize(("value", "color"), [("1", False), ("", True)])
def test_no_color(tmp_path: Path, value: str, *, color: bool) -> None:
    """By no-color.org: NO_COLOR counts if it is set and not empty."""
    env = {"NO_COLOR": value}

    assert (ESCAPE in written("status", tmp_path, env=env)) is color


@pytest.mark.parametrize("verb", ["status", "doctor"])
def test_a_dumb_terminal_gets_plain_lines(slim: Trees, verb: str) -> None:
    assert ESCAPE not in on_terminal(verb, slim("0.20.2"), *ONLY, env={"TERM": "dumb"}).raw


CHANNELS = {"red": 0, "green": 1, "bright_blue": 2}


@pytest.mark.parametrize("state", ["pending", "applied", "merged", "drifted"])
def test_a_state_has_one_color_on_the_terminal_and_the_page(state: str) -> None:
    """Of each color on the page, in its light and dark theme, the terminal's is the strongest channel."""
    css = (files("vpatch.matrix") / "page.css").read_text()
    found = re.findall(rf"--{state}-solid: #(\w\w)(\w\w)(\w\w);", css)

    assert len(found) == 2
    for channels in found:
        strengths = [int(channel, 16) for channel in channels]
        assert strengths.index(max(strengths)) == CHANNELS[COLORS[state]]


def test_problems_on_a_terminal_and_results_in_a_pipe(tmp_path: Path) -> None:
    read, write = os.pipe()
    seen = written("status", tmp_path, stdout=write)
    os.close(write)

    assert seen.startswith("\x1b[31mno vllm: ")
    assert os.read(read, 100) == b""
    os.close(read)


@pytest.mark.deep
def test_fetch_shows_a_bar_on_a_terminal(tmp_path: Path) -> None:
    with Path(os.devnull).open("wb") as nothing:
        assert "vllm 0.20.2" in written("fetch", "0.20.2", tmp_path / "tree", stdout=nothing.fileno())
    assert (tmp_path / "tree/vllm").is_dir()


def test_bash_completes() -> None:
    completed = {
        "vpatch ": (
            "status apply revert doctor find list show diff verify run ps plan matrix fetch cache build test inspect "
            "tag new import capture rebase"
        ),
        "vpatch show turboquant-h": HYBRID,
        "vpatch apply --overlay nonsense": "",
        "vpatch plan --gpu 509": "5090 5090-laptop",
        "vpatch plan --kv-cache-dtype turboquant_4": "turboquant_4bit_nc",
        "vpatch plan --vllm 0.25": "0.25.1 0.25.0",
    }
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", "--norc", "-euc", BASH, "bash", *completed]
    ran = subprocess.run(command, capture_output=True, text=True, env={"PATH": path}, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == list(completed.values())


@pytest.mark.parametrize("overlays", ["", "turboquant"])
def test_completion_of_a_broken_catalogue_is_quiet(tmp_path: Path, overlays: str) -> None:
    (tmp_path / "broken-1.dist-info").mkdir()
    (tmp_path / "broken-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (tmp_path / "broken-1.dist-info/entry_points.txt").write_text("[vpatch.overlays]\nbroken = not_there\n")
    env = {"_VPATCH_COMPLETE": "bash_complete", "COMP_WORDS": f"vpatch show {overlays}", "COMP_CWORD": "2"}

    code, out, err = output(env=env, first=lambda: sys.path.insert(0, str(tmp_path)))

    assert (code, out.strip(), err) == (0, "", "")


ROWS = [("  one", "applied", "a few words that do not fit in one line"), ("  another-one", "merged", "")]


def test_a_remark_that_does_not_fit_stands_below() -> None:
    assert [line.text for line in table(ROWS, 40)] == [
        "  one          applied",
        "      a few words that do not fit in one",
        "      line",
        "  another-one  merged",
    ]
    assert next(line.text for line in table(ROWS, None)).endswith("  a few words that do not fit in one line")
