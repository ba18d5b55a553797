"""Lines that fit a terminal: broken between words, and commands that can be copied."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from vpatch.cli.wording import Aside, command, table
from vpatch.errors import shell
from vpatch.wrapping import from_here, wrapped

TAGS = [f"registry.example/me/vllm:v0.20.{number}" for number in range(5)]
ODD = ["a b", "it's", 'say "no"', "*"]


def copied(lines: list[str]) -> list[str]:
    """Return the words of the command in backticks, as a shell reads what was copied."""
    _, text, _ = "\n".join(lines).split("`")
    return shlex.split(text.replace("\\\n", ""))  # as a shell does before it splits


@pytest.mark.parametrize("width", [40, 60, 80, 120, None])
@pytest.mark.parametrize("words", [TAGS, ODD])
def test_a_broken_command_is_the_same_command(words: list[str], width: int | None) -> None:
    arguments = ["build", *(word for tag in words for word in ("--tag", tag)), "--push"]
    lines = wrapped(f"Some words: {command(*arguments)}. And more of them.", width, hanging="  ")

    assert copied(lines) == ["vpatch", *arguments]
    if width:
        longest = max(len(f"    --tag {shlex.quote(word)} \\") for word in words)
        assert max(map(len, lines)) <= max(width, longest)


def test_an_option_stays_with_its_value() -> None:
    lines = wrapped(shell("docker", "run", "--gpus", "all", "-p", "80:80", "image", "MODEL"), 30, hanging="  ")

    assert lines == ["`docker run --gpus all \\", "    -p 80:80 image MODEL`"]


def test_commands_of_other_programs_can_be_copied_too() -> None:
    """What is quoted stays on one line, however long it is."""
    source = "vpatch[all] @ git+https://example.org/vpatch@2f3108403d9cbd480b53b6ce34596ba062786f45"
    for words in (
        ["uv", "tool", "install", "--force", source],
        ["/home/me/.venv/bin/python3", "-m", "vpatch.calls", "my-fix", "--release", "0.24.0", "--more"],
        ["env", "PYTHONPATH=/home/me/sources", "vpatch", "doctor", "--run", "--python", "/usr/bin/python3"],
        ["sudo", "nvidia-ctk", "runtime", "configure", "--runtime=docker", "--and-yet-another-option"],
    ):
        lines = wrapped(f"not installed: {shell(*words)}", 60, hanging="  ")

        assert len(lines) > 1
        assert copied(lines) == words


def test_long_code_that_is_no_command_is_broken_between_words() -> None:
    assert wrapped("has `first(argument, other)` there", 20) == ["has `first(argument,", "other)` there"]


def test_no_text_can_break_a_line_by_itself() -> None:
    assert wrapped("a\0b\1c " + "d" * 10, 12) == ["a\\x00b\\x01c", "d" * 10]


def test_a_summary_in_a_table_stays_in_its_column() -> None:
    rows = [("  an-overlay", "pending", Aside("Custom all-reduce under expandable_segments"))]

    shown = {width: [line.text for line in table(rows, width)] for width in (70, 50, 40)}
    assert shown == {
        70: ["  an-overlay  pending  Custom all-reduce under expandable_segments"],
        50: ["  an-overlay  pending  Custom all-reduce under", f"{'':23}expandable_segments"],
        40: ["  an-overlay  pending", "      Custom all-reduce under", "      expandable_segments"],
    }


def test_a_long_name_in_a_table_goes_on_below_and_takes_no_room_of_others() -> None:
    releases = ", ".join(f"0.{number}.0" for number in range(20, 30))
    rows = [(f"  {releases}", "pending", ""), ("  0.33.0", "drifted", "vllm/envs.py: gone")]

    assert [line.text for line in table(rows, 40)] == [
        "  0.20.0, 0.21.0, 0.22.0, 0.23.0,",
        "    0.24.0, 0.25.0, 0.26.0, 0.27.0,",
        "    0.28.0, 0.29.0  pending",
        "  0.33.0  drifted  vllm/envs.py: gone",
    ]


def test_a_folder_is_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert from_here(tmp_path / ".venv") == ".venv"
    assert from_here(tmp_path) == str(tmp_path)
    assert from_here(Path("/elsewhere")) == "/elsewhere"
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert from_here(tmp_path) == str(tmp_path)
